"""What a spec that cannot be run says: where, which value, what is allowed, and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from inputs.errors import InputError, KeyPath, shown
from inputs.scalars import boolean_meant


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that is wrong, at a path of the spec such as ("workload", "tenants", 0, "load")."""

    path: KeyPath
    text: str


class SpecError(InputError):
    """An experiment that cannot be run as it is written. One line per issue, each with file, line, path and remedy."""

    def __init__(self, lines: Iterable[str]) -> None:
        super().__init__(*lines)


def closest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'load'?`, or nothing where no known word is near."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def issues(
    error: ValidationError, models: Mapping[tuple[str, ...], type[BaseModel]], tags: frozenset[str]
) -> list[Issue]:
    """The issues of a pydantic error.

    `models` gives the model at each path without list indices; `tags` are the union tags that pydantic puts into its
    locations and that are no part of the spec's path.
    """
    found: list[Issue] = []
    for details in error.errors():
        context = details.get("ctx", {})
        if details["type"] == "cross_check":
            found += context["issues"]
            continue
        location = details["loc"]
        path = tuple(
            part
            for i, part in enumerate(location)
            if not (i >= 2 and part in tags and isinstance(location[i - 1], int) and location[i - 2] == "fabrics")
        )
        model = models.get(tuple(part for part in location[:-1] if isinstance(part, str)))
        found.append(_issue(details, path, model))
    return found


def _issue(details: ErrorDetails, path: KeyPath, model: type[BaseModel] | None) -> Issue:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    name = str(path[-1]) if path else ""
    fields = model.model_fields if model is not None else {}
    meaning = fields[name].description if name in fields else None
    is_what = f"; {name}: {meaning}" if meaning else ""
    if kind == "extra_forbidden":
        return Issue(path, f"unknown key{closest(name, fields)} (allowed here: {', '.join(fields)})")
    if kind == "missing":
        return Issue(path, f"missing and required{is_what}")
    if kind == "union_tag_not_found":
        return Issue((*path, "kind"), "missing and required; kind: eps, ocs or none")
    if kind == "union_tag_invalid":
        tag = str(context["tag"])
        known = str(context["expected_tags"]).replace("'", "")
        return Issue((*path, "kind"), f"{tag!r} is no fabric kind{closest(tag, known.split(', '))} (allowed: {known})")
    if kind == "literal_error":
        known = str(context["expected"]).replace("'", "").replace(" or ", ", ")
        return Issue(path, f"{shown(value)} is not allowed{closest(str(value), known.split(', '))} (allowed: {known})")
    if kind == "bool_type" and (meant := boolean_meant(value)):
        return Issue(path, f"{shown(value)} is text (YAML 1.2); write {meant}{is_what}")
    if kind in ("not_built", "not_allowed"):
        return Issue(path, details["msg"])
    return Issue(path, f"{shown(value)}: {details['msg'][:1].lower()}{details['msg'][1:]}{is_what}")
