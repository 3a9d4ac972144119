"""Runs side by side, from their artifacts alone: each against the first.

A difference means something only when both runs served the same requests at the same times, so runs whose arrivals
differ are refused unless the caller asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from inputs.errors import printable
from outputs.sheet import Column, Sheet
from results.metrics.metrics import measured
from results.records.artifacts import ArtifactError, RunDirectory
from results.records.schema import TTFT_PARTS
from results.records.summary import RunSummary
from results.report.style import PART_NAMES
from results.report.table import UNDEFINED

ARRIVAL_COLUMNS = ("id", "tenant", "arrival_s", "new_tokens", "cached_tokens")


class DifferentArrivals(ArtifactError):
    """The two runs did not serve the same requests; the message says where they part."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of one fabric and seed in both runs; None where a run could not tell.

    ``unit``: s, ms (of seconds all the same), share or count.
    """

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


def _part(part: str) -> Callable[[RunSummary], float | None]:
    return lambda run: run.ttft_parts_s.get(part)


METRICS: tuple[tuple[str, str, Callable[[RunSummary], float | None]], ...] = (
    ("completed", "count", lambda run: run.requests.completed),
    ("failed", "count", lambda run: run.requests.failed),
    ("unfinished", "count", lambda run: run.requests.unfinished),
    ("TTFT mean", "s", lambda run: run.ttft_s.mean),
    ("TTFT p50", "s", lambda run: run.ttft_s.p50),
    ("TTFT p90", "s", lambda run: run.ttft_s.p90),
    ("TTFT p95", "s", lambda run: run.ttft_s.p95),
    ("TTFT p99", "s", lambda run: run.ttft_s.p99),
    *((f"mean {PART_NAMES[part]}", "ms", _part(part)) for part in TTFT_PARTS),
    ("exposed share", "share", lambda run: run.ttft_exposed_share),
    ("hidden share", "share", lambda run: run.hidden_share),
    ("SLO attainment", "share", lambda run: run.slo_attainment),
    ("switches", "count", lambda run: run.switches),
    ("reuses", "count", lambda run: run.reuses),
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


def compare(dir_a: Path, *others: Path, allow_different_arrivals: bool = False) -> RenderableType:
    """The differences as a table for a rich console, with verdicts and what only some runs have: B, C, ... against A.

    A row that no run can fill is left out. Errors as in ``differences``.
    """
    directories = (dir_a, *others)
    found = [differences(dir_a, other, allow_different_arrivals=allow_different_arrivals) for other in others]
    summaries = [RunDirectory.open(directory).summary().runs for directory in directories]
    keys = [{(run.name, run.seed) for run in runs} for runs in summaries]
    shared = set.intersection(*keys)
    if not shared:
        raise ArtifactError(f"nothing to compare: no fabric and seed is in all of {', '.join(map(str, directories))}")
    rows: dict[tuple[str, int, str], list[Difference]] = {}
    for each in (difference for one in found for difference in one):
        if (each.name, each.seed) in shared:
            rows.setdefault((each.name, each.seed, each.metric), []).append(each)
    several = len({seed for _, seed in shared}) > 1
    cells: list[list[str]] = []
    previous: tuple[str, int] | None = None
    for (name, seed, metric), row in rows.items():
        if all(value is None for each in row for value in (each.a, each.b)):
            continue
        shown = (f"{name} (seed {seed})" if several else name) if (name, seed) != previous else ""
        cells.append([shown, metric, *_cells(row)])
        previous = (name, seed)
    letters = ascii_uppercase[: len(directories)]
    titles = [Text(printable(f"{letter} = {path}")) for letter, path in zip(letters, directories, strict=True)]
    lines = []
    for letter, own in zip(letters, keys, strict=True):
        if only := own - shared:
            lines.append(Text(printable(f"only in {letter}: {_names(sorted(only))}")))
    for letter, runs in zip(letters, summaries, strict=True):
        lines += [
            Text(printable(f"{letter} {run.name}: {run.verdict}: {_reasons(run)}"), style="yellow")
            for run in runs
            if run.verdict != "valid" and (run.name, run.seed) in shared
        ]
    if allow_different_arrivals:
        lines.append(Text("The arrivals were not compared: a difference need not be the fabric's.", style="yellow"))
    return Group(*titles, _sheet(letters, cells), *lines)


def _sheet(letters: str, cells: Sequence[Sequence[str]]) -> Sheet:
    """Values and differences in one table, or in two where one is too wide."""
    changes = [header for letter in letters[1:] for header in (f"{letter} - A", "relative")]
    headers = ["fabric", "metric", *letters, *changes]
    every, values = range(len(headers)), range(2 + len(letters))
    return Sheet(
        [Column(header, "figure" if number > 1 else "name") for number, header in enumerate(headers)],
        cells,
        names=2,
        layouts=([every], [values, [0, 1, *every[len(values) :]]]),
    )


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


def _cells(row: Sequence[Difference]) -> list[str]:
    """A's value, those of the others, and for each of them the difference and how much of A's value it is."""
    cells = [_text(row[0].a, row[0].unit), *(_text(each.b, each.unit) for each in row)]
    for each in row:
        timed = each.unit in ("s", "ms") and each.change is not None and each.a
        relative = f"{100 * each.change / each.a:+.1f} %" if timed else ""  # type: ignore[operator]
        cells += [_text(each.change, each.unit, "+"), relative]
    return cells


def _text(value: float | None, unit: str, sign: str = "") -> str:
    if value is None:
        return UNDEFINED
    if unit == "share":
        # the difference of two shares is in percentage points
        return f"{100 * value:{sign}.1f} {'pp' if sign else '%'}"
    if unit == "ms":
        return f"{value * 1e3:{sign}.1f} ms"
    return f"{value:{sign}.3f} s" if unit == "s" else f"{value:{sign}.0f}"


def _reasons(run: RunSummary) -> str:
    return "; ".join(run.reasons) or "no reason given"


def _names(keys: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} seed {seed}" for name, seed in keys) or "no runs"
