"""The resolution of a trace: the step in which its times were recorded.

It is the largest step that all times meet, give or take a hundredth of it, beyond what chance would do. A usual
distance between requests is none: one request a minute, written in whole seconds, has a resolution of a second.

1. Times are whole multiples of what they are written in: a unit, or the decimal part of one that all of them meet.
2. A coarser step is the largest that so many times would not meet by chance.
3. Where hardly a tick of that step is without a time, though there are so few rows that many would be if requests came
   at random, the requests are periodic: the step is their period, and the resolution is what they are written in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

# How far apart the times may be around a step, as a share of it: a hundredth on each side.
_JITTER: Final = 0.02
# Binary fractions of a second since 1970 are off by a quarter of a microsecond.
_ROUNDING: Final = 1e-3
_FINEST: Final = 9  # decimals of a unit
_DIGITS: Final = 10_000
_CHANCE: Final = 1e-3
_RARE: Final = 0.01


def resolution(times: Sequence[float], rows: int) -> float:
    """The step of `times`, which are distinct and increasing and count from the first, in the unit in which they were
    written; `rows`: how many requests have them. 0 where there are fewer than two times."""
    if len(times) < 2:
        return 0.0
    found = np.asarray(times, dtype=float)
    written = next((10**places for places in range(_FINEST) if _is_written_in(found * 10**places)), 10**_FINEST)
    ticks = np.rint(found[1:] * written)
    # two or three times tell nothing of a step, nor do times nearer to each other than the finest decimal
    if len(ticks) < 3 or ticks[-1] < 1:
        return 1 / written
    steps, tried = _met(ticks)
    for step in steps[::-1].tolist():
        if tried * ((_spread(ticks, step) + 1) / step) ** len(ticks) < _CHANCE:
            if _periodic(ticks, step, rows):
                break
            return _best(ticks, steps[steps >= (1 - 2 * _JITTER) * step]) / written
    return 1 / written


def _is_written_in(times: np.ndarray) -> bool:
    """Whether the times are whole numbers, each another."""
    return _spread(times) <= _ROUNDING and bool(np.all(np.diff(np.rint(times)) > 0))


def _best(ticks: np.ndarray, steps: np.ndarray) -> float:
    """Of steps that differ by less than the jitter, the roundest of those that the ticks meet best."""
    spreads = [_spread(ticks, step) for step in steps.tolist()]
    near = [step for step, spread in zip(steps.tolist(), spreads, strict=True) if spread <= 2 * min(spreads) + 1]
    return min(near, key=lambda step: (len(f"{step:.0f}".rstrip("0")), -step))


def _spread(times: np.ndarray, step: float = 1.0) -> float:
    """How far apart the times are around the multiples of the step, the first (0) among them."""
    off = times - np.rint(times / step) * step
    return float(max(off.max(), 0.0) - min(off.min(), 0.0))


def _met(ticks: np.ndarray) -> tuple[np.ndarray, int]:
    """The numbers of at most four digits, with zeros behind them, that all ticks are multiples of, give or take the
    jitter; and how many were tried."""
    decades = max(0, math.ceil(math.log10(ticks[-1])) - 3)
    steps = np.concatenate(
        [np.arange(2.0, _DIGITS), *(np.arange(_DIGITS / 10, _DIGITS) * 10.0**i for i in range(1, decades))]
    )
    steps = steps[steps <= ticks[-1] * (1 + _JITTER)]
    tried = len(steps)
    for tick in ticks[:64]:
        steps = steps[np.abs(tick - np.rint(tick / steps) * steps) <= _JITTER * steps]
    return np.array([step for step in steps.tolist() if _spread(ticks, step) <= _JITTER * step]), tried


def _periodic(ticks: np.ndarray, step: float, rows: int) -> bool:
    """Whether fewer ticks of the step are empty than random arrivals would leave."""
    places = np.unique(np.rint(ticks / step))
    count = int(places[-1]) + 1
    empty = count - len(places) - int(places[0] > 0)
    expected = count * math.exp(-rows / count)
    if not empty:
        return expected > 1
    # Poisson: at most as many as there are
    return _at_most(empty, expected) < _RARE if empty < expected else False


def _at_most(number: int, expected: float) -> float:
    """The probability of at most `number` Poisson events where more are expected: terms shrink on the way down."""
    total, term = 0.0, math.exp(number * math.log(expected) - expected - math.lgamma(number + 1))
    for i in range(number, -1, -1):
        total += term
        if term <= total * 1e-12:
            break
        term *= i / expected
    return total
