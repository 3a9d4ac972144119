"""The reconfiguration of circuits, step by step: what makes packets see a dark time that is never shorter than the
delay.

1. `remove`: every rule into or out of a port of the new pairs is deleted, on every plane;
2. `barrier`: the tables have changed;
3. `purge`: the flow caches are empty, so no packet follows a deleted rule any more (`controllers/ryu_app/purge.py`);
4. `dark_wait`: the reconfiguration delay, counted from the end of that purge; just before its end the switches are
   woken;
5. `install`: the new pairs' rules are sent;
6. `barrier2`: the tables have changed;
7. `purge2`: drops that were cached in the dark are gone; the circuit is live.

A reconfiguration runs in a greenlet of its own and shares its barriers among its pairs, and its purges with whoever
asks meanwhile; none waits for another's delay.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controllers.core import switching
from controllers.core.switching import Pair
from controllers.ryu_app.datapaths import Barrier, Datapaths
from controllers.ryu_app.purge import FlowCaches
from controllers.ryu_app.timing import WAKE_S, sleep_until

STEPS = ("remove", "barrier", "purge", "dark_wait", "install", "barrier2", "purge2")


@dataclass(slots=True)
class Stopwatch:
    """How long each step took, wall seconds."""

    steps_s: dict[str, float] = field(default_factory=dict)
    _last_s: float = field(default_factory=time.monotonic)

    def lap(self, step: str) -> None:
        """The step ends now."""
        now_s = time.monotonic()
        self.steps_s[step] = now_s - self._last_s
        self._last_s = now_s

    @property
    def total_s(self) -> float:
        """All steps so far."""
        return sum(self.steps_s.values())


class Switches:
    """Reconfigures every plane alike. Its methods block their greenlet and raise DatapathFault or UnixctlError."""

    def __init__(self, datapaths: Datapaths, caches: FlowCaches) -> None:
        self._datapaths = datapaths
        self._caches = caches

    def wake(self) -> None:
        """A reconfiguration is about to begin: WAKE_S before it, the switches are woken."""
        self._datapaths.wake()

    def clear(self, dpid: int) -> None:
        """Leave one plane with no circuit: what a switch that has just connected needs."""
        self._datapaths.wait(self._datapaths.send(lambda datapath, plane: switching.clearing(datapath), [dpid]))
        self._caches.purge()

    def replace(self, pairs: Mapping[str, str]) -> Stopwatch:
        """Exactly these circuits stand, without a dark wait: for the time before the run clock."""
        watch = Stopwatch()
        barriers = self._datapaths.send(lambda datapath, plane: switching.clearing(datapath))
        watch.lap("remove")
        self._settle(barriers, watch, "barrier", "purge")
        watch.lap("dark_wait")
        self._install(list(pairs.items()), watch)
        return watch

    def reconfigure(self, pairs: Sequence[Pair], dark_wait_s: float) -> Stopwatch:
        """Move the ports of `pairs` to their new peers; `dark_wait_s` is wall time."""
        watch = Stopwatch()
        barriers = self._datapaths.send_for_pairs(switching.removal, pairs)
        watch.lap("remove")
        self._settle(barriers, watch, "barrier", "purge")
        end_s = time.monotonic() + dark_wait_s
        sleep_until(end_s - WAKE_S)
        self._datapaths.wake()
        sleep_until(end_s)
        watch.lap("dark_wait")
        self._install(pairs, watch)
        return watch

    def _install(self, pairs: Sequence[Pair], watch: Stopwatch) -> None:
        barriers = self._datapaths.send_for_pairs(switching.installation, pairs)
        watch.lap("install")
        self._settle(barriers, watch, "barrier2", "purge2")

    def _settle(self, barriers: Sequence[Barrier], watch: Stopwatch, barrier_step: str, purge_step: str) -> None:
        self._datapaths.wait(barriers)
        watch.lap(barrier_step)
        self._caches.purge()
        watch.lap(purge_step)
