"""A user's own code that misbehaves: whatever it raises, an exit too, is said with its name and never ends us in
silence."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator

from process.interrupts import Interrupted

#: What the names of modules begin with that were loaded from a plug-in's file (plugin_file.py).
LOADED_AS = "heliograph_plugin_"


class PluginFault(Exception):
    """A plug-in raised, answered nonsense or took too long; ends the run, with this text."""


@contextlib.contextmanager
def blamed(what: str, *passes: type[Exception]) -> Iterator[None]:
    """PluginFault, `WHAT failed:` and the last lines of its traceback, for whatever the block raises: SystemExit and
    every other BaseException too. What `passes` does so, and a signal (process/interrupts.py), which is none of the
    plug-in's."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, (PluginFault, Interrupted, *passes)):
            raise
        raise PluginFault(f"{what} failed:\n{last_lines(error)}") from error


def last_lines(error: BaseException, most: int = 20) -> str:
    """The innermost frames of a traceback and the error itself, indented."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:  # an error whose own text raises
        text = "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines()[-most:])


def name_of(thing: object) -> str:
    """`FILE.py:Class` of a plug-in's object or class, as a resolved experiment names it; `module:Class` of ours."""
    kind = thing if isinstance(thing, type) else type(thing)
    module = sys.modules.get(kind.__module__)
    place = getattr(module, "__file__", None) if kind.__module__.startswith(LOADED_AS) else None
    return f"{place or kind.__module__}:{kind.__qualname__}"
