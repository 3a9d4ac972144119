"""The signals that end a command: SIGINT, SIGTERM, SIGHUP and SIGQUIT. One exception where it can stop, a wait where it
must not.

The first one raises Interrupted, and the command ends with exit status 128 and its number; until the process has ended,
all others are ignored: what is under way then is a tear-down. Where SIGHUP is ignored from the start (nohup), it stays
so.

A handler may run anywhere, also where the interpreter lets no exception out: in a callback of a fork, in a destructor.
What it raises there is lost, and with it the interrupt; so such a loss is noticed, and the exception raised again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: From an interrupt that was lost to the next attempt.
AGAIN_S = 0.02


class Interrupted(KeyboardInterrupt):
    """One of NUMBERS reached the process; `number` is the signal, `status` the exit status to end with."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number, self.status = number, 128 + number


class _Shield:
    """How many blocks are open in which a signal has to wait, and the first one that waits."""

    depth = 0
    waiting: int | None = None
    lost: int | None = None


#: What to call to have things as they were before the outermost `interruptible`; none outside of it.
_undo: list[Callable[[], None]] = []


def _interrupt(number: int, frame: FrameType | None = None) -> None:
    if _Shield.depth:
        if _Shield.waiting is None:  # the first one is why the run ends, as outside of a shield
            _Shield.waiting = number
        return
    _Shield.waiting = None
    ignore()
    raise Interrupted(number)


def _again(number: int, frame: FrameType | None = None) -> None:
    """SIGALRM: raise what was lost."""
    lost, _Shield.lost = _Shield.lost, None
    if lost is not None:
        _interrupt(lost)


def ignore() -> None:
    """From now on the signals are ignored, and so they are by what is started."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """The signals raise Interrupted once; during the tear-down that follows they are ignored. Within another such block
    it changes nothing: the outermost one ends with its process, or has things as they were before."""
    outermost = not _undo
    if outermost:
        _begin()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if outermost:
            _undo.pop()()


def take_over() -> None:
    """As `interruptible`, for the rest of this process: before it imports what takes a moment, too."""
    if not _undo:
        _begin()
        sys.excepthook = _ended


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Around a library that makes something else of an exception of a signal: the signals wait, but for what it calls
    in an `interruptible` block, and are ignored once it has ended, as its process is about to."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    try:
        yield
    finally:
        ignore()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    def unraisable(event: sys.UnraisableHookArgs) -> None:
        if isinstance(event.exc_value, Interrupted):
            _Shield.lost = event.exc_value.number
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            hook(event)

    def undo() -> None:
        sys.unraisablehook = hook
        signal.setitimer(signal.ITIMER_REAL, 0)
        _Shield.lost = None
        for number, handler in before.items():
            signal.signal(number, handler)

    numbers = [each for each in NUMBERS if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, _interrupt) for number in numbers}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _again)
    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    _undo.append(undo)


def _ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """In the place of a traceback: nothing that needs an end has begun where nobody took the exception."""
    if not isinstance(error, Interrupted):
        sys.__excepthook__(kind, error, trace)
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        print(f"heliograph: {error}", file=sys.stderr, flush=True)
    os._exit(error.status)


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
