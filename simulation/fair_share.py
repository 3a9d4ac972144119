"""Links shared max-min fair at every moment.

Only the flows that a change can reach are computed anew. Max-min rates are the only ones at which each flow has a
bottleneck: its own limit, or a full link on which none is faster. So a flow that has one still is left alone, and so is
everything that only it would have reached.
"""

from __future__ import annotations

import math

from simulation.flows import Flow, FlowNetwork, Link
from simulation.max_min import max_min


class FairNetwork(FlowNetwork):
    """Max-min fair by flow, and at once."""

    def _share(self, now_s: float, moved: dict[Flow, None]) -> None:
        for flow in self._changed:
            flow.advance(now_s)
            if not self._fits(flow, now_s, moved):
                self._share_out(flow, now_s, moved)
        for flow in self._relieved:
            if flow not in moved and not self._has_bottleneck(flow) and not self._fits(flow, now_s, moved):
                self._share_out(flow, now_s, moved)

    def _fits(self, flow: Flow, now_s: float, moved: dict[Flow, None]) -> bool:
        """Give a flow all it can use where that concerns nobody else: there is room, or what it gives back was not
        missing."""
        limit, rate = flow.limit, flow.rate
        for link in flow.path:
            if link.tight:
                if not link.known:
                    self._look(link)
                room = link.capacity - link.load
                if limit > rate + room if limit > rate else room <= self._tolerance:
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
                if link.tight:
                    if not link.known:
                        self._look(link)
                    rate = min(rate, link.capacity - link.load + flow.rate)
            self._set_rate(flow, max(rate, 0.0), now_s, moved)
            return
        left: dict[int, float] = {}
        paths = []
        for flow in inside:
            path = []
            for link in flow.path:
                if link.tight:
                    number = link.number
                    path.append(number)
                    if number not in left:
                        room = link.capacity - sum([each.rate for each in link.flows if each not in inside])
                        left[number] = room if room > 0.0 else 0.0
            paths.append(path)
        rates = max_min(paths, [flow.limit for flow in inside], left)
        for flow, rate in zip(inside, rates, strict=True):
            self._set_rate(flow, rate, now_s, moved)

    def _without_bottleneck(self, inside: dict[Flow, None]) -> dict[Flow, None]:
        """Flows outside that have to be computed too: their bottleneck is gone, or they are faster than a flow inside
        that has none."""
        found: dict[Flow, None] = {}
        seen = set(inside)
        tolerance = self._tolerance
        for flow in inside:
            bound = self._has_bottleneck(flow)
            for link in flow.path:
                if not link.tight:
                    continue
                if not link.known:
                    self._look(link)
                full = link.fastest is not None
                faster_than = flow.rate + tolerance if full and not bound else math.inf
                for other in link.flows:
                    if other.rate > faster_than:
                        if other not in inside:
                            found[other] = None
                    elif other not in seen:
                        seen.add(other)
                        # its own limit first: most have that for a bottleneck
                        short = other.limit - other.rate
                        if not -tolerance <= short <= tolerance and not self._has_bottleneck(other):
                            found[other] = None
        return found

    def _has_bottleneck(self, flow: Flow) -> bool:
        rate, tolerance = flow.rate, self._tolerance
        if rate >= flow.limit - tolerance:
            return rate <= flow.limit + tolerance
        for link in flow.path:
            if link.tight:
                if not link.known:
                    self._look(link)
                if link.fastest is not None and rate >= link.fastest - tolerance:
                    return True
        return False

    def _look(self, link: Link) -> None:
        rates = [flow.rate for flow in link.flows]
        link.load = load = sum(rates)
        link.fastest = max(rates) if load >= link.capacity - self._tolerance else None
        link.known = True
