"""One PNG of a run for a README: the TTFT CDF and the mean parts, side by side."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from results.records.artifacts import ArtifactError, RunDirectory, write_bytes
from results.records.schema import TTFT_PARTS
from results.report.figures import ttft_steps
from results.report.style import MATPLOTLIB_DASHES, PART_COLOURS, PART_NAMES, fabric_style
from results.report.table import label


def write_picture(run_dir: Path, path: Path) -> Path:
    """Draw ``run_dir`` into a PNG at ``path``; returns it. ArtifactError where the run or its requests cannot be
    read.
    """
    # Half a second to import, and no other command draws with it.
    from matplotlib.figure import Figure

    run = RunDirectory.open(run_dir)
    runs = run.summary().runs
    figure = Figure(figsize=(12, 4.4), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.15))
    for index, entry in enumerate(runs):
        requests = run.table(entry.name, entry.seed, "requests")
        if requests is None:
            raise ArtifactError(
                f"{run.path / entry.name / f'seed{entry.seed}' / 'requests.csv'} is missing: no CDF to draw"
            )
        times_s, shares = ttft_steps(requests)
        colour, dash = fabric_style(index)
        name = f"{label(entry, runs)} (n = {len(times_s)})"
        left.step(
            times_s, shares, where="post", color=colour, linestyle=MATPLOTLIB_DASHES[dash], linewidth=1.8, label=name
        )
    left.set(xscale="log", ylim=(0, 1.02), xlabel="TTFT, s", ylabel="share of offered requests", title="TTFT by fabric")
    ticks = [
        seconds
        for seconds in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
        if _inside(seconds, left.get_xlim())
    ]
    left.set_xticks(ticks, [f"{seconds:g}" for seconds in ticks])
    left.minorticks_off()
    left.grid(color="#e6e6e6")
    left.legend(frameon=False, loc="lower right", fontsize=9)

    names = [label(entry, runs) for entry in runs]
    begin_s = [0.0] * len(runs)
    for part in TTFT_PARTS:
        values = [entry.ttft_parts_s.get(part) or 0.0 for entry in runs]
        right.barh(
            names, values, left=begin_s, color=PART_COLOURS[part], edgecolor="white", label=PART_NAMES[part], height=0.6
        )
        begin_s = [so_far + value for so_far, value in zip(begin_s, values, strict=True)]
    for name, entry, end_s in zip(names, runs, begin_s, strict=True):
        text = f" {entry.ttft_s.mean:.3f} s" if entry.ttft_s.mean is not None else " no request completed"
        right.text(end_s, name, text, va="center", fontsize=10)
    right.invert_yaxis()
    right.set(
        xlim=(0, 1.18 * max([*begin_s, 1e-3])), xlabel="mean over completed requests, s", title="Parts of the mean TTFT"
    )
    right.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=9)
    for axes in (left, right):
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    if doubtful := [f"{label(entry, runs)}: {entry.verdict}" for entry in runs if entry.verdict != "valid"]:
        figure.suptitle("; ".join(doubtful), color="#b00020", fontsize=11)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return write_bytes(path, buffer.getvalue())


def _inside(value: float, limits: tuple[Any, Any]) -> bool:
    return bool(limits[0] <= value <= limits[1])
