"""The project's figure for a row, from the finished cells of its grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from paper.exact import EXACT
from paper.rows import Found, PairedFigure, Row, in_unit
from sweeps.axes import Point
from sweeps.grid import Outcome
from sweeps.intervals import Estimate, estimate


class Place(Protocol):
    """Where a cell is in its grid: what a `Cell` and an `Outcome` have in common."""

    @property
    def point(self) -> Point: ...
    @property
    def fabric(self) -> str: ...
    @property
    def seed(self) -> int: ...


#: Every cell of the grids by part, and those that are finished.
Planned = Mapping[str, Sequence[Place]]
Outcomes = Mapping[str, Sequence[Outcome]]
_Cells = dict[tuple[Point, str], dict[int, Outcome]]


def measured(row: Row, planned: Planned, outcomes: Outcomes) -> Found:
    """What there is for a row: closed form, or over the paired windows of every grid point that is planned."""
    if row.measure is None:
        return Found({"": Estimate(EXACT[row.id](), None, 1)})
    measure = row.measure
    by_point: dict[str, Estimate] = {}
    missing = 0
    for part in measure.part:
        cells = _by_point(outcomes.get(part, ()))
        for point, windows in _windows(measure, planned.get(part, ())).items():
            values = _paired(measure, cells, point)
            missing += len(values) < windows
            if (found := estimate(values)) is not None:
                by_point[_name(part, point)] = in_unit(found, row.unit)
    return Found(by_point, missing)


def _windows(measure: PairedFigure, planned: Sequence[Place]) -> dict[Point, int]:
    """The points that the measure looks at, and how many windows each is to have."""
    seeds: dict[Point, set[int]] = {}
    for cell in planned:
        point = dict(cell.point)
        if cell.fabric == measure.of and all(point.get(key, value) == value for key, value in measure.where.items()):
            seeds.setdefault(cell.point, set()).add(cell.seed)
    return {point: len(each) for point, each in seeds.items()}


def _by_point(outcomes: Sequence[Outcome]) -> _Cells:
    found: _Cells = {}
    for outcome in outcomes:
        found.setdefault((outcome.point, outcome.fabric), {})[outcome.seed] = outcome
    return found


def _paired(measure: PairedFigure, cells: _Cells, point: Point) -> list[float]:
    """The measure in each window that both sides have."""
    of = cells.get((point, measure.of), {})
    if measure.minus is not None:
        other = cells.get((point, measure.minus), {})
    elif isinstance(measure.over, str):
        other = cells.get((point, measure.over), {})
    elif measure.over is not None:
        moved = tuple((key, measure.over.get(key, value)) for key, value in point)
        other = cells.get((moved, measure.of), {})
    else:
        other = of
    values = []
    for seed in sorted(of.keys() & other.keys()):
        value, against = _figure(measure, of[seed]), _figure(measure, other[seed])
        if value is None or against is None:
            continue
        if measure.minus is not None:
            value -= against
        elif measure.over is not None:
            value = value / against - 1
        values.append(value / measure.per)
    if measure.distance and values:
        # the distance of the means: that of single windows would never be nought
        sign = 1.0 if sum(values) >= 0 else -1.0
        values = [sign * value for value in values]
    return values


def _figure(measure: PairedFigure, outcome: Outcome) -> float | None:
    value = outcome.tenants.get(measure.tenant, {}).get(measure.figure)
    return None if value is None else float(value)


def _name(part: str, point: Point) -> str:
    return " ".join([part, *(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in point)])
