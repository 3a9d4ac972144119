"""Which decode instance receives a request's KV cache; the same code on every fabric.

A choice sees one `Candidate` per reachable decode instance. A user's own class needs one method, `choose`, and is
named in the experiment file as `module:Class`; it is built with no argument, or with the seed where its constructor
takes one.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from controllers.calendar import SAME_INSTANT_S, Gap
from controllers.demand import Demand
from controllers.plugin import load_class


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


def _load(candidate: Candidate) -> tuple[int, int]:
    return candidate.unfinished, candidate.rank


class CircuitAware:
    """A decode whose circuit already stands and is free in time, else the earliest gap; ties go to the least loaded."""

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """Algorithm 1, line 4."""
        gaps: dict[str, Gap] = {}
        for candidate in sorted(candidates, key=_load):
            gap = gaps[candidate.decode] = candidate.gap()
            if gap.stands and gap.live_s <= candidate.wanted_live_s + SAME_INSTANT_S:
                return candidate.decode
        # rounding keeps float noise from overriding the load
        return min(
            candidates, key=lambda candidate: (round(gaps[candidate.decode].live_s, 9), *_load(candidate))
        ).decode


class NetworkAware:
    """The decode whose KV is predicted to arrive first: what its ports are busy with + the circuit + bytes / R."""

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """Ties go to the least loaded."""
        # rounding keeps float noise from overriding the load
        return min(candidates, key=lambda candidate: (round(candidate.gap().end_s, 9), *_load(candidate))).decode


class LeastLoaded:
    """Fewest assigned and unfinished requests, in-flight transfers included (or requests herd)."""

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """Ties go to the instance chosen longest ago."""
        return min(candidates, key=_load).decode


class RoundRobin:
    """The instance chosen longest ago."""

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """Load and circuits do not matter."""
        return min(candidates, key=lambda candidate: candidate.rank).decode


class SessionAffinity:
    """The decode that served the session last, whatever its load; the least loaded for a session's first request."""

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """A request without a session is placed by load."""
        return min(candidates, key=lambda candidate: (not candidate.served, *_load(candidate))).decode


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
        return min(candidates, key=lambda candidate: (round(live_s(candidate), 9), *_load(candidate))).decode


class Random:
    """Uniform, from the experiment's seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, demand: Demand, candidates: Sequence[Candidate], now_s: float) -> str:
        """One draw a request."""
        return self._random.choice(list(candidates)).decode


BUILT_IN: dict[str, Callable[..., DecodeChoice]] = {
    "circuit-aware": CircuitAware,
    "least-loaded": LeastLoaded,
    "round-robin": RoundRobin,
    "session-affinity": SessionAffinity,
    "random": Random,
    "network-aware": NetworkAware,
    "sticky": Sticky,
}


def load(spec: str, seed: int) -> DecodeChoice:
    """The choice that an experiment file names: a built-in, or `module:Class` found on the Python path.

    Raises ValueError, saying what was not found and what is allowed.
    """
    if spec in BUILT_IN:
        return _build(BUILT_IN[spec], seed)
    factory = load_class("decode_choice", spec, ", ".join(BUILT_IN))
    if not callable(getattr(factory, "choose", None)):
        raise ValueError(f"decode_choice {spec!r}: it has no method choose(demand, candidates, now_s)")
    return _build(factory, seed)


def _build(factory: Callable[..., DecodeChoice], seed: int) -> DecodeChoice:
    takes_seed = "seed" in inspect.signature(factory).parameters
    return factory(seed=seed) if takes_seed else factory()
