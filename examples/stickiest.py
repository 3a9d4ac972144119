"""A decode choice of one's own; the same code runs on packets and on circuits."""

from collections.abc import Sequence

from controllers.core.decode_choice import Candidate
from controllers.core.demand import Demand


class Stickiest:
    """The decode that served this session last, unless more than two requests are unfinished there."""

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """One of the candidates' names."""
        return min(candidates, key=lambda c: (not c.served or c.unfinished > 2, c.unfinished, c.rank)).decode
