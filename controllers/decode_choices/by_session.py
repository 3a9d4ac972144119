"""The choice that keeps a session where it is: `session-affinity`."""

from __future__ import annotations

from collections.abc import Sequence

from controllers.core.decode_choice import Candidate, by_load
from controllers.core.demand import Demand


class SessionAffinity:
    """The decode that served the session last, whatever its load; the least loaded for a session's first request."""

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """A request without a session is placed by load."""
        return min(candidates, key=lambda candidate: (not candidate.served, *by_load(candidate))).decode
