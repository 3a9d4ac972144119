"""The published figures, read from rows.yaml, and how a figure of this project compares with one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from inputs import yaml_file
from sweeps.intervals import Estimate

ROWS_FILE = Path(__file__).with_name("rows.yaml")

Unit = Literal["bytes", "GB", "GB/s", "GPUs", "dB", "W", "ms", "ratio", "percent", "points"]
Verdict = Literal["yes", "partly", "no", "not measured"]

#: Decimals that figures in a unit are printed with (1), unless their row says otherwise.
_DECIMALS: dict[Unit, int] = {"bytes": 0, "GPUs": 0, "ratio": 2}
#: What shares are multiplied by.
_SCALE: dict[Unit, float] = {"percent": 100, "points": 100}

#: A number as it is printed: its digits say how exact it is, and 0.00 says more than 0.
Printed = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)?$")]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Published(_Data):
    """A value, a range or a limit as it is printed, in the unit it is printed in."""

    value: Printed | None = None
    low: Printed | None = None
    high: Printed | None = None
    at_most: Printed | None = None
    at_least: Printed | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Published:
        given = {name for name, value in self if value is not None}
        if given not in ({"value"}, {"low", "high"}, {"at_most"}, {"at_least"}):
            raise ValueError("give a value, or low and high, or at_most, or at_least")
        return self

    @property
    def text(self) -> str:
        if self.value is not None:
            whole, point, digits = self.value.partition(".")
            return f"{int(whole):,}{point}{digits}"
        if self.low is not None:
            return f"{self.low} to {self.high}"
        return f"≤ {self.at_most}" if self.at_most is not None else f"≥ {self.at_least}"

    @property
    def numbers(self) -> dict[str, float]:
        """What is given, by its kind."""
        return {name: float(text) for name, text in self if text is not None}


class PairedFigure(_Data):
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
    """One figure of the paper. Without a `measure` it is closed form: `paper/exact.py` has a function of its id. The
    project's side is printed with `decimals` (default: those of the unit)."""

    id: str
    figure: str
    what: str
    unit: Unit
    published: Published
    source: str
    measure: PairedFigure | None = None
    decimals: int | None = None

    @property
    def places(self) -> int:
        """Decimals that the project's figure is printed with."""
        return _DECIMALS.get(self.unit, 1) if self.decimals is None else self.decimals


class _File(_Data):
    rows: list[Row]


def read_rows(path: Path = ROWS_FILE) -> list[Row]:
    """Every row, in the file's order. Scalars are kept as they are written, so that 0.00 stays 0.00."""
    return _File.model_validate(yaml_file.read(path, words=str).data).rows


@dataclass(frozen=True, slots=True)
class Found:
    """What this project has for a row: one estimate a grid point, already in the row's unit. `missing` counts the grid
    points whose windows are not all there, those with an estimate over the others too."""

    by_point: dict[str, Estimate]
    missing: int = 0

    @property
    def low(self) -> Estimate:
        return min(self.by_point.values(), key=lambda each: each.mean)

    @property
    def high(self) -> Estimate:
        return max(self.by_point.values(), key=lambda each: each.mean)

    def text(self, decimals: int) -> str:
        """`mean ± half width`, or the range over the grid with the widest half width of its points."""
        if not self.by_point:
            return "-"
        widths = [each.half_width for each in self.by_point.values() if each.half_width]
        spread = f" ± {max(widths):.{decimals}f}" if widths else ""
        low, high = f"{self.low.mean:,.{decimals}f}", f"{self.high.mean:,.{decimals}f}"
        return f"{low}{spread}" if len(self.by_point) == 1 else f"{low} to {high}{spread}"


def in_unit(estimate: Estimate, unit: Unit) -> Estimate:
    """Shares become percent and points."""
    scale = _SCALE.get(unit, 1.0)
    width = None if estimate.half_width is None else estimate.half_width * scale
    return Estimate(estimate.mean * scale, width, estimate.n)


def reproduces(row: Row, found: Found) -> Verdict:
    """Whether the project's figure is the published one.

    Closed form: to the digits printed. Measured: `yes` where every grid point's mean is within what is published (a
    value to half its last digit), give or take the point's own 95 % interval; `partly` where some points' are, or all
    that there are while windows are missing; else `no`. A wide interval makes a weak yes: read it with the interval.
    """
    if not found.by_point:
        return "not measured"
    published = row.published
    if row.measure is None:
        assert published.value is not None
        return "yes" if abs(found.low.mean - float(published.value)) <= _half_digit(published.value) else "no"
    within = [_within(published, each) for each in found.by_point.values()]
    return "yes" if all(within) and not found.missing else "partly" if any(within) else "no"


def _within(published: Published, found: Estimate) -> bool:
    if published.at_most is not None:
        return found.low <= float(published.at_most)
    if published.at_least is not None:
        return found.high >= float(published.at_least)
    if published.value is not None:
        slack = _half_digit(published.value)
        low, high = float(published.value) - slack, float(published.value) + slack
    else:
        assert published.low is not None
        assert published.high is not None
        low, high = float(published.low), float(published.high)
    return found.high >= low and found.low <= high


def _half_digit(printed: str) -> float:
    """Half of the last digit of a number, and a little for binary fractions."""
    decimals = len(printed.partition(".")[2])
    return 0.5 * 10.0**-decimals + 1e-9
