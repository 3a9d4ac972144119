"""`heliograph sweep`: any grid of experiments, on this machine's processes or on a Dask cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from commands.shared import BAD_INPUT, ExperimentFile, Overrides, Seed, fail, give_back, need_root
from inputs.options import whole
from outputs.terminal import Terminal, say
from process.interrupts import Interrupted

if TYPE_CHECKING:
    from experiments.schema.spec import Experiment
    from sweeps.cell import Cell
    from sweeps.execute import Executed
    from sweeps.grid import GridDirectory

Workers = Annotated[
    int | None,
    typer.Option(parser=whole(1, 1024), metavar="N", help="worker processes of this machine (default: one a core)"),
]
Scheduler = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="use the workers of this Dask scheduler instead")
]
GridDir = Annotated[
    Path | None,
    typer.Option(
        help="where the artifacts go: new, empty, or an interrupted one of the same grid, which goes on "
        "(default results/runs/TIME-NAME)"
    ),
]


def sweep(
    experiment: ExperimentFile,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="key=a,b,c", help="an axis of the grid; * in the key is every item of a list"),
    ] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    emulate: Annotated[
        bool,
        typer.Option("--emulate", metavar="", help="run every cell with real packets (root), one at a time a machine"),
    ] = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    artifact_dir: GridDir = None,
    keep: Annotated[str, typer.Option(help="of each cell: all its artifacts, or its figures only")] = "all",
    constants: Annotated[
        Path | None, typer.Option(help="delays of the twin: fidelity.json of a run, or a YAML file of constants")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="check the grid and list its cells")] = False,
) -> None:
    """Run a grid: every combination of the axes, with every fabric and seed of the file (simulated unless told)."""
    from experiments.schema import plugins
    from experiments.schema.spec import SpecError
    from results.records.artifacts import ArtifactError, write_json, write_text
    from simulation.constants import Constants, ConstantsError, read_constants
    from sweeps.axes import SweepError, parse_axes
    from sweeps.cell import plain
    from sweeps.cluster import check_address
    from sweeps.grid import GridDirectory, cells_of
    from sweeps.inputs import all_inputs
    from sweeps.table import cells_frame, grid_json, grid_table

    if keep not in ("all", "figures"):
        fail(f"--keep {keep!r} is neither all nor figures", BAD_INPUT)
    if emulate and constants is not None:
        fail("--constants are delays of the twin, and --emulate measures them: leave one out", BAD_INPUT)
    if scheduler is not None and workers is not None:
        fail("--workers starts processes here and --scheduler uses others: leave one out", BAD_INPUT)
    if emulate and scheduler is None and (workers or 1) > 1:
        fail(
            f"--workers {workers}: a machine emulates one cell at a time; leave it out, or give --scheduler", BAD_INPUT
        )
    try:
        if scheduler is not None:
            check_address(scheduler)
        axes = parse_axes(over or [])
        delays = Constants() if constants is None else read_constants(constants)
        cells = cells_of(
            experiment,
            axes,
            sets=overrides or [],
            seed=seed,
            substrate="emulation" if emulate else "simulation",
            keep="all" if keep == "all" else "figures",
            constants=delays,
            refusals=refusals_here if emulate and scheduler is None else plugins.refusals,
        )
        check_arrivals(experiment, cells)
    except (ConstantsError, SpecError, SweepError) as error:
        fail(str(error), BAD_INPUT)
    if dry_run:
        for cell in cells:
            say(cell.path)
        say(f"{len(cells)} cells")
        raise typer.Exit
    if emulate and scheduler is None:
        need_root("an emulated cell makes network namespaces")
    definition = {
        "schema": 1,
        "experiment": str(experiment.resolve()),
        "axes": {axis.key: list(axis.values) for axis in axes},
        "cells": len(cells),
        "grid": grid_digest(cells),
        "inputs": all_inputs(cell.reads for cell in cells),
        "keep": keep,
        "source": cells[0].source,
    }
    console = Terminal()
    try:
        directory = GridDirectory.create_or_resume(f"sweep-{plain(experiment.stem)}", definition, artifact_dir)
        done = compute(cells, directory, console, "sweep", workers=workers, scheduler=scheduler, emulator=emulate)
    except (ArtifactError, SweepError) as error:
        fail(str(error), BAD_INPUT)
    try:
        write_text(directory.path / "results.csv", cells_frame(axes, done.outcomes).to_csv(index=False))
        write_json(directory.path / "results.json", grid_json(axes, done.outcomes, done.failures))
    except ArtifactError as error:
        stopped(str(error), cells, directory)
    console.print(grid_table(axes, done.outcomes))
    give_back(directory.path)
    console.say(f"results: {directory.path / 'results.csv'}")
    if done.failures:
        fail(f"{len(done.failures)} of {len(cells)} cells failed; the same command tries them again")


def compute(
    cells: list[Cell],
    directory: GridDirectory,
    console: Terminal,
    title: str,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    emulator: bool = False,
) -> Executed:
    """Compute what is unfinished on workers that are gone afterwards, also after a signal and where nothing
    can be written, which end the command with their exit status and say how to go on. Raises SweepError."""
    from results.records.artifacts import ArtifactError
    from sweeps.execute import execute, unfinished
    from sweeps.progress import GridProgress
    from sweeps.workers import workers as dask_workers

    left = unfinished(cells, directory)
    count = 1 if emulator else min(workers or os.cpu_count() or 1, max(len(left), 1))
    try:
        with GridProgress(title, console=console) as progress:
            if not left:
                return execute(cells, directory, None, progress)

            def note(line: str) -> None:
                say(f"heliograph: {line}", err=True)

            with dask_workers(count, scheduler=scheduler, emulator=emulator, report=note) as client:
                return execute(cells, directory, client, progress)
    except Interrupted as error:
        stopped("interrupted", cells, directory, error.status)
    except ArtifactError as error:
        stopped(str(error), cells, directory)


def stopped(why: str, cells: list[Cell], directory: GridDirectory, code: int = 1) -> NoReturn:
    """End the command in the middle of a grid, and say how to go on."""
    from sweeps.execute import unfinished

    finished = len(cells) - len(unfinished(cells, directory))
    fail(
        f"{why}: {finished} of {len(cells)} cells are finished in {directory.path}; the same command with "
        f"--artifact-dir {directory.path} goes on with the others",
        code,
    )


def check_arrivals(path: Path, cells: list[Cell]) -> None:
    """Refuse what the arrivals of any point and seed cannot be. Fabrics share them, and so do points that differ in
    nothing they depend on; of further seeds traces are read only where no synthetic tenant asks. Raises SweepError."""
    from experiments.schema.spec import Experiment, SpecError
    from inputs import yaml_file
    from sweeps.axes import SweepError
    from sweeps.cell import of_arrivals
    from workloads.traces.trace import TraceError

    seen: set[Any] = set()
    for cell in cells:
        # A choice by session is refused over arrivals without sessions, which the fabrics of a point share.
        by_session = "session-affinity" in cell.config
        if (cell.point, cell.seed, by_session) in seen:  # another fabric
            continue
        seen.add((cell.point, cell.seed, by_session))
        experiment = Experiment.model_validate(yaml_file.parse(cell.config, "a cell"))
        config = (of_arrivals(experiment), by_session)
        if (config, cell.seed) in seen or (config in seen and _synthetic_asks(experiment, cell.seed)):
            continue
        seen |= {config, (config, cell.seed)}
        where = f"{path} with {', '.join(f'{key}={value}' for key, value in cell.point)}" if cell.point else str(path)
        try:
            found = experiment.arrivals(cell.seed)
        except (SpecError, TraceError) as error:
            raise SweepError(f"{where}: {error}") from error
        if all(request.warmup for request in found.requests):
            raise SweepError(
                f"{where}: no request falls into the measured window of seed {cell.seed}; make workload.window_s "
                "longer, raise the tenants' load, or move offset_s of a trace"
            )


def _synthetic_asks(experiment: Experiment, seed: int) -> bool:
    """Whether a synthetic tenant has a request in the window, whatever the traces say: theirs do not change with what
    other tenants ask."""
    tenants = experiment.workload.tenants
    names = {tenant.name for tenant in tenants if tenant.path is None}
    if not names:
        return False
    idle = {"source": "synthetic-agentic", "profile": "tracelab", "path": None, "load": 1e-6, "ties": None}
    workload = experiment.workload.model_copy(
        update={"tenants": [each if each.path is None else each.model_copy(update=idle) for each in tenants]}
    )
    found = experiment.model_copy(update={"workload": workload}).arrivals(seed).requests
    return any(request.tenant in names and not request.warmup for request in found)


def refusals_here(experiment: Experiment) -> list[str]:
    """What `run` refuses on this machine: rules that cannot be loaded, links and names that cannot be made."""
    from emulation.doctor import plan_checks
    from experiments.schema import plugins

    return plugins.refusals(experiment) + plan_checks.refusals(experiment)


def grid_digest(cells: list[Cell]) -> str:
    """What tells two grids apart: their cells, in order."""
    import hashlib

    return hashlib.sha256("".join(cell.digest for cell in cells).encode()).hexdigest()[:16]
