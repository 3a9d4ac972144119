"""Max-min fair rates by progressive filling (Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2).

All rates grow alike; when a link is full its flows are fixed, when a flow has reached its own limit it is fixed there;
the rest grow on. The result is feasible, and no flow can be raised without lowering one that has no more than it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def max_min(
    paths: Sequence[Sequence[int]], limits: Sequence[float], capacities: Mapping[int, float] | Sequence[float]
) -> list[float]:
    """The rate of each flow.

    `paths[i]`: the links flow i crosses, each once; `limits[i]`: what it can send at most (inf: anything);
    `capacities[link]`. One unit throughout, such as bytes per second. Raises ValueError for a flow that nothing limits.
    """
    rates = [0.0] * len(paths)
    own = list(limits)
    members: dict[int, list[int]] = {}
    for flow, path in enumerate(paths):
        for link in path:
            if link in members:
                members[link].append(flow)
            else:
                members[link] = [flow]
    left: dict[int, float] = {}
    growing: dict[int, int] = {}
    for link, flows in members.items():
        if len(flows) > 1:
            left[link], growing[link] = float(capacities[link]), len(flows)
        elif capacities[link] < own[flows[0]]:
            # a link of one flow is a limit of that flow
            own[flows[0]] = capacities[link]
    fixed = [False] * len(paths)
    by_limit = sorted(range(len(paths)), key=own.__getitem__, reverse=True)
    while by_limit:
        flow = by_limit[-1]
        if fixed[flow]:
            by_limit.pop()
            continue
        share, full = math.inf, -1
        for link, count in growing.items():
            each = left[link] / count
            if each < share or (each == share and link < full):
                share, full = each, link
        if own[flow] <= share:
            if own[flow] == math.inf:
                raise ValueError(f"flow {flow} crosses no link and has no limit: its rate is not defined")
            rate, now_fixed = own[flow], [flow]
            by_limit.pop()
        else:
            # rounding may leave a full link a little below nothing
            rate, now_fixed = max(share, 0.0), [each for each in members[full] if not fixed[each]]
        for each_flow in now_fixed:
            rates[each_flow] = rate
            fixed[each_flow] = True
            for link in paths[each_flow]:
                if link in growing:
                    growing[link] -= 1
                    left[link] -= rate
                    if not growing[link]:
                        del growing[link]
    return rates
