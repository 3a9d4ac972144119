"""Moments: the run clock, an exact sleep and an alarm that can be moved.

The green hub waits with epoll, which rounds a wait up to the next millisecond. A dark time must be exact, so the last
millisecond is spent polling: other greenlets run meanwhile, and nothing here ever returns early.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from eventlet import event as green_event
from ryu.lib import hub

_EPOLL_TICK_S = 0.001
#: How long before a moment those who will have to answer at it are woken; wall seconds.
WAKE_S = 0.0015


class RunClock:
    """Run-clock seconds (real seconds of the emulated cluster) from CLOCK_MONOTONIC.

    `(monotonic - t0) / time_dilation`.
    """

    def __init__(self, t0_monotonic_s: float, time_dilation: float) -> None:
        self.t0_monotonic_s = t0_monotonic_s
        self.time_dilation = time_dilation

    def now_s(self) -> float:
        """The run-clock time of this moment."""
        return (time.monotonic() - self.t0_monotonic_s) / self.time_dilation

    def monotonic_s(self, run_s: float) -> float:
        """The CLOCK_MONOTONIC time of a run-clock time."""
        return self.t0_monotonic_s + run_s * self.time_dilation


def sleep_until(deadline_monotonic_s: float) -> None:
    """Let other greenlets run until CLOCK_MONOTONIC has reached the deadline.

    Never early, late by less than a millisecond when idle.
    """
    while (left_s := deadline_monotonic_s - time.monotonic()) > 0:
        hub.sleep(max(0.0, left_s - _EPOLL_TICK_S))


class Alarm:
    """Calls `ring()` at a moment that may be moved at any time, and `wake()` WAKE_S before it; `run()` is its
    greenlet."""

    def __init__(self, ring: Callable[[], None], wake: Callable[[], None] = lambda: None) -> None:
        self._ring = ring
        self._wake = wake
        self._deadline_s: float | None = None
        self._moved = green_event.Event()

    def set(self, deadline_monotonic_s: float | None) -> None:
        """Ring at this CLOCK_MONOTONIC time instead of any other; None: do not ring. A moment that is nearer
        than WAKE_S is rung at without a wake."""
        if deadline_monotonic_s == self._deadline_s:
            return
        self._deadline_s = deadline_monotonic_s
        if not self._moved.ready():
            self._moved.send()

    def run(self) -> None:
        """Wait and ring, for ever. An exception of `ring` or `wake` ends it."""
        woken_for_s: float | None = None
        while True:
            self._moved = green_event.Event()
            if self._deadline_s is None:
                self._moved.wait()
                continue
            left_s = self._deadline_s - time.monotonic()
            if left_s > WAKE_S + _EPOLL_TICK_S:
                self._moved.wait(left_s - WAKE_S - _EPOLL_TICK_S)
            elif left_s > _EPOLL_TICK_S:
                if woken_for_s != self._deadline_s:
                    woken_for_s = self._deadline_s
                    self._wake()
                self._moved.wait(left_s - _EPOLL_TICK_S)
            elif left_s > 0:
                hub.sleep(0)
            else:
                self._deadline_s = None
                self._ring()
