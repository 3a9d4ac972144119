"""The reference of an experiment file, from the models that check it: `python -m experiments.schema.reference` rewrites
the tables of docs/reference/experiments.md. A test holds the two together.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from experiments.schema.models import ClusterSpec, Eps, Model, NoFabric, Ocs, Prefill, Scale, Slo, Tenant, Workload
from experiments.schema.spec import Experiment
from experiments.schema.timing import TimingFile

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "experiments.md"
BEGIN, END = "<!-- generated: python -m experiments.schema.reference -->", "<!-- end of the generated part -->"
SECTIONS: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("The file", "", Experiment),
    ("cluster", "cluster.", ClusterSpec),
    ("model", "model.", Model),
    ("prefill", "prefill.", Prefill),
    ("scale", "scale.", Scale),
    ("workload", "workload.", Workload),
    ("workload.tenants", "workload.tenants.N.", Tenant),
    ("fabrics with kind: eps", "fabrics.N.", Eps),
    ("fabrics with kind: ocs", "fabrics.N.", Ocs),
    ("fabrics with kind: none", "fabrics.N.", NoFabric),
    ("slo", "slo.", Slo),
    ("A timing file (`prefill.timing: mine.yaml`)", "", TimingFile),
)
#: What a suffix of a key says about its unit; keys without one say it in their meaning.
UNITS = {"_s": "s", "_ms": "ms", "_gbps": "Gbit/s", "_tokens": "tokens", "_per_token": "B/token"}
#: Keys whose unit their suffix does not give.
UNIT_OF = {
    "t0_ms": "ms",
    "a_ms_per_token": "ms/token",
    "b_ms_per_token2": "ms/token²",
    "bytes_per_token": "B/token",
    "migrate": "share",
    "share": "share",
    "load": "share",
    "link_efficiency": "share",
    "median_error": "share",
}
_COMPARISONS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))


def tables() -> str:
    """One Markdown table for each part of an experiment file: key, type and range, unit, default, meaning."""
    parts = []
    for title, prefix, model in SECTIONS:
        rows = [f"| `{prefix}{name}` | {_row(name, field)} |" for name, field in model.model_fields.items()]
        parts.append(
            "\n".join([f"### {title}", "", "| key | allowed | unit | default | meaning |", "|---" * 5 + "|", *rows])
        )
    return "\n\n".join(parts) + "\n"


def updated(document: str) -> str:
    """A document with its generated part made anew. Raises ValueError where the marks are missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT} has no {BEGIN} ... {END}: put both lines where the tables belong")
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def _row(name: str, field: FieldInfo) -> str:
    meaning = field.description or ("which kind of fabric" if name == "kind" else "")
    cells = (_allowed(field), _unit(name), _default(field), meaning)
    return " | ".join(cell.replace("|", "\\|") for cell in cells)


def _unit(name: str) -> str:
    if name in UNIT_OF:
        return UNIT_OF[name]
    return next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    if field.default_factory is not None:
        return "that part's defaults"
    if field.default is None:
        return "none"
    value = field.default
    text = f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`"


def _allowed(field: FieldInfo) -> str:
    words = list(_words(field.annotation, field.metadata))
    bounds = [
        f"{sign} {getattr(item, key):g}"
        for item in _constraints(field.annotation, field.metadata)
        for key, sign in _COMPARISONS
        if getattr(item, key, None) is not None
    ]
    return ", ".join(dict.fromkeys([*words, *bounds]))


def _constraints(annotation: Any, metadata: list[Any]) -> Iterator[Any]:
    yield from metadata
    if get_origin(annotation) is Annotated:
        base, *more = get_args(annotation)
        for item in more:
            yield from item.metadata if isinstance(item, FieldInfo) else (item,)
        annotation = base
    if get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _constraints(part, [])


def _words(annotation: Any, metadata: list[Any]) -> Iterator[str]:
    """What a value may be: the words of a choice, or the name of a type."""
    if known := [word for item in metadata if isinstance(item, BeforeValidator) for word in _choice(item)]:
        yield from known
        return
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *more = get_args(annotation)
        yield from _words(base, more)
    elif origin is Literal:
        yield from (f"`{word}`" for word in get_args(annotation))
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            if part is not types.NoneType:
                yield from _words(part, [])
    elif origin is list:
        yield "list"
    elif isinstance(annotation, type):
        names = {int: "whole number", float: "number", bool: "`true`, `false`", str: "text"}
        yield names.get(annotation, "mapping")


def _choice(validator: BeforeValidator) -> Iterator[str]:
    """The words a validator of a choice lets through; nothing where its message lists what its type does not."""
    told = inspect.getclosurevars(typing.cast(types.FunctionType, validator.func)).nonlocals
    yield from (f"`{word}`" for word in told.get("known", ()))
    if other := told.get("others", "").lstrip(", ").removeprefix("or "):
        yield other


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{DOCUMENT}: {len(re.findall(r'^[|] `', tables(), re.MULTILINE))} keys")
