"""Which prefill instance gets a request: what a choice is given, the built-in ones, and a user's own `module:Class`.

    least-unfinished   fewest requests that are sent there and have no first token yet
    least-work         least predicted prefill work that is left there, with the rest of the prefill that runs

Ties go to the instance that was chosen longest ago. A user's own class needs one method, `choose`; it is built with no
argument, or with the seed where its constructor takes one. The books behind it are `prefill_router.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from inputs.plugin_choice import made


@dataclass(frozen=True, slots=True)
class PrefillDemand:
    """A request as the gateway knows it; `predicted_prefill_s` is the predicted duration of its prefill in real
    seconds."""

    request_id: str
    tenant: str
    session: str
    new_tokens: int
    cached_tokens: int
    predicted_prefill_s: float


@dataclass(frozen=True, slots=True)
class PrefillCandidate:
    """A prefill instance of the request's tenant at the moment of choice.

    `unfinished` counts the requests that were sent to it and have no first token yet; `work_s` is the predicted prefill
    work that is left there, in real seconds, with the rest of the prefill that runs; `rank` is 0 for the instance
    chosen longest ago; `served` tells that it got the request of this session before this one.
    """

    prefill: str
    unfinished: int
    work_s: float
    rank: int
    served: bool


class PrefillChoice(Protocol):
    """A rule that picks one of the candidates."""

    def choose(self, demand: PrefillDemand, candidates: Sequence[PrefillCandidate], now_s: float) -> str:
        """The name of one candidate; `candidates` is never empty."""


class LeastUnfinished:
    """Fewest unfinished requests, whatever their length: turns queue behind long prefills."""

    def choose(self, demand: PrefillDemand, candidates: Sequence[PrefillCandidate], now_s: float) -> str:
        """A request is finished with its first token, so transfers in flight count."""
        return min(candidates, key=lambda candidate: (candidate.unfinished, candidate.rank)).prefill


class LeastWork:
    """Least predicted work: the instance at which this prefill is predicted to start first."""

    def choose(self, demand: PrefillDemand, candidates: Sequence[PrefillCandidate], now_s: float) -> str:
        """Transfers in flight do not count."""
        # rounding keeps float noise from overriding the turn
        return min(candidates, key=lambda candidate: (round(candidate.work_s, 9), candidate.rank)).prefill


BUILT_IN: Final[dict[str, Callable[..., PrefillChoice]]] = {
    "least-unfinished": LeastUnfinished,
    "least-work": LeastWork,
}


def load(spec: str, seed: int) -> PrefillChoice:
    """The choice that a resolved experiment names. Raises ValueError, saying what was not found and what is allowed."""
    return made("prefill choice", spec, BUILT_IN, seed)
