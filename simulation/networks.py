"""What carries the KV: packets shared fairly, exclusive circuits, or nothing at all (the ceiling).

A network is told when a request's KV may move (`placed`: its decode instance and its stream are known) and says when a
part of it has arrived (`on_part(job, part, now_s)`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from controllers.core.calendar import SAME_INSTANT_S, Window
from controllers.core.reservations import Reservations
from simulation.clock import VirtualClock
from simulation.constants import Constants
from simulation.fair_share import FairNetwork
from simulation.flows import Flow, FlowNetwork
from simulation.job import Sent, SimulatedRequest
from simulation.packet_fabric import PacketFabric
from simulation.release import Piece, finish_s, first_byte_s
from simulation.shortest_first import ShortestFirstNetwork
from workloads.flow_hash import hashed_uplink

OnPart = Callable[[SimulatedRequest, str, float], None]

#: A window that is due and cannot start yet is asked for again after this long, as the controller does.
RETRY_S = 0.001


class Network(Protocol):
    """A KV fabric in virtual time; `alike`: rank 0 stands for every rank of a transfer."""

    alike: bool

    def placed(self, job: SimulatedRequest, now_s: float) -> None:
        """The KV of `job` may move."""

    def decided(self, now_s: float) -> None:
        """The controller has handled an event."""

    def close(self, now_s: float) -> None:
        """The run is over."""


def parts_of(job: SimulatedRequest) -> list[str]:
    """The parts of a request's KV, in the order in which they cross."""
    assert job.stream is not None
    if job.stream.mode == "pull":
        return ["all"]
    return ["head", "tail"] if job.stream.head_bytes else ["tail"]


class Ceiling:
    """No network: KV arrives the moment it exists, so all of it has at the prefill's end."""

    alike = True

    def __init__(self, clock: VirtualClock, on_part: OnPart) -> None:
        self._clock, self._on_part = clock, on_part

    def placed(self, job: SimulatedRequest, now_s: float) -> None:
        assert job.stream is not None
        self._clock.at(max(job.stream.end_s, now_s), lambda at_s: self._arrived(job, at_s))

    def _arrived(self, job: SimulatedRequest, now_s: float) -> None:
        job.ranks[0] = Sent(now_s, now_s)
        for part in parts_of(job):
            self._on_part(job, part, now_s)

    def decided(self, now_s: float) -> None:
        """Nothing waits for a decision."""

    def close(self, now_s: float) -> None:
        """Nothing is on its way."""


class PacketNetwork:
    """Routers: each rank of a transfer is a flow of its own, its path chosen and its links shared by the
    fabric's rule.

    `recorded`: uplinks by request and rank that an emulation took; they go before the hash. Where a pair keeps its
    connection (`ecmp_unit: pair`) transfers of one pair and rank follow each other.
    """

    def __init__(
        self, clock: VirtualClock, fabric: PacketFabric, on_part: OnPart, recorded: Mapping[tuple[str, int], int]
    ) -> None:
        self._clock, self._fabric, self._on_part, self._recorded = clock, fabric, on_part, recorded
        self.alike = fabric.alike
        sharing = ShortestFirstNetwork if fabric.shortest_first else FairNetwork
        self.flows: FlowNetwork = sharing(clock, fabric.capacities, peak=fabric.link_bytes_per_s)
        self._busy: dict[tuple[str, str, int], list[Callable[[], None]]] = {}

    def placed(self, job: SimulatedRequest, now_s: float) -> None:
        """Every rank starts; the transfer is over with the slowest."""
        assert job.placement is not None
        ranks = 1 if self.alike else self._fabric.ranks
        missing = set(range(ranks))

        def arrived(rank: int, at_s: float) -> None:
            job.ranks[rank].last_byte_s = at_s
            missing.discard(rank)
            if not missing:
                for part in parts_of(job):
                    self._on_part(job, part, at_s)

        for rank in range(ranks):
            self._send(job, rank, arrived)

    def _send(self, job: SimulatedRequest, rank: int, arrived: Callable[[int, float], None]) -> None:
        assert job.placement is not None
        fabric, decode = self._fabric, job.placement.decode
        kept = fabric.ecmp_unit == "pair"
        flow_id = (job.prefill, decode, str(rank)) if kept else (job.request.id, str(rank))
        routes, uplink = fabric.routes(job.prefill, decode, rank), None
        if fabric.hashed and len(routes[0]) > 2:  # within a leaf there is nothing to choose
            uplink = self._recorded.get((job.request.id, rank))
            if uplink is None:
                uplink = hashed_uplink(fabric.ecmp_seed, flow_id, len(routes))
        path = routes[uplink or 0]
        connection = (job.prefill, decode, rank)

        def start() -> None:
            job.ranks[rank] = Sent(first_byte_s(job.pieces, 0.0, self._clock.now_s), uplink=uplink)
            self.flows.start(path, job.pieces, done)

        def done(at_s: float) -> None:
            if kept:
                waiting = self._busy[connection]
                if waiting:
                    waiting.pop(0)()
                else:
                    del self._busy[connection]
            arrived(rank, at_s)

        if not kept:
            start()
        elif connection in self._busy:
            self._busy[connection].append(start)
        else:
            self._busy[connection] = []
            start()

    def decided(self, now_s: float) -> None:
        """Packets ask nobody."""

    def close(self, now_s: float) -> None:
        self.flows.close(now_s)


class CircuitNetwork:
    """Exclusive links: starts the windows of the reservations when they are due, as the controller's shell does.

    All ranks of an instance switch and send alike, so one of them stands for all.
    """

    alike = True

    def __init__(
        self,
        clock: VirtualClock,
        core: Reservations,
        jobs: Mapping[str, SimulatedRequest],
        on_part: OnPart,
        *,
        bytes_per_s: float,
        reconfiguration_s: float,
        constants: Constants,
    ) -> None:
        self._clock, self._core, self._jobs, self._on_part = clock, core, jobs, on_part
        self._bytes_per_s = bytes_per_s
        self._switch_s = reconfiguration_s + constants.switch_excess_s
        self._told_s = constants.live_told_s
        self._early: dict[str, list[tuple[Window, float]]] = {}
        self._connection_free_s: dict[str, float] = {}
        self._alarm_s = math.inf

    def decided(self, now_s: float) -> None:
        """Start what is due, and come back when the next window is."""
        next_s = self._core.next_due_s()
        if next_s is not None and next_s <= now_s + SAME_INSTANT_S:
            for window in self._core.due(now_s):
                if window.state == "dark":
                    self._clock.at(now_s + self._switch_s, lambda at_s, window=window: self._switched(window, at_s))  # type: ignore[misc]
                else:
                    self._live(window, now_s)
            next_s = self._core.next_due_s()
        if next_s is None:
            self._alarm_s = math.inf
            return
        next_s = next_s if next_s > now_s else now_s + RETRY_S
        if next_s != self._alarm_s:
            self._alarm_s = next_s
            self._clock.at(next_s, self._alarm)

    def _alarm(self, now_s: float) -> None:
        if now_s == self._alarm_s:
            self._alarm_s = math.inf
            self.decided(now_s)

    def _switched(self, window: Window, now_s: float) -> None:
        self._core.live(window.id, now_s)
        if window.state == "live":
            self._live(window, now_s)
        self.decided(now_s)

    def _live(self, window: Window, now_s: float) -> None:
        job = self._jobs[window.request_id]
        if job.stream is None:
            self._early.setdefault(window.request_id, []).append((window, now_s))
        else:
            self._send(job, window, now_s, now_s + self._told_s)

    def placed(self, job: SimulatedRequest, now_s: float) -> None:
        """Its windows may be live already."""
        for window, live_s in self._early.pop(job.request.id, ()):
            self._send(job, window, live_s, max(live_s + self._told_s, now_s))

    def _send(self, job: SimulatedRequest, window: Window, live_s: float, told_s: float) -> None:
        assert job.stream is not None
        told = [window.part, live_s, told_s, None]
        job.told_live.append(told)
        first = job.stream.head_bytes if window.part == "tail" else 0
        end = job.stream.head_bytes if window.part == "head" else job.stream.total_bytes
        # a connection is first in, first out: the tail never overtakes the head
        free_s = max(told_s, self._connection_free_s.get(job.request.id, 0.0))
        done_s = finish_s(job.pieces, first, end, free_s, self._bytes_per_s)
        self._connection_free_s[job.request.id] = done_s
        if not job.ranks:
            job.ranks[0] = Sent(first_byte_s(job.pieces, first, free_s))
        self._clock.at(done_s, lambda at_s: self._sent(job, told, at_s))

    def _sent(self, job: SimulatedRequest, told: list, now_s: float) -> None:
        told[3] = now_s
        part = told[0]
        if part in ("tail", "all"):
            job.ranks[0].last_byte_s = now_s
            self._connection_free_s.pop(job.request.id, None)
        self._on_part(job, part, now_s)

    def close(self, now_s: float) -> None:
        """Windows that are open stay open."""


__all__ = ["Ceiling", "CircuitNetwork", "Flow", "Network", "PacketNetwork", "Piece", "parts_of"]
