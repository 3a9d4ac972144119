"""A prefill choice of one's own: a session stays with its prefill instance while little work is left there.

In an experiment:     prefill: {choice: "same_prefill.py:SamePrefill"}
"""

from collections.abc import Sequence

from workloads.prefill_choice import PrefillCandidate, PrefillDemand

MOST_WORK_S = 1.0


class SamePrefill:
    """The instance that had the session's last turn, unless more than `MOST_WORK_S` of prefill is left there."""

    def choose(self, demand: PrefillDemand, candidates: Sequence[PrefillCandidate], now_s: float) -> str:
        """One of the candidates' names."""
        return min(candidates, key=lambda c: (not c.served or c.work_s > MOST_WORK_S, c.work_s, c.rank)).prefill
