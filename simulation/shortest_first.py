"""Shortest remaining first over the whole fabric (`routing: srpt`): flows are served in the order of what remains.

*Remaining* is all of a flow's stream that has not crossed, what does not exist yet included. Flows are taken in the
order of (remaining, order of start), and each gets what is left of the tightest link on its path. The order is taken
anew when a flow starts, ends or runs out of bytes to send, and when one overtakes another on a full link.

Only flows that a change can reach are computed anew, in that order: of those behind a flow whose rate has changed, on a
link that is or was full. Those before it do not notice.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from itertools import pairwise
from typing import Any

from simulation.flows import Flow, FlowNetwork, Link

#: One flow has overtaken another when this much less remains of it. Looked at while they are even, it would be the
#: same order as before, and that moment would never end.
_AHEAD_BYTES = 1.0

#: Of flows, what remains (bytes) and the number: the order in which they are served.
Places = dict[Flow, tuple[float, int]]


class ShortestFirstNetwork(FlowNetwork):
    """Preemptive and greedy, by what remains of each flow."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._orders: Counter[int] = Counter()  # by link: how often its order was taken; an older watch is void

    def _share(self, now_s: float, moved: dict[Flow, None]) -> None:
        for flow in self._changed:
            flow.advance(now_s)
        seeds = {**self._changed, **self._relieved}
        places = {flow: _place(flow, now_s) for flow in seeds}
        waiting = [(*place, flow) for flow, place in places.items()]
        heapq.heapify(waiting)
        seen, disturbed = set(seeds), {}
        while waiting:
            *_, flow = heapq.heappop(waiting)
            self.recomputed += 1
            rate = self._left_for(flow, places, now_s)
            if flow not in seeds and abs(rate - flow.rate) <= self._tolerance:
                continue
            tight = [link for link in flow.path if link.tight]
            disturbed.update(dict.fromkeys(tight))
            # where there is room before and after, nobody behind it notices
            felt = [link for link in tight if link.load + max(rate - flow.rate, 0.0) >= link.capacity - self._tolerance]
            self._set_rate(flow, rate, now_s, moved)
            for link in felt:
                for behind in self._behind(flow, link, places, now_s):
                    if behind not in seen:
                        seen.add(behind)
                        heapq.heappush(waiting, (*places[behind], behind))
        for link in disturbed:
            self._orders[link.number] += 1
            self._look(link)
            if link.load >= link.capacity - self._tolerance:
                self._watch(link.number, sorted(link.flows, key=lambda flow: _place(flow, now_s)), now_s)

    def _left_for(self, flow: Flow, places: Places, now_s: float) -> float:
        """What those before it leave of the tightest link on its path."""
        rate = flow.limit
        for link in flow.path:
            if link.tight:
                if not link.known:
                    self._look(link)
                if link.capacity - link.load + flow.rate < rate:
                    place = places[flow]
                    ahead = [each.rate for each in link.flows if _placed(each, places, now_s) < place]
                    rate = min(rate, max(link.capacity - sum(ahead), 0.0))
        return rate

    @staticmethod
    def _behind(flow: Flow, link: Link, places: Places, now_s: float) -> list[Flow]:
        place = places[flow]
        return [each for each in link.flows if _placed(each, places, now_s) > place]

    @staticmethod
    def _look(link: Link) -> None:
        link.load = sum([flow.rate for flow in link.flows])
        link.known = True

    def _watch(self, link: int, queue: list[Flow], now_s: float) -> None:
        """Come back when the first flow overtakes one before it: it is slower there because of another link, or
        because no more of it exists."""
        soonest_s, pair = math.inf, None
        for ahead, behind in pairwise(queue):
            if behind.rate > ahead.rate:
                apart = _remaining(behind, now_s) - _remaining(ahead, now_s) + _AHEAD_BYTES
                even_s = now_s + apart / (behind.rate - ahead.rate)
                if even_s < soonest_s:
                    soonest_s, pair = even_s, (ahead, behind)
        if pair is not None:
            number, overtaken = self._orders[link], dict.fromkeys(pair)

            def overtakes(at_s: float) -> None:
                if self._orders[link] == number:
                    self._relieved.update(overtaken)

            self._clock.at(soonest_s, overtakes)


def _place(flow: Flow, now_s: float) -> tuple[float, int]:
    return _remaining(flow, now_s), flow.number


def _placed(flow: Flow, places: Places, now_s: float) -> tuple[float, int]:
    """Its place at this moment: once it is looked at, rounding does not change it any more."""
    if flow not in places:
        places[flow] = _place(flow, now_s)
    return places[flow]


def _remaining(flow: Flow, now_s: float) -> float:
    return flow.total_bytes - flow.sent_bytes - flow.rate * (now_s - flow.since_s)
