"""The words that a key of an experiment takes: which are known, and what is said of another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from experiments.schema.errors import closest
from inputs.plugin_file import names_plugin
from workloads.prefill import TIMINGS


def one_of(what: str, known: Sequence[str]) -> BeforeValidator:
    """Refuses a word outside `known`."""
    return _words(what, known, lambda value: False, "")


def one_of_or_own(what: str, known: Sequence[str]) -> BeforeValidator:
    """Refuses a word that is neither in `known` nor a user's own module:Class."""
    return _words(what, known, names_plugin, " or your own module:Class")


def timing() -> BeforeValidator:
    """Refuses a word that is neither a set of prefill timings nor the path of a timing file."""
    return _words("prefill timing", tuple(TIMINGS), is_timing_file, ", or the path of a timing file ending in .yaml")


def is_timing_file(word: str) -> bool:
    """Whether a `prefill.timing` names a file and not a set."""
    return word.endswith((".yaml", ".yml"))


def own(what: str) -> BeforeValidator:
    """Refuses a word that is no user's own module:Class."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and names_plugin(value):
            return value
        raise PydanticCustomError("not_allowed", f"{value!r} is no {what} of your own; write module:Class")

    return BeforeValidator(check)


def migration_rule() -> BeforeValidator:
    """Refuses what is neither always, affinity nor a fraction; a fraction becomes a float."""

    def check(value: Any) -> Any:
        if value in ("always", "affinity"):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
        raise PydanticCustomError(
            "not_allowed", f"{value!r} is no migration rule (allowed: always, affinity, or a fraction from 0 to 1)"
        )

    return BeforeValidator(check)


def _words(what: str, known: Sequence[str], is_other: Callable[[str], bool], others: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if isinstance(value, str) and (value in known or is_other(value)):
            return value
        raise PydanticCustomError(
            "not_allowed",
            f"{value!r} is no {what}{closest(str(value), known)} (allowed: {', '.join(known)}{others})",
        )

    return BeforeValidator(check)
