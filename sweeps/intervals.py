"""Means over paired windows and how sure they are: Student's t at 95 %."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Two-sided 95 % quantiles of Student's t by degrees of freedom (any statistical table); the normal one beyond.
_T_95 = (
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (7, 2.365), (8, 2.306), (9, 2.262),
    (10, 2.228), (12, 2.179), (15, 2.131), (20, 2.086), (30, 2.042), (60, 2.000), (120, 1.980),
)  # fmt: skip
_NORMAL_95 = 1.960


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over n windows; `half_width` of its 95 % interval is None where one window says nothing of the spread."""

    mean: float
    half_width: float | None
    n: int

    @property
    def low(self) -> float:
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half_width or 0.0)


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean of one value a window; None without any."""
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, None, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return Estimate(mean, t_95(n - 1) * deviation / math.sqrt(n), n)


def t_95(degrees: int) -> float:
    """The quantile for the largest tabled number of degrees that is not larger, which errs on the wide side."""
    return max((entry for entry in _T_95 if entry[0] <= degrees), default=_T_95[0])[1] if degrees <= 240 else _NORMAL_95
