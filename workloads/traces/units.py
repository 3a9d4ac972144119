"""Seconds or milliseconds: in which unit the times of a trace can be those of a service.

Span, rate and usual gap are judged together. Times read in a wrong unit are off by 1,000 in all of them, and a trace
slower than a request per second is still a possible rate then, but over seconds, or years.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Too few rows tell nothing: a file of ten is somebody's example.
_FEWEST_ROWS: Final = 20
#: What lasts less in the other unit is no recording of a service either.
_SHORTEST_S: Final = 60.0
#: Below this, no service: a request in 100 s.
_SLOWEST_PER_S: Final = 0.01
#: (shortest span in s, fastest rate per s): who serves more is recorded for longer.
_FASTEST: Final = ((0.0, 10.0), (60.0, 100.0), (600.0, 1_000.0))
PER_S: Final = {"s": 1.0, "ms": 1e3}
_OTHER: Final = {"ms": ("s", 1e3), "s": ("ms", 1e-3)}
#: Nobody who records requests writes their times in coarser steps.
_COARSEST_S: Final = 60.0


@dataclass(frozen=True)
class Timing:
    """What a reading of a trace's times gives: `gap_s` is the usual distance of two distinct times, over which
    `rows_per_time` rows come; `tick_s` the step of the times."""

    rows: int
    span_s: float
    gap_s: float
    tick_s: float
    rows_per_time: float

    @property
    def rate_per_s(self) -> float:
        return self.rows / self.span_s

    def plausible(self) -> bool:
        """Whether a service may have been asked so: by its mean rate or by its usual gap, for long enough."""
        fastest = max(rate for span_s, rate in _FASTEST if self.span_s >= span_s)
        rates = (self.rate_per_s, self.rows_per_time / self.gap_s if self.gap_s else self.rate_per_s)
        return any(_SLOWEST_PER_S <= rate <= fastest for rate in rates) and self.tick_s <= _COARSEST_S

    def times(self, factor: float) -> Timing:
        """The same rows with every time multiplied."""
        return Timing(self.rows, factor * self.span_s, factor * self.gap_s, factor * self.tick_s, self.rows_per_time)

    def described(self) -> str:
        """`0.2 requests per s over 3.6e+03 s`."""
        return f"{self.rate_per_s:.3g} requests per s over {self.span_s:.3g} s"


def misread(timing: Timing, unit: str) -> str:
    """Why the times cannot be in `unit` and are in the other one; empty where they may be, or where neither fits."""
    if unit not in _OTHER or timing.rows < _FEWEST_ROWS or timing.span_s <= 0:
        return ""
    other, factor = _OTHER[unit]
    if timing.plausible() or not timing.times(factor).plausible() or timing.times(factor).span_s < _SHORTEST_S:
        return ""
    return (
        f"in {unit} the trace has {timing.described()}, which is no service; in {other} it has "
        f"{timing.times(factor).described()}. Say which with time_unit: {other}, or time_unit: {unit} "
        "(./heliograph trace: --time-unit)"
    )


def ambiguous(timing: Timing, unit: str) -> str:
    """What the trace would be in the other unit, where that may be a service too; empty where it may not."""
    if unit not in _OTHER or timing.rows < _FEWEST_ROWS or timing.span_s <= 0:
        return ""
    other, factor = _OTHER[unit]
    if not (timing.plausible() and timing.times(factor).plausible()):
        return ""
    return (
        f"times are taken as {unit}: {timing.described()}; in {other} they would be "
        f"{timing.times(factor).described()} (time_unit says which)"
    )
