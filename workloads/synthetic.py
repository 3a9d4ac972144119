"""The `synthetic-agentic` workload: turns of coding agents, drawn from published statistics.

A turn appends a short input (a tool result) to a long context; the prefill pool holds everything before it, so cached
= context - new. Lengths are independent from turn to turn: they do not grow along a session. Sessions are *dealt*: at
any time `SESSION_TURN_PERIOD_S` * rate of them are live, each arrival is a turn of one of them at random, and a
session that ends is replaced by a new one. So "consecutive requests of a session" are about `SESSION_TURN_PERIOD_S`
apart, as in the field, which is what affinity and circuit reuse see. Not modelled: think times, sub-agents, output
tokens.

Every length is a quantile function of two uniform numbers per request. Drawing the new tokens by the inverse of their
distribution *below the context* is the same as redrawing until they are fewer, without disturbing the requests after
it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final, TypeAlias

import numpy as np

from workloads.prefill import PrefillTiming
from workloads.tenants import CONTEXT_LIMIT_TOKENS

_NORMAL: Final = NormalDist()

# TraceLab publishes 4.9 s (median) and 20.2 s (p90) of generation and 0.3 s (median) of tool time a step, and 15
# steps to a session (median): a lognormal through the first two has a mean of 9 s, to which the tools add about 1 s.
SESSION_TURN_PERIOD_S: Final = 10.0
SESSION_MEDIAN_TURNS: Final = 15


@dataclass(frozen=True, slots=True)
class LognormalProfile:
    """Context and new tokens lognormal and independent but for new < context.

    `lengths` maps two uniform numbers in (0, 1) to (context tokens, new tokens) with 1 <= new < context.

    Contexts over `limit_tokens` are redrawn rather than clipped: a step that does not fit the model's window is not
    one of its requests. That is what puts the median of the contexts at 66.7K where the uncut median is 71.5K.
    """

    context_median_tokens: float
    context_sigma: float
    new_median_tokens: float
    new_sigma: float
    limit_tokens: int = CONTEXT_LIMIT_TOKENS

    def lengths(self, first: float, second: float) -> tuple[int, int]:
        within = _NORMAL.cdf(math.log(self.limit_tokens / self.context_median_tokens) / self.context_sigma)
        z = _NORMAL.inv_cdf(first * within)
        context = max(2, int(self.context_median_tokens * math.exp(self.context_sigma * z)))
        fewer = _NORMAL.cdf(math.log(context / self.new_median_tokens) / self.new_sigma)
        z = _NORMAL.inv_cdf(max(second * fewer, 1e-300))
        new = int(self.new_median_tokens * math.exp(self.new_sigma * z))
        return context, min(max(new, 1), context - 1)


@lru_cache(maxsize=16)
def _scores(percentiles: tuple[tuple[float, float], ...]) -> list[tuple[float, float]]:
    """(normal score, ln(tokens)) of each published percentile."""
    return [(_NORMAL.inv_cdf(p), math.log(tokens)) for p, tokens in percentiles]


@dataclass(frozen=True, slots=True)
class PercentileCurve:
    """A distribution through published percentiles: ln(tokens) is linear in the normal score between two of them, in
    the probability above the last, and goes on below the first; nothing exceeds `limit_tokens`."""

    percentiles: tuple[tuple[float, float], ...]
    limit_tokens: int = CONTEXT_LIMIT_TOKENS

    def quantile(self, probability: float) -> float:
        points = _scores(self.percentiles)
        top_probability, top_tokens = self.percentiles[-1]
        if probability >= top_probability:
            share = (probability - top_probability) / (1 - top_probability)
            return math.exp(math.log(top_tokens) + share * math.log(self.limit_tokens / top_tokens))
        z = _NORMAL.inv_cdf(max(probability, 1e-300))
        i = min(max(bisect_right(points, (z, math.inf)), 1), len(points) - 1)
        (z0, y0), (z1, y1) = points[i - 1], points[i]
        return math.exp(y0 + (y1 - y0) * (z - z0) / (z1 - z0))

    def probability(self, tokens: float) -> float:
        """The share of draws below `tokens`: the inverse of `quantile`."""
        points = _scores(self.percentiles)
        top_probability, top_tokens = self.percentiles[-1]
        if tokens >= top_tokens:
            share = math.log(tokens / top_tokens) / math.log(self.limit_tokens / top_tokens)
            return min(1.0, top_probability + (1 - top_probability) * share)
        y = math.log(tokens)
        i = min(max(bisect_right([value for _, value in points], y), 1), len(points) - 1)
        (z0, y0), (z1, y1) = points[i - 1], points[i]
        return _NORMAL.cdf(z0 + (z1 - z0) * (y - y0) / (y1 - y0))


@dataclass(frozen=True, slots=True)
class PercentileProfile:
    """Context and new tokens through published percentiles, drawn jointly so that 1 <= new < context.

    The new tokens keep their percentiles exactly and the context is drawn among those that are longer. Nothing else
    ties the two: their rank correlation in the corpus is -0.02.
    """

    context: PercentileCurve
    new: PercentileCurve

    def lengths(self, first: float, second: float) -> tuple[int, int]:
        new = max(1, int(self.new.quantile(second)))
        shorter = self.context.probability(new + 1)
        context = int(self.context.quantile(shorter + first * (1 - shorter)))
        return max(context, new + 1), new


LengthProfile: TypeAlias = LognormalProfile | PercentileProfile

PROFILES: Final[dict[str, LengthProfile]] = {
    # Steps within 128K of 4,300 coding-agent sessions (TraceLab): median context 66.7K, median new input 1.1K.
    "tracelab": LognormalProfile(71_500, 0.5, 1_100, 1.2),
    # Calls within 128K of the public AgentX Claude Code sessions. The p10 of the new tokens comes from the same calls.
    "agentx": PercentileProfile(
        context=PercentileCurve(((0.10, 35_500), (0.50, 81_100), (0.90, 121_000))),
        new=PercentileCurve(((0.10, 224), (0.50, 707), (0.90, 5_028), (0.99, 67_978))),
    ),
}


def draw_lengths(profile: LengthProfile, rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """`count` pairs (context tokens, new tokens); the first k do not depend on `count`."""
    # 1 - random() lies in (0, 1]; the nextafter keeps it inside the open interval that quantile functions need.
    uniforms = np.clip(1 - rng.random((count, 2)), None, np.nextafter(1, 0))
    return [profile.lengths(float(first), float(second)) for first, second in uniforms]


@lru_cache(maxsize=16)
def mean_prefill_s(profile: LengthProfile, timing: PrefillTiming) -> float:
    """Mean of T(new, cached) over the profile: the midpoint rule on a grid of quantiles, so no seed enters it."""
    contexts, news = 64, 512
    grid = ((i + 0.5) / contexts for i in range(contexts))
    return math.fsum(_grid_durations(profile, timing, grid, news)) / (contexts * news)


def _grid_durations(
    profile: LengthProfile, timing: PrefillTiming, firsts: Iterator[float], seconds: int
) -> Iterator[float]:
    for first in firsts:
        for j in range(seconds):
            context, new = profile.lengths(first, (j + 0.5) / seconds)
            yield timing.duration_s(new, context - new)


def poisson_arrivals(rng: np.random.Generator, rate_per_s: float, span_s: float) -> list[float]:
    """Poisson arrival times in [0, span_s). The same generator at another rate gives the same pattern, stretched."""
    arrivals: list[float] = []
    now_s = 0.0
    while True:
        now_s += float(rng.standard_exponential()) / rate_per_s
        if now_s >= span_s:
            return arrivals
        arrivals.append(now_s)


def deal_sessions(rng: np.random.Generator, count: int, rate_per_s: float, prefix: str) -> list[str]:
    """The session of each of `count` consecutive arrivals; see the module's first lines. Names are `prefix` + a
    number."""
    live = list(range(max(1, round(rate_per_s * SESSION_TURN_PERIOD_S))))
    started = len(live)
    ends = 1 - 0.5 ** (1 / SESSION_MEDIAN_TURNS)
    sessions: list[str] = []
    draws: Sequence[Sequence[float]] = rng.random((count, 2)).tolist()
    for which, end in draws:
        slot = int(which * len(live))
        sessions.append(f"{prefix}{live[slot]:05d}")
        if end < ends:
            live[slot] = started
            started += 1
    return sessions
