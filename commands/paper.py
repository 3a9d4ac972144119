"""`heliograph paper`: the source paper's figures beside this project's, from grids on the twin."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from commands.shared import BAD_INPUT, fail, give_back
from commands.sweep import GridDir, Scheduler, Workers, compute, grid_digest, stopped
from outputs.terminal import Terminal, say

Figure = Annotated[
    list[str] | None,
    typer.Option("--figure", metavar="FIGURE", help="only this one, such as 3b; can be repeated (default: all)"),
]


def paper(
    figure: Figure = None,
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="short windows and few grid points: minutes")
    ] = False,
    traces: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="folder with azure/ and mooncake/ (default: $HELIOGRAPH_TRACES, or traces/)"),
    ] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    artifact_dir: GridDir = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="say how many cells each figure has")] = False,
) -> None:
    """The paper's figures and this project's side by side, with intervals over the paired windows."""
    from experiments.schema.spec import SpecError
    from paper.measure import measured
    from paper.plan import cells as cells_of_part
    from paper.plan import find_traces, form, parts_of
    from paper.report import Line, side_by_side, tally, write_artifacts
    from paper.rows import read_rows, reproduces
    from results.records.artifacts import ArtifactError
    from sweeps.axes import SweepError
    from sweeps.cluster import check_address
    from sweeps.grid import GridDirectory
    from sweeps.inputs import all_inputs
    from sweeps.progress import duration
    from sweeps.source import source_digest

    if scheduler is not None and workers is not None:
        fail("--workers starts processes here and --scheduler uses others: leave one out", BAD_INPUT)
    chosen = figure or []
    rows = [row for row in read_rows() if not chosen or row.figure in chosen]
    known = list(dict.fromkeys(row.figure for row in read_rows()))
    if unknown := [name for name in chosen if name not in known]:
        fail(f"--figure {unknown[0]!r} is none of the paper's that are here (allowed: {', '.join(known)})", BAD_INPUT)
    console = Terminal()
    try:
        if scheduler is not None:
            check_address(scheduler)
        parts = parts_of(chosen, quick=quick)
        place = find_traces(traces) if any(part.needs_traces for part in parts) else Path()
        by_part = {part.name: cells_of_part(part, place, quick=quick) for part in parts}
        if dry_run:
            for name, of_part in by_part.items():
                say(f"{name}: {len(of_part)} cells")
            raise typer.Exit
        # a cell that two figures share is computed once
        cells = list({cell.digest: cell for of_part in by_part.values() for cell in of_part}.values())
        definition = {
            "schema": 1,
            "paper": chosen or known,
            "quick": quick,
            "cells": len(cells),
            "grid": grid_digest(cells),
            "inputs": all_inputs(cell.reads for cell in cells),
            "source": source_digest("simulation"),
        }
        name = "paper-quick" if quick else "paper"
        directory = GridDirectory.create_or_resume(name, definition, artifact_dir)
        console.say(f"artifacts: {directory.path}")
        began_s = time.monotonic()
        done = compute(cells, directory, console, name, workers=workers, scheduler=scheduler)
    except (ArtifactError, SpecError, SweepError) as error:
        fail(str(error), BAD_INPUT)
    finished = {cell.digest: outcome for cell in cells if (outcome := directory.outcome(cell)) is not None}
    outcomes = {
        part: [replace(finished[cell.digest], point=cell.point) for cell in of_part if cell.digest in finished]
        for part, of_part in by_part.items()
    }
    lines = [Line(row, found, reproduces(row, found)) for row in rows for found in [measured(row, by_part, outcomes)]]
    about = {
        "form": ("Quick form, few grid points. " if quick else "") + form(by_part),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cells": len(cells),
        "failed": done.failures,
        "source": source_digest("simulation"),
    }
    try:
        report = write_artifacts(directory.path, lines, about)
    except ArtifactError as error:
        stopped(str(error), cells, directory)
    console.print(side_by_side(lines))
    console.say(f"reproduces: {tally(lines)} ({len(cells)} cells, {duration(time.monotonic() - began_s)})")
    give_back(directory.path)
    console.say(f"report: {report}")
    if done.failures:
        fail(
            f"{len(done.failures)} of {len(cells)} cells failed; with --artifact-dir {directory.path} they are tried "
            "again"
        )
