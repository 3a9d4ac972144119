"""The run clock and its timers: run_s = (CLOCK_MONOTONIC - t0) / time_dilation."""

import asyncio
import selectors
import time
from array import array
from collections.abc import Callable


def new_event_loop() -> asyncio.SelectorEventLoop:
    """A loop whose timers have microsecond resolution: the default one waits in epoll, which rounds up to 1 ms."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


class ClockNotStarted(RuntimeError):
    """The run clock was read before the `start` message."""


class Lateness:
    """Collects how late timers fired, in real seconds."""

    def __init__(self) -> None:
        self._samples_s = array("d")

    def add(self, late_s: float) -> None:
        """Record one timer."""
        self._samples_s.append(late_s)

    def summary(self) -> dict[str, float | int | None]:
        """n, p50, p99 (nearest rank) and maximum; None where nothing was timed."""
        ordered = sorted(self._samples_s)
        n = len(ordered)
        if n == 0:
            return {"n": 0, "p50": None, "p99": None, "max": None}
        return {"n": n, "p50": ordered[(n - 1) // 2], "p99": ordered[-(-99 * n // 100) - 1], "max": ordered[-1]}


class AgentClock:
    """Run-clock time and timers on it; all arguments and results are run-clock (real) seconds."""

    def __init__(self, time_dilation: float) -> None:
        if not time_dilation > 0:
            raise ValueError(f"time_dilation is {time_dilation}: it must be above 0")
        self.time_dilation = time_dilation
        self.lateness = Lateness()
        self._t0_monotonic_s: float | None = None

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._t0_monotonic_s is not None

    def start(self, t0_monotonic_s: float) -> None:
        """Fix run_s = 0 at this CLOCK_MONOTONIC time, which may lie in the future."""
        self._t0_monotonic_s = t0_monotonic_s

    def now_s(self) -> float:
        """The run clock now; negative before t0. ClockNotStarted before `start`."""
        return (time.monotonic() - self._t0_s()) / self.time_dilation

    def at(self, run_s: float, callback: Callable[[float], None]) -> asyncio.TimerHandle:
        """Call `callback(now_s)` at `run_s`, never early; now_s >= run_s in spite of floating-point rounding."""
        loop = asyncio.get_running_loop()

        def fire() -> None:
            now_s = max(self.now_s(), run_s)
            self.lateness.add(now_s - run_s)
            callback(now_s)

        return loop.call_at(self._t0_s() + run_s * self.time_dilation, fire)

    def _t0_s(self) -> float:
        if self._t0_monotonic_s is None:
            raise ClockNotStarted("the run clock has no origin before the start message")
        return self._t0_monotonic_s
