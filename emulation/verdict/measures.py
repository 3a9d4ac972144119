"""One measure of a run: its value as the machine saw it and in the units of the real cluster, its threshold, and what
to do about it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from emulation.scale import ScaleModel

Severity = Literal["invalid", "degraded", "info"]
#: No dilation is advised beyond this: what needs more needs another machine.
LARGEST_DILATION = 16


@dataclass(frozen=True, slots=True)
class Measure:
    """`emulated` is what the machine saw, `real` the same in the units of the real cluster (None where it does not
    scale); over `limit` (of the emulated value; `limit_real` of the real one) the verdict is at best `severity`."""

    name: str
    unit: str
    emulated: float | None
    real: float | None = None
    limit: float | None = None
    limit_real: float | None = None
    severity: Severity = "info"
    remedy: str = ""

    @property
    def exceeded(self) -> bool:
        """Whether it counts against the run."""
        return self.limit is not None and self.emulated is not None and self.emulated > self.limit

    def reason(self) -> str:
        """In words a user can act on."""
        value, limit = (f"{number:.4g}" for number in (self.emulated or 0.0, self.limit or 0.0))
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.name} {value}{unit} against {limit}{unit}: {self.remedy}"

    def described(self) -> dict[str, Any]:
        """For `fidelity.json`."""
        return asdict(self) | {"exceeded": self.exceeded}


def ratio(name: str, value: float | None, limit: float | None = None, **more: Any) -> Measure:
    """A share or another figure that is the same in both units."""
    return Measure(name, "", value, value, limit, limit, **more)


def delay(
    name: str,
    wall_s: float | None,
    scale: ScaleModel,
    *,
    limit_s: float | None = None,
    severity: Severity = "info",
    cause: str = "",
) -> Measure:
    """A wall-clock time. `limit_s` is real: dilation makes every real duration longer, so the same delay weighs less.

    cause: why it may be too long, in words; the remedy adds the dilation that would do.
    """
    real_s = None if wall_s is None else scale.real_s(wall_s)
    wall_limit_s = None if limit_s is None else scale.wall_s(limit_s)
    remedy = ""
    if wall_s is not None and limit_s is not None and wall_s > scale.wall_s(limit_s):
        remedy = "; ".join(filter(None, [cause, dilation_advice(wall_s / limit_s)]))
    value, real, limit, limit_real = (
        None if seconds is None else seconds * 1e3 for seconds in (wall_s, real_s, wall_limit_s, limit_s)
    )
    return Measure(name, "ms", value, real, limit, limit_real, severity, remedy)


def percentile(samples: Sequence[float], percent: float) -> float | None:
    """None of nothing."""
    return float(np.percentile(samples, percent)) if len(samples) else None


def dilation_advice(needed: float) -> str:
    """The next whole dilation that is enough, where one of a reasonable size is."""
    dilation = math.ceil(needed)
    if dilation > LARGEST_DILATION:
        return "no time_dilation of a reasonable size would do: find what held it up"
    return f"use time_dilation {dilation}"
