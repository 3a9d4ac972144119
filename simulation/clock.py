"""Virtual time: actions in order of their moment, those of one moment in the order they were planned.

Not SimPy: its timeouts are relative, and now + (t - now) may miss t by a rounding error, which would take a prefill's
planned end and the look at its stream to different moments.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[float], None]


class VirtualClock:
    """Planned actions, and settlers: what is called once after the last action of each moment, so that any number of
    changes at one moment are answered together."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.actions = 0  # how many have run: the work of a simulation, whatever the machine
        self._planned: list[tuple[float, int, Action]] = []
        self._order = 0
        self._settlers: list[Action] = []

    def at(self, at_s: float, action: Action) -> None:
        """Call `action(now_s)` at `at_s`. Raises ValueError for a moment that has passed."""
        if at_s < self.now_s:
            raise ValueError(f"planned for {at_s} s at {self.now_s} s: virtual time does not run backwards")
        self._order += 1
        heapq.heappush(self._planned, (at_s, self._order, action))

    def after_each_moment(self, settler: Action) -> None:
        """Call `settler(now_s)` whenever every action planned for a moment has run."""
        self._settlers.append(settler)

    def run(self, until_s: float) -> None:
        """Act until nothing is planned, or the next action is later than `until_s`."""
        planned = self._planned
        while planned and planned[0][0] <= until_s:
            self.now_s = now_s = planned[0][0]
            while planned and planned[0][0] == now_s:
                self.actions += 1
                heapq.heappop(planned)[2](now_s)
            for settler in self._settlers:
                settler(now_s)
