"""Flows on links in virtual time: who sends how fast, until all of it has crossed.

A flow sends what exists of its stream (`release.Piece`s) at the rate that the network gives it. While it waits for more
to exist it sends at the rate at which more comes into being, and leaves the rest of its share to others. How links are
shared is a subclass: `fair_share.FairNetwork`, `shortest_first.ShortestFirstNetwork`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulation.clock import VirtualClock
from simulation.release import Piece


@dataclass(eq=False, slots=True)
class Link:
    """One link of `capacity` bytes per second and the flows on it.

    `tight`: together they could fill it; the others limit nobody. `load` and `fastest` (the highest rate, None where
    there is room) hold while `known`.
    """

    number: int
    capacity: float
    # insertion order, not a set's: rates are sums of floats, and the same file must give the same bytes
    flows: dict[Flow, None] = field(default_factory=dict)
    tight: bool = False
    known: bool = False
    load: float = 0.0
    fastest: float | None = None
    carried_bytes: float = 0.0


@dataclass(eq=False, slots=True)
class Flow:
    """One flow over `path`. `sent_bytes` had crossed at `since_s`; `waiting`: for more to exist."""

    number: int  # in the order of starts
    path: tuple[Link, ...]
    pieces: tuple[Piece, ...]
    on_done: Callable[[float], None]
    peak: float  # bytes per second that the narrowest link of its path carries
    at_piece: int = 0
    sent_bytes: float = 0.0
    since_s: float = 0.0
    rate: float = 0.0
    waiting: bool = True
    limit: float = 0.0
    plans: int = 0  # how often what happens next to it was planned: an older plan is void

    def set_limit(self) -> None:
        """`limit`: bytes per second that it can use, now that it waits or does not, in this piece."""
        self.limit = min(self.pieces[self.at_piece].bytes_per_s, self.peak) if self.waiting else self.peak

    def advance(self, now_s: float) -> None:
        """Count what crossed since the last time."""
        self.sent_bytes += self.rate * (now_s - self.since_s)
        self.since_s = now_s

    @property
    def total_bytes(self) -> float:
        """All of its stream, what does not exist yet included."""
        return self.pieces[-1].level_bytes


class FlowNetwork:
    """Links of `capacities` (bytes per second, by number) and the flows on them; `recomputed` counts rates."""

    def __init__(
        self,
        clock: VirtualClock,
        capacities: Sequence[float],
        *,
        peak: float | None = None,
    ) -> None:
        """`peak`: what one flow can send at most, where every path has a link no wider than that."""
        self._clock = clock
        self.links = [Link(number, capacity) for number, capacity in enumerate(capacities)]
        self._peak = max(capacities, default=0.0) if peak is None else peak
        self._tolerance = 1e-9 * self._peak
        self._changed: dict[Flow, None] = {}
        self._relieved: dict[Flow, None] = {}
        self._started = 0
        self.recomputed = 0
        clock.after_each_moment(self._settle)

    @property
    def carried_bytes(self) -> list[float]:
        """Of every link, by number: flows that have ended, and after `close` the others too."""
        return [link.carried_bytes for link in self.links]

    def start(self, path: tuple[int, ...], pieces: tuple[Piece, ...], on_done: Callable[[float], None]) -> Flow:
        """A flow that may send from now on; `on_done(now_s)` is called once all of its last piece has crossed."""
        links = tuple(self.links[number] for number in path)
        self._started += 1
        peak = min(link.capacity for link in links)
        flow = Flow(self._started, links, pieces, on_done, peak, since_s=self._clock.now_s)
        while pieces[flow.at_piece].end_s <= flow.since_s:
            flow.at_piece += 1
        flow.waiting = pieces[flow.at_piece].at(flow.since_s) <= 0
        flow.set_limit()
        for link in links:
            link.flows[flow] = None
            link.tight = self._could_fill(link)
            link.known = False
        self._changed[flow] = None
        return flow

    def close(self, now_s: float) -> None:
        """The run is over: count what flows that have not ended carried."""
        for flow in {flow: None for link in self.links for flow in link.flows}:
            flow.advance(now_s)
            for link in flow.path:
                link.carried_bytes += flow.sent_bytes

    def _could_fill(self, link: Link) -> bool:
        return len(link.flows) > 1 and len(link.flows) * self._peak > link.capacity

    def _settle(self, now_s: float) -> None:
        """Give every flow its share again, after all that changed at this moment."""
        if self._changed or self._relieved:
            moved: dict[Flow, None] = {}
            self._share(now_s, moved)
            for flow in {**self._changed, **moved}:
                self._plan(flow)
            self._changed.clear()
            self._relieved.clear()

    def _share(self, now_s: float, moved: dict[Flow, None]) -> None:
        """Set the rates that follow from what changed in `_changed` (other limits) and `_relieved` (a flow next to
        them has ended); those that are others now go to `moved`."""
        raise NotImplementedError

    @staticmethod
    def _set_rate(flow: Flow, rate: float, now_s: float, moved: dict[Flow, None]) -> None:
        if rate != flow.rate:
            flow.advance(now_s)
            flow.rate = rate
            moved[flow] = None
            for link in flow.path:
                link.known = False

    # -- what happens next to a flow ----------------------------------------------------------------------------

    def _plan(self, flow: Flow) -> None:
        flow.plans += 1
        number, piece, now_s = flow.plans, flow.pieces[flow.at_piece], flow.since_s
        if flow.waiting and flow.rate < piece.bytes_per_s - self._tolerance:
            # a link holds it back: it falls behind its stream, which changes nothing for anybody now
            flow.waiting = False
            flow.set_limit()
        if not flow.waiting:
            gain = flow.rate - piece.bytes_per_s
            if gain > 0:
                caught_up_s = now_s + max(piece.at(now_s) - flow.sent_bytes, 0.0) / gain
                if caught_up_s <= piece.end_s:
                    self._clock.at(caught_up_s, lambda at_s: self._caught_up(flow, number, at_s))
                    return
        if piece.end_s < math.inf:
            self._clock.at(piece.end_s, lambda at_s: self._next_piece(flow, number, at_s))

    def _caught_up(self, flow: Flow, number: int, now_s: float) -> None:
        if number != flow.plans:
            return
        flow.advance(now_s)
        if flow.at_piece == len(flow.pieces) - 1:
            self._end(flow, now_s)
            return
        flow.sent_bytes = flow.pieces[flow.at_piece].at(now_s)
        flow.waiting = True
        flow.set_limit()
        self._changed[flow] = None

    def _next_piece(self, flow: Flow, number: int, now_s: float) -> None:
        if number != flow.plans:
            return
        flow.advance(now_s)
        before = flow.limit
        flow.at_piece += 1
        if flow.waiting:
            piece = flow.pieces[flow.at_piece]
            # a layer, or a part of a byte that rounding left
            flow.waiting = piece.level_bytes - flow.sent_bytes <= 1.0 and flow.at_piece < len(flow.pieces) - 1
            if flow.waiting:
                flow.sent_bytes = piece.level_bytes
        flow.set_limit()
        if flow.limit != before:
            self._changed[flow] = None
        else:
            self._plan(flow)

    def _end(self, flow: Flow, now_s: float) -> None:
        flow.plans += 1
        for link in flow.path:
            del link.flows[flow]
            link.known = False
            link.carried_bytes += flow.total_bytes
            if link.tight:
                self._relieved.update(link.flows)
                link.tight = self._could_fill(link)
        self._changed.pop(flow, None)
        self._relieved.pop(flow, None)
        flow.on_done(now_s)
