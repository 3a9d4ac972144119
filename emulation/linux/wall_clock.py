"""CLOCK_REALTIME, in which the kernel stamps packets, held against CLOCK_MONOTONIC, on which a run counts.

A daemon that keeps the time slews the one by some microseconds a second and may step it: over a run that is more than a
packet takes, so what the one is ahead by is read at both ends.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

TRIES = 20
#: Slewing is limited to 500 ppm (adjtimex(2)): what changes faster was set.
SLEW_LIMIT = 500e-6


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """At CLOCK_MONOTONIC `monotonic_s`, CLOCK_REALTIME was ahead by `ahead_s`."""

    monotonic_s: float
    ahead_s: float


def read_clocks(tries: int = TRIES) -> ClockOffset:
    """The reading of several that took the shortest time: an interrupted one is off by the interruption."""
    readings = []
    for _ in range(tries):
        before_ns = time.monotonic_ns()
        realtime_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        took_ns = time.monotonic_ns() - before_ns
        middle_ns = before_ns + took_ns // 2
        readings.append((took_ns, middle_ns, realtime_ns - middle_ns))
    _, middle_ns, ahead_ns = min(readings)
    return ClockOffset(middle_ns / 1e9, ahead_ns / 1e9)


@dataclass(frozen=True, slots=True)
class ClockPair:
    """Readings at the start and at the end of what was stamped; between them the difference is taken to grow evenly."""

    first: ClockOffset
    last: ClockOffset

    @property
    def stepped_s(self) -> float:
        """How far the clock was set between the readings, beyond what slewing can do; 0 where it was not."""
        slewed_s = abs(self.last.ahead_s - self.first.ahead_s)
        return slewed_s if slewed_s > SLEW_LIMIT * (self.last.monotonic_s - self.first.monotonic_s) + 1e-4 else 0.0

    def monotonic_s(self, realtime_s: float) -> float:
        """CLOCK_MONOTONIC of a stamp."""
        first, last = self.first, self.last
        near_s = realtime_s - first.ahead_s
        span_s = last.monotonic_s - first.monotonic_s
        if span_s <= 0:
            return near_s
        share = min(max((near_s - first.monotonic_s) / span_s, 0.0), 1.0)
        return realtime_s - first.ahead_s - share * (last.ahead_s - first.ahead_s)
