"""A user's own code that misbehaves: whatever it raises, an exit too, is said with its name and never ends us in
silence."""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

#: What the names of modules begin with that were loaded from a plug-in's file (plugin_file.py).
LOADED_AS = "heliograph_plugin_"

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class PluginFault(Exception):
    """A plug-in raised, answered nonsense or took too long; ends the run, with this text."""


@contextlib.contextmanager
def blamed(what: str, *passes: type[Exception]) -> Iterator[None]:
    """PluginFault, `WHAT failed:` and the last lines of its traceback, for whatever the block raises: SystemExit and
    every other BaseException too. What `passes` does so, and an interrupt: what a signal handler of ours raises is none
    of the plug-in's."""
    with raised_by_itself() as itself:
        try:
            yield
        except BaseException as error:
            if isinstance(error, (PluginFault, *passes)):
                raise
            if isinstance(error, Exception) or itself():
                raise PluginFault(f"{what} failed:\n{last_lines(error)}") from error
            raise


class _Noted:
    """Stands before a signal's handler, and remembers that it was called."""

    def __init__(self, number: int) -> None:
        self.number, self.struck = number, False
        self.before = signal.getsignal(number)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.struck = True
        assert callable(self.before)
        self.before(number, frame)

    def stand(self) -> None:
        if callable(self.before):
            signal.signal(self.number, self)

    def leave(self) -> None:
        there: object = signal.getsignal(self.number)
        # a handler that has put another in its place meant it
        if callable(self.before) and there is self:
            signal.signal(self.number, self.before)


@contextlib.contextmanager
def raised_by_itself() -> Iterator[Callable[[], bool]]:
    """Yields a function: whether no signal has reached this process since, so that a KeyboardInterrupt in the block
    is the plug-in's own."""
    noted = [_Noted(number) for number in _INTERRUPTS]
    # handlers run, and may be set, in the main thread alone
    with contextlib.suppress(ValueError):
        for each in noted:
            each.stand()
    try:
        yield lambda: not any(each.struck for each in noted)
    finally:
        for each in noted:
            each.leave()


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
