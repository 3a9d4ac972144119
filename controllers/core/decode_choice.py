"""What a decode choice is: one `Candidate` per reachable decode instance in, the name of one of them out.

The same code runs on every fabric. The choices themselves are in `controllers/decode_choices/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from controllers.core.calendar import Gap
from controllers.core.demand import Demand


@dataclass(frozen=True, slots=True)
class Candidate:
    """A decode instance at the moment of choice.

    `unfinished` counts the requests assigned to it whose KV has not arrived; `rank` is 0 for the instance chosen
    longest ago; `served` tells that it served this session last, `previous` that the request before this one of the
    same prefill instance went to it. `gap()` is when the KV could cross: computed when asked for.
    """

    decode: str
    unfinished: int
    rank: int
    served: bool
    wanted_live_s: float
    gap: Callable[[], Gap]
    previous: bool = False


class DecodeChoice(Protocol):
    """A rule that picks one of the candidates."""

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """The name of one candidate; `candidates` is never empty."""


def by_load(candidate: Candidate) -> tuple[int, int]:
    """A key to sort candidates by: fewest unfinished requests first, then the one chosen longest ago."""
    return candidate.unfinished, candidate.rank
