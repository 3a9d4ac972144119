"""The published figures, read from rows.yaml, and how a figure of this project compares with one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sweeps.intervals import Estimate

ROWS_FILE = Path(__file__).with_name("rows.yaml")

Unit = Literal["bytes", "number", "ratio", "percent", "points"]
Verdict = Literal["yes", "partly", "no", "not measured"]

#: Decimals that each unit is printed with, and what a figure is multiplied by first.
_DECIMALS: dict[Unit, int] = {"bytes": 0, "number": 1, "ratio": 2, "percent": 1, "points": 1}
_SCALE: dict[Unit, float] = {"bytes": 1, "number": 1, "ratio": 1, "percent": 100, "points": 100}


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Published(_Data):
    """A value, a range or a limit, in the unit it is printed in."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    at_most: float | None = None
    at_least: float | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Published:
        given = {name for name, value in self if value is not None}
        if given not in ({"value"}, {"low", "high"}, {"at_most"}, {"at_least"}):
            raise ValueError("give a value, or low and high, or at_most, or at_least")
        return self

    @property
    def text(self) -> str:
        if self.value is not None:
            return f"{self.value:,g}"
        if self.low is not None:
            return f"{self.low:g} to {self.high:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else f"≥ {self.at_least:g}"


class Measure(_Data):
    """A figure of the finished grids: for each point of `part` that agrees with `where`, `figure` of `tenant` behind
    the fabric `of`; `minus` another fabric (paired), or relative to what it is `over` (a fabric, or the same fabric at
    another point), `per` so many seconds; `distance` drops the sign."""

    part: list[str]
    where: dict[str, str] = Field(default_factory=dict)
    tenant: str = "agentic"
    figure: str
    of: str
    minus: str | None = None
    over: str | dict[str, str] | None = None
    per: float = 1.0
    distance: bool = False


class Row(_Data):
    """One figure of the paper. Without a `measure` it is closed form: `paper/exact.py` has a function of its id."""

    id: str
    figure: str
    what: str
    unit: Unit
    published: Published
    source: str
    measure: Measure | None = None


class _File(_Data):
    rows: list[Row]


def read_rows(path: Path = ROWS_FILE) -> list[Row]:
    """Every row, in the file's order."""
    return _File.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))).rows


@dataclass(frozen=True, slots=True)
class Found:
    """What this project has for a row: one estimate a grid point, already in the row's unit. `missing` counts grid
    points whose cells are not all there."""

    by_point: dict[str, Estimate]
    missing: int = 0

    @property
    def low(self) -> Estimate:
        return min(self.by_point.values(), key=lambda each: each.mean)

    @property
    def high(self) -> Estimate:
        return max(self.by_point.values(), key=lambda each: each.mean)

    def text(self, unit: Unit) -> str:
        """`mean ± half width`, or the range over the grid with the widest half width of its points."""
        if not self.by_point:
            return "-"
        decimals = _DECIMALS[unit]
        widths = [each.half_width for each in self.by_point.values() if each.half_width]
        spread = f" ± {max(widths):.{decimals}f}" if widths else ""
        low, high = f"{self.low.mean:,.{decimals}f}", f"{self.high.mean:,.{decimals}f}"
        return f"{low}{spread}" if len(self.by_point) == 1 else f"{low} to {high}{spread}"


def in_unit(estimate: Estimate, unit: Unit) -> Estimate:
    """Shares become percent and points."""
    scale = _SCALE[unit]
    width = None if estimate.half_width is None else estimate.half_width * scale
    return Estimate(estimate.mean * scale, width, estimate.n)


def reproduces(row: Row, found: Found) -> Verdict:
    """Whether the project's figure is the published one.

    Closed form: to the digits printed. Measured: `yes` where every grid point's mean is within what is published (a
    value to half its last digit), give or take the point's own 95 % interval; `partly` where some points' are; else
    `no`. A wide interval makes a weak yes: read it with the interval.
    """
    if not found.by_point:
        return "not measured"
    published = row.published
    if row.measure is None:
        assert published.value is not None
        return "yes" if abs(found.low.mean - published.value) <= _half_digit(published.value) else "no"
    within = [_within(published, each) for each in found.by_point.values()]
    return "yes" if all(within) else "partly" if any(within) else "no"


def _within(published: Published, found: Estimate) -> bool:
    if published.at_most is not None:
        return found.low <= published.at_most
    if published.at_least is not None:
        return found.high >= published.at_least
    if published.value is not None:
        slack = _half_digit(published.value)
        low, high = published.value - slack, published.value + slack
    else:
        assert published.low is not None
        assert published.high is not None
        low, high = published.low, published.high
    return found.high >= low and found.low <= high


def _half_digit(value: float) -> float:
    """Half of the last digit that the value is printed with, and a little for binary fractions."""
    text = f"{value:.10g}"
    decimals = len(text.partition(".")[2])
    return 0.5 * 10.0**-decimals + 1e-9
