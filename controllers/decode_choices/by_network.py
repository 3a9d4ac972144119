"""Choices that ask when the KV could cross: `circuit-aware`, `network-aware`, `sticky`."""

from __future__ import annotations

from collections.abc import Sequence

from controllers.core.calendar import SAME_INSTANT_S, Gap
from controllers.core.decode_choice import Candidate, by_load
from controllers.core.demand import Demand


class CircuitAware:
    """A decode whose circuit already stands and is free in time, else the earliest gap; ties go to the least loaded."""

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """Algorithm 1, line 4."""
        gaps: dict[str, Gap] = {}
        for candidate in sorted(candidates, key=by_load):
            gap = gaps[candidate.decode] = candidate.gap()
            if gap.stands and gap.live_s <= candidate.wanted_live_s + SAME_INSTANT_S:
                return candidate.decode
        # rounding keeps float noise from overriding the load
        return min(
            candidates, key=lambda candidate: (round(gaps[candidate.decode].live_s, 9), *by_load(candidate))
        ).decode


class NetworkAware:
    """The decode whose KV is predicted to arrive first: what its ports are busy with + the circuit + bytes / R."""

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """Ties go to the least loaded."""
        # rounding keeps float noise from overriding the load
        return min(candidates, key=lambda candidate: (round(candidate.gap().end_s, 9), *by_load(candidate))).decode


class Sticky:
    """What `CircuitAware` does with circuits, where none has to stand: the decode that the prefill instance used last
    if it is free in time, else the earliest; ties go to the least loaded. It tells what placement does apart from what
    circuits do.
    """

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """Free: what is on its way to it has arrived by then, at the rate of its link."""

        def live_s(candidate: Candidate) -> float:
            return max(candidate.gap().live_s, candidate.wanted_live_s)

        for candidate in candidates:
            if candidate.previous and live_s(candidate) <= candidate.wanted_live_s + SAME_INSTANT_S:
                return candidate.decode
        # rounding keeps float noise from overriding the load
        return min(candidates, key=lambda candidate: (round(live_s(candidate), 9), *by_load(candidate))).decode
