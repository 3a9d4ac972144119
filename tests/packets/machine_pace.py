"""Whether the machine itself keeps time: how late it wakes a program that sleeps while nothing of ours runs.

A hypervisor that is busy elsewhere wakes its guests milliseconds late, and calls none of it stolen. A link of some
Mbit/s then carries 0.9 of its rate, and no figure of a packet test holds.
"""

from __future__ import annotations

import time

SLEEPS, SLEEP_S = 300, 0.001
#: Of the 95th percentile. Measured on two idle cores: 0.13 ms in a good moment, 0.7 to 5 ms in an hour in which links
#: carried 0.55 to 0.92 of their rate.
LATE_S = 0.0005
PAUSE_S = 5.0


def wakes_late_by_s() -> float:
    """95th percentile, over 300 sleeps of a millisecond."""
    late_s = []
    for _ in range(SLEEPS):
        began_s = time.monotonic()
        time.sleep(SLEEP_S)
        late_s.append(time.monotonic() - began_s - SLEEP_S)
    return sorted(late_s)[int(0.95 * SLEEPS)]


class Patience:
    """Waits for a machine that keeps time, for `left_s` in all."""

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s

    def late_s(self) -> float | None:
        """None as soon as the machine keeps time; by how much it wakes late, where patience is at an end."""
        began_s = time.monotonic()
        while (late_s := wakes_late_by_s()) > LATE_S:
            if time.monotonic() - began_s >= self.left_s:
                self.left_s = 0.0
                return late_s
            time.sleep(PAUSE_S)
        self.left_s -= time.monotonic() - began_s
        return None
