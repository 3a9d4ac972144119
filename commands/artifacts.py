"""`heliograph report` and `compare`: what finished runs say, from their artifacts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commands.shared import BAD_INPUT, fail
from outputs.terminal import Terminal, say


def report(run_directory: Annotated[Path, typer.Argument(help="directory of a run")]) -> None:
    """Write report.html again, from the artifacts alone."""
    from results.records.artifacts import ArtifactError, Unwritable
    from results.report.report import write_report

    try:
        say(write_report(run_directory))
    except Unwritable as error:
        fail(str(error))
    except ArtifactError as error:
        fail(str(error), BAD_INPUT)


def compare(
    first: Annotated[Path, typer.Argument(help="directory of a run")],
    others: Annotated[list[Path], typer.Argument(help="directories of others, each compared with the first")],
    different_arrivals: Annotated[
        bool, typer.Option(metavar="", help="compare although the runs did not see the same arrivals")
    ] = False,
) -> None:
    """Runs side by side, from their artifacts alone."""
    from results.records.artifacts import ArtifactError
    from results.report.compare import compare as compare_runs

    try:
        found = compare_runs(first, *others, allow_different_arrivals=different_arrivals)
    except ArtifactError as error:
        fail(str(error), BAD_INPUT)
    Terminal().print(found)
