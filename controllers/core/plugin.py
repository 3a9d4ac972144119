"""A user's own class, named `module:Class` in an experiment file, and what is said when it misbehaves."""

from __future__ import annotations

import importlib
import traceback
from typing import Any


class PluginFault(Exception):
    """A decode choice or commit rule raised, answered nonsense or took too long; ends the run, with this text."""


def load_class(key: str, spec: str, built_in: str) -> Any:
    """The attribute that `spec` (`module:Class`) names, imported.

    `key` and `built_in` are for the message. Raises ValueError, saying what was not found and what is allowed.
    """
    module_name, colon, class_name = spec.partition(":")
    if not colon or not module_name or not class_name:
        raise ValueError(f"{key} {spec!r}: not one of {built_in}, nor of the form module:Class")
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # whatever a user's module does while it is imported
        raise ValueError(
            f"{key} {spec!r}: {type(error).__name__}: {error}; the module must be importable from "
            "the project's folder or PYTHONPATH"
        ) from error


def name_of(thing: object) -> str:
    """`module:Class` of an object or a class, as an experiment file names it."""
    kind = thing if isinstance(thing, type) else type(thing)
    return f"{kind.__module__}:{kind.__qualname__}"


def last_lines(error: BaseException, most: int = 20) -> str:
    """The innermost frames of a traceback and the error itself, indented."""
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip().splitlines()
    return "\n".join(f"  {line}" for line in lines[-most:])
