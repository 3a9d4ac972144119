"""What a grid amounts to: one row for each point and fabric, means over its seeds with 95 % intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from outputs.sheet import Column, Sheet
from sweeps.axes import Axis
from sweeps.grid import Outcome
from sweeps.intervals import Estimate, estimate

#: Columns of results.csv: name, and where it is in a run's entry of summary.json.
FIGURES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "ttft_mean_s": lambda summary: summary["ttft_s"]["mean"],
    "ttft_p50_s": lambda summary: summary["ttft_s"]["p50"],
    "ttft_p99_s": lambda summary: summary["ttft_s"]["p99"],
    "exposed_share": lambda summary: summary["ttft_exposed_share"],
    "hidden_share": lambda summary: summary["hidden_share"],
    "slo_attainment": lambda summary: summary["slo_attainment"],
    "unfinished": lambda summary: summary["requests"]["unfinished"] + summary["requests"]["failed"],
}
_SHARES = ("exposed_share", "hidden_share", "slo_attainment")


def cells_frame(axes: Sequence[Axis], outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """A row for each finished cell: its point, fabric, seed, verdict and figures (real units)."""
    rows = []
    for outcome in outcomes:
        row: dict[str, Any] = dict(outcome.point) | {"fabric": outcome.fabric, "seed": outcome.seed}
        row |= {"verdict": outcome.summary["verdict"], "offered": outcome.summary["requests"]["offered"]}
        row |= {name: figure(outcome.summary) for name, figure in FIGURES.items()}
        for tenant, figures in outcome.tenants.items():
            row |= {f"{tenant}.{name}": value for name, value in figures.items()}
        rows.append(row)
    keys = [axis.key for axis in axes]
    return pd.DataFrame(rows, columns=None if rows else [*keys, "fabric", "seed"])


def rows_of(axes: Sequence[Axis], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """A row for each point and fabric, in the order of the cells: n and an `Estimate` (or None) of each figure."""
    groups: dict[tuple[Any, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.point, outcome.fabric), []).append(outcome)
    rows = []
    for (point, fabric), members in groups.items():
        row: dict[str, Any] = {"point": point, "fabric": fabric, "n": len(members)}
        for name, figure in FIGURES.items():
            values = [value for each in members if (value := figure(each.summary)) is not None]
            row[name] = estimate(values) if len(values) == len(members) else None
        worst = {each.summary["verdict"] for each in members}
        row["verdict"] = next(verdict for verdict in ("invalid", "degraded", "valid") if verdict in worst)
        rows.append(row)
    return rows


def grid_table(axes: Sequence[Axis], outcomes: Sequence[Outcome]) -> Sheet:
    """The rows as a table for the terminal."""
    last = [axis.key.rsplit(".", 1)[-1] for axis in axes]
    names = [name if last.count(name) == 1 else axis.key for axis, name in zip(axes, last, strict=True)]
    columns = [Column(name, "name") for name in (*names, "fabric")]
    columns += [Column(heading) for heading in ("windows", *(name.replace("_", " ") for name in FIGURES))]
    rows = [
        (
            *(value for _, value in row["point"]),
            row["fabric"],
            str(row["n"]),
            *(text(row[name], share=name in _SHARES) for name in FIGURES),
            row["verdict"],
        )
        for row in rows_of(axes, outcomes)
    ]
    return Sheet([*columns, Column("verdict", "name")], rows, names=len(axes) + 1)


def text(value: Estimate | None, *, share: bool = False) -> str:
    """`mean ± half width`, shares in percent."""
    if value is None:
        return "-"
    scale, digits = (100.0, 1) if share else (1.0, 3)
    spread = "" if not value.half_width else f" ± {scale * value.half_width:.{digits}f}"
    return f"{scale * value.mean:.{digits}f}{spread}{' %' if share else ''}"


def grid_json(axes: Sequence[Axis], outcomes: Sequence[Outcome], failures: dict[str, str]) -> dict[str, Any]:
    """results.json: the rows, every estimate as mean, half width and n, and the cells that are missing."""

    def plain(value: Any) -> Any:
        if isinstance(value, Estimate):
            return {"mean": value.mean, "half_width_95": value.half_width, "n": value.n}
        return value

    rows = [{key: plain(value) for key, value in row.items()} for row in rows_of(axes, outcomes)]
    for row in rows:
        row["point"] = dict(row["point"])
    return {"schema": 1, "axes": {axis.key: list(axis.values) for axis in axes}, "rows": rows, "failures": failures}
