"""Shortest remaining first over the whole fabric (`routing: srpt`): flows are served in the order of what remains.

*Remaining* is all of a flow's stream that has not crossed, what does not exist yet included. Flows are taken in the
order of (remaining, order of start), and each gets what is left of the tightest link on its path. The order is taken
anew when a flow starts, ends or runs out of bytes to send, and when one overtakes another on a full link.

Only flows that links which could be full join to a change are computed anew.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

from simulation.flows import Flow, FlowNetwork, Link

#: One flow has overtaken another when this much less remains of it. Looked at while they are even, it would be the
#: same order as before, and that moment would never end.
_AHEAD_BYTES = 1.0


class ShortestFirstNetwork(FlowNetwork):
    """Pre-emptive and greedy, by what remains of each flow."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._orders: Counter[int] = Counter()  # by link: how often its order was taken; an older watch is void

    def _share(self, now_s: float, moved: dict[Flow, None]) -> None:
        for flow in self._changed:
            flow.advance(now_s)
        flows, links = self._joined({**self._changed, **self._relieved})
        self.recomputed += len(flows)
        order = sorted(flows, key=lambda flow: (_remaining(flow, now_s), flow.number))
        left = {link.number: link.capacity for link in links}
        on: dict[int, list[Flow]] = {link.number: [] for link in links}
        for flow in order:
            tight = [link.number for link in flow.path if link.tight]
            rate = max(min([flow.limit, *[left[link] for link in tight]]), 0.0)
            for link in tight:
                left[link] -= rate
                on[link].append(flow)
            self._set_rate(flow, rate, now_s, moved)
        for link, queue in on.items():
            self._orders[link] += 1
            if left[link] <= self._tolerance:
                self._watch(link, queue, now_s)

    def _joined(self, seeds: dict[Flow, None]) -> tuple[dict[Flow, None], list[Link]]:
        """The flows that these can reach over links that could be full, and those links."""
        flows, links = dict(seeds), {}
        waiting = list(seeds)
        while waiting:
            for link in waiting.pop().path:
                if link.tight and link.number not in links:
                    links[link.number] = link
                    for flow in link.flows:
                        if flow not in flows:
                            flows[flow] = None
                            waiting.append(flow)
        return flows, list(links.values())

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


def _remaining(flow: Flow, now_s: float) -> float:
    return flow.total_bytes - flow.sent_bytes - flow.rate * (now_s - flow.since_s)
