"""Flows on links in virtual time: who sends how fast, until all of it has crossed.

A flow sends what exists of its stream (`release.Piece`s) at its max-min fair rate. While it waits for more to exist it
sends at the rate at which more comes into being, and leaves the rest of its share to others. Only the flows that a
change can reach are computed anew: those joined to it by links that could be full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulation.clock import VirtualClock
from simulation.max_min import max_min
from simulation.release import Piece


@dataclass(eq=False, slots=True)
class Flow:
    """One flow over `path` (links by number). `sent_bytes` had crossed at `since_s`; `waiting`: for more to exist."""

    path: tuple[int, ...]
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


class FlowNetwork:
    """Links of `capacities` (bytes per second, by number) and the flows on them; `carried_bytes` by link."""

    def __init__(
        self,
        clock: VirtualClock,
        capacities: Sequence[float],
        *,
        peak: float | None = None,
    ) -> None:
        """`peak`: what one flow can send at most, where every path has a link no wider than that."""
        self._clock = clock
        self._capacities = list(capacities)
        self._peak = max(self._capacities, default=0.0) if peak is None else peak
        # insertion order, not a set's: rates are sums of floats, and the same file must give the same bytes
        self._on: list[dict[Flow, None]] = [{} for _ in capacities]
        # a link is tight where its flows together could fill it; the others limit nobody
        self._tight = [False] * len(self._capacities)
        self._tolerance = 1e-9 * self._peak
        self._changed: dict[Flow, None] = {}
        self._relieved: dict[Flow, None] = {}
        self.carried_bytes = [0.0] * len(self._capacities)
        self.recomputed = 0
        clock.after_each_moment(self._settle)

    def start(self, path: tuple[int, ...], pieces: tuple[Piece, ...], on_done: Callable[[float], None]) -> Flow:
        """A flow that may send from now on; `on_done(now_s)` is called once all of its last piece has crossed."""
        flow = Flow(path, pieces, on_done, min(self._capacities[link] for link in path), since_s=self._clock.now_s)
        while pieces[flow.at_piece].end_s <= flow.since_s:
            flow.at_piece += 1
        flow.waiting = pieces[flow.at_piece].at(flow.since_s) <= 0
        flow.set_limit()
        for link in path:
            self._on[link][flow] = None
            self._tight[link] = self._could_fill(link)
        self._changed[flow] = None
        return flow

    def close(self, now_s: float) -> None:
        """The run is over: count what flows that have not ended carried."""
        for flow in {flow: None for on in self._on for flow in on}:
            flow.advance(now_s)
            for link in flow.path:
                self.carried_bytes[link] += flow.sent_bytes

    def _could_fill(self, link: int) -> bool:
        on = self._on[link]
        return len(on) > 1 and len(on) * self._peak > self._capacities[link]

    # -- rates --------------------------------------------------------------------------------------------------

    def _settle(self, now_s: float) -> None:
        """Give every flow its share again, after all that changed at this moment.

        Max-min rates are the only ones at which each flow has a bottleneck: its own limit, or a full link on which none
        is faster. So a flow that has one still is left alone, and so is everything that only it would have reached.
        """
        if not self._changed and not self._relieved:
            return
        moved: dict[Flow, None] = {}
        for flow in self._changed:
            flow.advance(now_s)
            if not self._fits(flow, now_s, moved):
                self._share_out(flow, now_s, moved)
        fastest: dict[int, float | None] = {}
        for flow in self._relieved:
            if flow not in moved and not self._has_bottleneck(flow, fastest):
                if not self._fits(flow, now_s, moved):
                    self._share_out(flow, now_s, moved)
                fastest = {}
        for flow in {**self._changed, **moved}:
            self._plan(flow)
        self._changed.clear()
        self._relieved.clear()

    def _fits(self, flow: Flow, now_s: float, moved: dict[Flow, None]) -> bool:
        """Give a flow all it can use where that concerns nobody else: there is room, or what it gives back was not
        missing."""
        limit = flow.limit
        for link in flow.path:
            if self._tight[link]:
                room = self._capacities[link] - sum([each.rate for each in self._on[link]])
                if limit > flow.rate + room if limit > flow.rate else room <= self._tolerance:
                    return False
        self._set_rate(flow, limit, now_s, moved)
        return True

    def _share_out(self, seed: Flow, now_s: float, moved: dict[Flow, None]) -> None:
        """Compute the rates of `seed` and of no more others than it takes for all to have a bottleneck."""
        inside: dict[Flow, None] = {seed: None}
        while True:
            self.recomputed += len(inside)
            self._compute(inside, now_s, moved)
            without = self._without_bottleneck(inside)
            if not without:
                return
            inside.update(without)

    def _compute(self, inside: dict[Flow, None], now_s: float, moved: dict[Flow, None]) -> None:
        """Rates of the flows inside, in what the others leave."""
        if len(inside) == 1:
            (flow,) = inside
            rate = flow.limit
            for link in flow.path:
                if self._tight[link]:
                    room = self._capacities[link] - sum([each.rate for each in self._on[link]])
                    rate = min(rate, room + flow.rate)
            self._set_rate(flow, max(rate, 0.0), now_s, moved)
            return
        left: dict[int, float] = {}
        paths = []
        for flow in inside:
            paths.append([link for link in flow.path if self._tight[link]])
            for link in paths[-1]:
                if link not in left:
                    others = sum([each.rate for each in self._on[link] if each not in inside])
                    left[link] = max(self._capacities[link] - others, 0.0)
        rates = max_min(paths, [flow.limit for flow in inside], left)
        for flow, rate in zip(inside, rates, strict=True):
            self._set_rate(flow, rate, now_s, moved)

    @staticmethod
    def _set_rate(flow: Flow, rate: float, now_s: float, moved: dict[Flow, None]) -> None:
        if rate != flow.rate:
            flow.advance(now_s)
            flow.rate = rate
            moved[flow] = None

    def _without_bottleneck(self, inside: dict[Flow, None]) -> dict[Flow, None]:
        """Flows outside that have to be computed too: their bottleneck is gone, or they are faster than a flow inside
        that has none."""
        fastest: dict[int, float | None] = {}
        found: dict[Flow, None] = {}
        seen = set(inside)
        for flow in inside:
            bound = self._has_bottleneck(flow, fastest)
            for link in flow.path:
                if not self._tight[link]:
                    continue
                full = self._fastest_if_full(link, fastest) is not None
                for other in self._on[link]:
                    if other in inside:
                        continue
                    if not bound and full and other.rate > flow.rate + self._tolerance:
                        found[other] = None
                    elif other not in seen:
                        seen.add(other)
                        if not self._has_bottleneck(other, fastest):
                            found[other] = None
        return found

    def _has_bottleneck(self, flow: Flow, fastest: dict[int, float | None]) -> bool:
        if flow.rate >= flow.limit - self._tolerance:
            return flow.rate <= flow.limit + self._tolerance
        for link in flow.path:
            if self._tight[link]:
                rate = self._fastest_if_full(link, fastest)
                if rate is not None and flow.rate >= rate - self._tolerance:
                    return True
        return False

    def _fastest_if_full(self, link: int, fastest: dict[int, float | None]) -> float | None:
        """The highest rate on a full link; None where there is room. `fastest` remembers."""
        if link not in fastest:
            rates = [flow.rate for flow in self._on[link]]
            fastest[link] = max(rates) if sum(rates) >= self._capacities[link] - self._tolerance else None
        return fastest[link]

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
            on = self._on[link]
            del on[flow]
            self.carried_bytes[link] += flow.pieces[-1].level_bytes
            if self._tight[link]:
                self._relieved.update(on)
                self._tight[link] = self._could_fill(link)
        self._changed.pop(flow, None)
        self._relieved.pop(flow, None)
        flow.on_done(now_s)
