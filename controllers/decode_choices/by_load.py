"""Choices by load and turn: `least-loaded`, `round-robin`, `random`."""

from __future__ import annotations

import random
from collections.abc import Sequence

from controllers.core.decode_choice import Candidate, by_load
from controllers.core.demand import Demand


class LeastLoaded:
    """Fewest assigned and unfinished requests, in-flight transfers included (or requests herd)."""

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """Ties go to the instance chosen longest ago."""
        return min(candidates, key=by_load).decode


class RoundRobin:
    """The instance chosen longest ago."""

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """Load and circuits do not matter."""
        return min(candidates, key=lambda candidate: candidate.rank).decode


class Random:
    """Uniform, from the experiment's seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """One draw a request."""
        return self._random.choice(list(candidates)).decode
