"""The terminal's tables: one row per fabric (and seed), where its TTFT goes, then by how much each circuit fabric
differs, then what to be wary of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from inputs.errors import printable
from outputs.sheet import Cell, Column, Sheet
from outputs.terminal import Terminal
from results.metrics.collisions import collision_line
from results.metrics.hash_seeds import hash_spreads
from results.records.schema import TTFT_PARTS
from results.records.summary import RunSummary, Summary
from results.report.style import PART_NAMES

UNDEFINED = "-"
_VERDICT_STYLE = {"valid": "green", "degraded": "yellow", "invalid": "bold red"}
HEADERS = (
    "fabric",
    "offered",
    "completed (n)",
    "failed (unfinished)",
    "mean s",
    "p50 s",
    "p90 s",
    "p95 s",
    "exposed share",
    "hidden share",
    "SLO attainment",
    "verdict",
)
#: Mean milliseconds of each part of TTFT, which add up to its mean, and what circuits did for it.
PART_HEADERS = ("mean ms of", *(PART_NAMES[part] for part in TTFT_PARTS), "TTFT", "switches", "reuses")


def checked(summary: Mapping[str, Any] | Summary) -> Summary:
    """A summary as objects, be it the dictionary of ``summary.json`` or objects already."""
    return summary if isinstance(summary, Summary) else Summary.model_validate(summary)


def seconds(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.3f}"


def milliseconds(value: float | None) -> str:
    """Of seconds."""
    return UNDEFINED if value is None else f"{value * 1e3:.1f}"


def share(value: float | None) -> str:
    return UNDEFINED if value is None else f"{100 * value:.1f} %"


def label(run: RunSummary, runs: Iterable[RunSummary]) -> str:
    """The fabric's name; with its seed where the file has several."""
    return run.name if len({other.seed for other in runs}) == 1 else f"{run.name} (seed {run.seed})"


def row(run: RunSummary, runs: Iterable[RunSummary]) -> list[str]:
    """One run as the texts of ``HEADERS``."""
    ttft, requests = run.ttft_s, run.requests
    return [
        label(run, runs),
        str(requests.offered),
        str(requests.completed),
        f"{requests.failed} ({requests.unfinished})",
        *(seconds(value) for value in (ttft.mean, ttft.p50, ttft.p90, ttft.p95)),
        *(share(value) for value in (run.ttft_exposed_share, run.hidden_share, run.slo_attainment)),
        run.verdict,
    ]


def part_rows(runs: Sequence[RunSummary]) -> list[list[str]]:
    """The runs that know the parts of their TTFT, as the texts of ``PART_HEADERS``."""
    return [
        [
            label(run, runs),
            *(milliseconds(run.ttft_parts_s.get(part)) for part in TTFT_PARTS),
            milliseconds(run.ttft_s.mean),
            *(UNDEFINED if number is None else str(number) for number in (run.switches, run.reuses)),
        ]
        for run in runs
        if any(value is not None for value in run.ttft_parts_s.values())
    ]


def comparisons(summary: Mapping[str, Any] | Summary) -> list[str]:
    """By how much each circuit fabric's mean TTFT differs from the first ``eps`` fabric's of the same seed; a
    sentence each.
    """
    runs = checked(summary).runs
    baselines: dict[int, RunSummary] = {}
    for run in runs:
        if run.fabric == "eps":
            baselines.setdefault(run.seed, run)
    sentences = []
    for run in runs:
        baseline = baselines.get(run.seed)
        if run.fabric != "ocs" or baseline is None:
            continue
        name, other = label(run, runs), label(baseline, runs)
        ours, theirs = run.ttft_s.mean, baseline.ttft_s.mean
        if ours is None or theirs is None:
            undefined = run if ours is None else baseline
            reason = undefined.ttft_s.null_reasons.get("mean", "its mean is undefined")
            sentences.append(f"{name}: mean TTFT cannot be compared with {other}: {label(undefined, runs)}: {reason}")
            continue
        change = ours / theirs - 1
        direction = "equal to" if ours == theirs else f"{share(abs(change))} {'below' if change < 0 else 'above'}"
        sentence = (
            f"{name}: mean TTFT {ours:.3f} s is {direction} {other}'s {theirs:.3f} s "
            f"({ours - theirs:+.3f} s; n = {run.ttft_s.n} and {baseline.ttft_s.n})"
        )
        if doubtful := [label(each, runs) for each in (run, baseline) if each.verdict != "valid"]:
            sentence += f"; not to be relied on: {' and '.join(doubtful)} not valid"
        else:
            lost = [each.requests.offered - each.requests.completed for each in (run, baseline)]
            if any(lost):
                sentence += f"; the means leave out {lost[0]} and {lost[1]} requests that did not complete"
        sentences.append(sentence)
    return sentences


def twin_lines(run: RunSummary, name: str) -> list[str]:
    """What the flow-level twin predicts beside what was measured, in one line; none where there is no prediction."""
    if run.twin is None:
        return []
    predicted, ratio = run.twin["ttft_s"], run.twin["mean_ratio"]
    figures = ", ".join(f"{key} {seconds(predicted[key])} s" for key in ("mean", "p50", "p90", "p95"))
    return [f"{name}: twin: {figures}; measured / twin {UNDEFINED if ratio is None else f'{ratio:.3f}'} (means)"]


def remarks(summary: Mapping[str, Any] | Summary) -> list[str]:
    """Reasons of verdicts that are not ``valid``, the twin's prediction, notes, and why a figure is undefined; a
    sentence each.
    """
    runs = checked(summary).runs
    lines = []
    for run in runs:
        name = label(run, runs)
        lines += [f"{name}: {run.verdict}: {reason}" for reason in run.reasons]
        lines += twin_lines(run, name)
        lines += [f"{name}: {note}" for note in run.notes]
        if (ecmp := (run.accounting or {}).get("ecmp")) and ecmp["transfers"]:
            lines.append(f"{name}: {collision_line(ecmp)}")
        by_reason: dict[str, list[str]] = {}
        for key in ("mean", "p50", "p90", "p95"):
            if key in run.ttft_s.null_reasons:
                by_reason.setdefault(run.ttft_s.null_reasons[key], []).append(key)
        lines += [f"{name}: {', '.join(keys)} undefined: {reason}" for reason, keys in by_reason.items()]
    lines += [spread.line() for spread in hash_spreads(runs)]
    return lines


class SummaryTable:
    """The table and its remarks for a console; in parts or stacked where it is too wide, so that no number is cut."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        runs = self.summary.runs
        rows: list[list[Cell]] = [
            [*row(run, runs)[:-1], Text(run.verdict, style=_VERDICT_STYLE[run.verdict])] for run in runs
        ]
        # what happened to the requests may stand apart from how long they took
        apart = [[0, *range(4, 11)], [0, *range(1, 4), 11]]
        yield Sheet(_columns(HEADERS), rows, layouts=([range(len(HEADERS))], apart))
        if parts := part_rows(runs):
            every = range(len(PART_HEADERS))
            yield Sheet(_columns(PART_HEADERS), parts, layouts=([every], [every[:-2]]))
        for sentence in comparisons(self.summary):
            yield Text(printable(sentence), style="bold")
        for remark in remarks(self.summary):
            yield Text(printable(remark))


def _columns(headers: Sequence[str]) -> list[Column]:
    """The first of names. Words of a header may stand on lines of their own, figures may not."""
    first, *others = headers
    kinds = {"verdict": "name"}
    return [Column(first, "name"), *(Column("\n".join(each.split()), kinds.get(each, "figure")) for each in others)]


def summary_table(summary: Mapping[str, Any] | Summary) -> RenderableType:
    """The table and its remarks, for a rich console. Use ``print_summary`` where the output may be no terminal."""
    return SummaryTable(checked(summary))


def summary_text(summary: Mapping[str, Any] | Summary) -> str:
    """The same as plain text: aligned columns of whatever width they need, no box, no colour, nothing wrapped."""
    runs = checked(summary).runs
    lines = _aligned([list(HEADERS), *(row(run, runs) for run in runs)])
    if parts := part_rows(runs):
        lines += _aligned([list(PART_HEADERS), *parts])
    return "".join(f"{printable(line)}\n" for line in [*lines, *comparisons(summary), *remarks(summary)])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns as wide as they need to be, the first and the verdict on the left."""
    widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if number == 0 or header == "verdict" else cell.rjust(width)
            for number, (cell, width, header) in enumerate(zip(cells, widths, rows[0], strict=True))
        ).rstrip()
        for cells in rows
    ]


def print_summary(summary: Mapping[str, Any] | Summary, file: TextIO | None = None) -> None:
    """Print the table: rich on a terminal, plain text (which a pipe or a log keeps whole) elsewhere."""
    console = Terminal(file=file)
    if console.is_terminal:
        console.print(summary_table(summary))
    else:
        console.file.write(summary_text(summary))
