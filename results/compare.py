"""Two runs side by side, from their artifacts alone.

A difference means something only when both runs served the same requests at the same times, so runs whose arrivals
differ are refused unless the caller asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from results.artifacts import ArtifactError, RunDirectory
from results.metrics import measured
from results.summary import RunSummary
from results.table import UNDEFINED

ARRIVAL_COLUMNS = ("id", "tenant", "arrival_s", "new_tokens", "cached_tokens")


class DifferentArrivals(ArtifactError):
    """The two runs did not serve the same requests; the message says where they part."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of one fabric and seed in both runs; None where a run could not tell. ``unit``: s, share or count."""

    name: str
    seed: int
    metric: str
    unit: str
    a: float | None
    b: float | None

    @property
    def change(self) -> float | None:
        """b - a, None unless both are known."""
        return None if self.a is None or self.b is None else self.b - self.a


METRICS: tuple[tuple[str, str, Callable[[RunSummary], float | None]], ...] = (
    ("completed", "count", lambda run: run.requests.completed),
    ("failed", "count", lambda run: run.requests.failed),
    ("unfinished", "count", lambda run: run.requests.unfinished),
    ("TTFT mean", "s", lambda run: run.ttft_s.mean),
    ("TTFT p50", "s", lambda run: run.ttft_s.p50),
    ("TTFT p90", "s", lambda run: run.ttft_s.p90),
    ("TTFT p95", "s", lambda run: run.ttft_s.p95),
    ("TTFT p99", "s", lambda run: run.ttft_s.p99),
    ("exposed share", "share", lambda run: run.ttft_exposed_share),
    ("hidden share", "share", lambda run: run.hidden_share),
    ("SLO attainment", "share", lambda run: run.slo_attainment),
    ("switches", "count", lambda run: run.switches),
)


def differences(dir_a: Path, dir_b: Path, *, allow_different_arrivals: bool = False) -> list[Difference]:
    """Every metric of every fabric and seed that both runs have.

    Raises DifferentArrivals, and ArtifactError where a directory is no run or the two have no fabric and seed in
    common.
    """
    run_a, run_b = RunDirectory.open(dir_a), RunDirectory.open(dir_b)
    of_a = {(run.name, run.seed): run for run in run_a.summary().runs}
    of_b = {(run.name, run.seed): run for run in run_b.summary().runs}
    shared = [key for key in of_a if key in of_b]
    if not shared:
        raise ArtifactError(f"nothing to compare: {dir_a} has {_names(of_a)}, {dir_b} has {_names(of_b)}")
    if not allow_different_arrivals:
        for name, seed in shared:
            if apart := _arrivals_apart(_arrivals(run_a, name, seed), _arrivals(run_b, name, seed)):
                raise DifferentArrivals(
                    f"{name}, seed {seed}: the arrivals of {dir_a} (A) and {dir_b} (B) "
                    f"differ: {apart}; a difference in TTFT would not be the "
                    "fabric's. Rerun with the same workload and seed, or ask for the comparison all the same"
                )
    return [
        Difference(*key, metric, unit, value(of_a[key]), value(of_b[key]))
        for key in shared
        for metric, unit, value in METRICS
    ]


def compare(dir_a: Path, dir_b: Path, *, allow_different_arrivals: bool = False) -> RenderableType:
    """The differences as a table for a rich console, with verdicts and what only one run has. Errors as in
    ``differences``.
    """
    found = differences(dir_a, dir_b, allow_different_arrivals=allow_different_arrivals)
    runs_a, runs_b = RunDirectory.open(dir_a).summary().runs, RunDirectory.open(dir_b).summary().runs
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=f"A = {dir_a}\nB = {dir_b}", title_justify="left")
    for header in ("fabric", "metric", "A", "B", "B - A", "relative"):
        table.add_column(header, justify="left" if header in ("fabric", "metric") else "right")
    several = len({difference.seed for difference in found}) > 1
    previous: tuple[str, int] | None = None
    for difference in found:
        key = (difference.name, difference.seed)
        name = f"{difference.name} (seed {difference.seed})" if several else difference.name
        table.add_row(Text(name if key != previous else ""), difference.metric, *_cells(difference))
        previous = key
    lines = []
    keys_a, keys_b = {(run.name, run.seed) for run in runs_a}, {(run.name, run.seed) for run in runs_b}
    for which, only in (("A", keys_a - keys_b), ("B", keys_b - keys_a)):
        if only:
            lines.append(Text(f"only in {which}: {_names(sorted(only))}"))
    for which, runs in (("A", runs_a), ("B", runs_b)):
        lines += [
            Text(f"{which} {run.name}: {run.verdict}: {'; '.join(run.reasons) or 'no reason given'}", style="yellow")
            for run in runs
            if run.verdict != "valid" and (run.name, run.seed) in keys_a & keys_b
        ]
    if allow_different_arrivals:
        lines.append(Text("The arrivals were not compared: a difference need not be the fabric's.", style="yellow"))
    return Group(table, *lines)


def _arrivals(run: RunDirectory, name: str, seed: int) -> pd.DataFrame:
    requests = run.table(name, seed, "requests")
    if requests is None:
        raise ArtifactError(
            f"{run.path / name / f'seed{seed}' / 'requests.csv'} is missing: the arrivals cannot be compared"
        )
    return measured(requests)[list(ARRIVAL_COLUMNS)].sort_values("id").reset_index(drop=True)


def _arrivals_apart(a: pd.DataFrame, b: pd.DataFrame) -> str:
    """Where two lists of arrivals part, in words; empty where they are the same."""
    if len(a) != len(b):
        return f"A was offered {len(a)} requests, B {len(b)}"
    unequal = (a != b).any(axis=1)
    if not unequal.any():
        return ""
    first = int(unequal.to_numpy().argmax())
    in_a, in_b = (", ".join(f"{key} {frame[key].iloc[first]!s}" for key in ARRIVAL_COLUMNS) for frame in (a, b))
    return f"{int(unequal.sum())} of {len(a)} requests, the first being A's {in_a} and B's {in_b}"


def _cells(difference: Difference) -> list[str]:
    def text(value: float | None, sign: str = "") -> str:
        if value is None:
            return UNDEFINED
        if difference.unit == "share":
            # the difference of two shares is in percentage points
            return f"{100 * value:{sign}.1f} {'pp' if sign else '%'}"
        return f"{value:{sign}.3f} s" if difference.unit == "s" else f"{value:{sign}.0f}"

    change = difference.change
    relative = (
        f"{100 * change / difference.a:+.1f} %"
        if difference.unit == "s" and change is not None and difference.a
        else ""
    )
    return [text(difference.a), text(difference.b), text(change, "+"), relative]


def _names(keys: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} seed {seed}" for name, seed in keys) or "no runs"
