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

Allocate = Callable[[Sequence["Flow"], Sequence[Sequence[int]], Sequence[float], Sequence[float]], list[float]]


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
    plans: int = 0  # how often what happens next to it was planned: an older plan is void

    @property
    def limit(self) -> float:
        """Bytes per second it can use."""
        return min(self.pieces[self.at_piece].bytes_per_s, self.peak) if self.waiting else self.peak

    @property
    def left_bytes(self) -> float:
        """Bytes that have not crossed at `since_s`."""
        return self.pieces[-1].level_bytes - self.sent_bytes

    def advance(self, now_s: float) -> None:
        """Count what crossed since the last time."""
        self.sent_bytes += self.rate * (now_s - self.since_s)
        self.since_s = now_s


def fair(
    flows: Sequence[Flow], paths: Sequence[Sequence[int]], limits: Sequence[float], capacities: Sequence[float]
) -> list[float]:
    """Max-min fair rates."""
    return max_min(paths, limits, capacities)


class FlowNetwork:
    """Links of `capacities` (bytes per second, by number) and the flows on them; `carried_bytes` by link."""

    def __init__(
        self,
        clock: VirtualClock,
        capacities: Sequence[float],
        allocate: Allocate = fair,
        *,
        peak: float | None = None,
    ) -> None:
        """`peak`: what one flow can send at most, where every path has a link no wider than that."""
        self._clock = clock
        self._capacities = list(capacities)
        self._allocate = allocate
        self._peak = max(self._capacities, default=0.0) if peak is None else peak
        # insertion order, not a set's: rates are sums of floats, and the same file must give the same bytes
        self._on: list[dict[Flow, None]] = [{} for _ in capacities]
        self._changed: dict[Flow, None] = {}
        self.carried_bytes = [0.0] * len(self._capacities)
        self.recomputed = 0
        clock.after_each_moment(self._settle)

    def start(self, path: tuple[int, ...], pieces: tuple[Piece, ...], on_done: Callable[[float], None]) -> Flow:
        """A flow that may send from now on; `on_done(now_s)` is called once all of its last piece has crossed."""
        flow = Flow(path, pieces, on_done, min(self._capacities[link] for link in path), since_s=self._clock.now_s)
        while pieces[flow.at_piece].end_s <= flow.since_s:
            flow.at_piece += 1
        flow.waiting = pieces[flow.at_piece].at(flow.since_s) <= 0
        for link in path:
            self._on[link][flow] = None
        self._changed[flow] = None
        return flow

    def close(self, now_s: float) -> None:
        """The run is over: count what flows that have not ended carried."""
        for flow in {flow: None for on in self._on for flow in on}:
            flow.advance(now_s)
            for link in flow.path:
                self.carried_bytes[link] += flow.sent_bytes

    # -- rates --------------------------------------------------------------------------------------------------

    def _loose(self, link: int) -> bool:
        """Whether a link is wide enough for all its flows at their peaks, so that it limits and joins none of them."""
        on = self._on[link]
        return len(on) <= 1 or len(on) * self._peak <= self._capacities[link]

    def _settle(self, now_s: float) -> None:
        if not self._changed:
            return
        seen: dict[Flow, None] = {}
        for seed in self._changed:
            if seed not in seen:
                self._set_rates(self._joined(seed, seen), now_s)
        self._changed.clear()

    def _joined(self, seed: Flow, seen: dict[Flow, None]) -> list[Flow]:
        """The flows that links which could be full join to `seed`."""
        seen[seed] = None
        found, links = [seed], set()
        for flow in found:
            for link in flow.path:
                if link in links:
                    continue
                links.add(link)
                if self._loose(link):
                    continue
                for other in self._on[link]:
                    if other not in seen:
                        seen[other] = None
                        found.append(other)
        return found

    def _set_rates(self, flows: list[Flow], now_s: float) -> None:
        self.recomputed += len(flows)
        if len(flows) == 1:
            rates = [flows[0].limit]
        else:
            tight = {link for flow in flows for link in flow.path if not self._loose(link)}
            paths = [[link for link in flow.path if link in tight] for flow in flows]
            rates = self._allocate(flows, paths, [flow.limit for flow in flows], self._capacities)
        for flow, rate in zip(flows, rates, strict=True):
            if rate != flow.rate or flow in self._changed:
                flow.advance(now_s)
                flow.rate = rate
                self._plan(flow)

    # -- what happens next to a flow ----------------------------------------------------------------------------

    def _plan(self, flow: Flow) -> None:
        flow.plans += 1
        number, piece, now_s = flow.plans, flow.pieces[flow.at_piece], flow.since_s
        if flow.waiting and flow.rate < piece.bytes_per_s:
            # a link holds it back: it falls behind its stream, which changes nothing for anybody now
            flow.waiting = False
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
        if flow.limit != before:
            self._changed[flow] = None
        else:
            self._plan(flow)

    def _end(self, flow: Flow, now_s: float) -> None:
        flow.plans += 1
        for link in flow.path:
            on = self._on[link]
            was_loose = self._loose(link)
            del on[flow]
            self.carried_bytes[link] += flow.pieces[-1].level_bytes
            if not was_loose:
                self._changed.update(on)
        self._changed.pop(flow, None)
        flow.on_done(now_s)
