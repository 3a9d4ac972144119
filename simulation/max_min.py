"""Max-min fair rates by progressive filling (Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2).

All rates grow alike; when a link is full its flows are fixed, when a flow has reached its own limit it is fixed there;
the rest grow on. The result is feasible, and no flow can be raised without lowering one that has no more than it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def max_min(
    paths: Sequence[Sequence[int]], limits: Sequence[float], capacities: Mapping[int, float] | Sequence[float]
) -> list[float]:
    """The rate of each flow.

    `paths[i]`: the links flow i crosses, each once; `limits[i]`: what it can send at most (inf: anything);
    `capacities[link]`. One unit throughout, such as bytes per second. Raises ValueError for a flow that nothing limits.
    """
    rates = [0.0] * len(paths)
    members: dict[int, list[int]] = {}
    for flow, path in enumerate(paths):
        for link in path:
            members.setdefault(link, []).append(flow)
    own = list(limits)
    for link in [link for link, flows in members.items() if len(flows) == 1]:
        # a link of one flow is a limit of that flow
        (flow,) = members.pop(link)
        own[flow] = min(own[flow], capacities[link])
    left = {link: float(capacities[link]) for link in members}
    growing = {link: len(flows) for link, flows in members.items()}
    fixed = [False] * len(paths)
    by_limit = sorted(range(len(paths)), key=own.__getitem__, reverse=True)

    def fix(flow: int, rate: float) -> None:
        rates[flow] = rate
        fixed[flow] = True
        for link in paths[flow]:
            if link in growing:
                growing[link] -= 1
                left[link] -= rate
                if not growing[link]:
                    del growing[link]

    while by_limit:
        flow = by_limit[-1]
        if fixed[flow]:
            by_limit.pop()
            continue
        share, full = min(((left[link] / count, link) for link, count in growing.items()), default=(float("inf"), -1))
        if own[flow] <= share:
            if own[flow] == float("inf"):
                raise ValueError(f"flow {flow} crosses no link and has no limit: its rate is not defined")
            fix(flow, own[flow])
            by_limit.pop()
        else:
            for each in members[full]:
                if not fixed[each]:
                    # rounding may leave a full link a little below nothing
                    fix(each, max(share, 0.0))
    return rates
