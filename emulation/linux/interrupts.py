"""SIGINT, SIGTERM and SIGHUP during a run: one exception where the run can stop, a wait where it must not.

A handler may run anywhere, also where the interpreter lets no exception out: in a callback of a fork, in a destructor.
What it raises there is lost, and with it the interrupt; so such a loss is noticed, and the exception raised again.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: From an interrupt that was lost to the next attempt.
AGAIN_S = 0.02


class Interrupted(KeyboardInterrupt):
    """SIGINT, SIGTERM or SIGHUP reached the run; `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


class _Shield:
    """How many blocks are open in which a signal has to wait, and the first one that waits."""

    depth = 0
    waiting: int | None = None
    lost: int | None = None


def _interrupt(number: int, frame: FrameType | None = None) -> None:
    if _Shield.depth:
        if _Shield.waiting is None:  # the first one is why the run ends, as outside of a shield
            _Shield.waiting = number
        return
    _Shield.waiting = None
    for again in NUMBERS:
        signal.signal(again, signal.SIG_IGN)
    raise Interrupted(number)


def _again(number: int, frame: FrameType | None = None) -> None:
    """SIGALRM: raise what was lost."""
    lost, _Shield.lost = _Shield.lost, None
    if lost is not None:
        _interrupt(lost)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """The signals raise Interrupted once; during the tear-down that follows they are ignored."""

    def unraisable(event: sys.UnraisableHookArgs) -> None:
        if isinstance(event.exc_value, Interrupted):
            _Shield.lost = event.exc_value.number
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            hook_before(event)

    before = {number: signal.signal(number, _interrupt) for number in NUMBERS}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _again)
    hook_before, sys.unraisablehook = sys.unraisablehook, unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook_before
        signal.setitimer(signal.ITIMER_REAL, 0)
        _Shield.lost = None
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """A signal that arrives inside the block raises Interrupted at its end: half a tear-down and half a set of
    artifacts are worse than a second of waiting."""
    _Shield.depth += 1
    try:
        yield
    finally:
        _Shield.depth -= 1
        if _Shield.waiting is not None and not _Shield.depth:
            _interrupt(_Shield.waiting)
