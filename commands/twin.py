"""`heliograph simulate` and `validate`: what ideal flows would have done, and what the packets did beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.check import checked
from commands.packets import run_packets
from commands.shared import BAD_INPUT, FAILED, ArtifactDir, ExperimentFile, Overrides, Seed, fail, give_back, missing
from outputs.terminal import Terminal, say

if TYPE_CHECKING:
    from results.records.artifacts import RunDirectory


def simulate(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    seed: Seed = None,
    artifact_dir: ArtifactDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="check the file and say what would run")
    ] = False,
    constants: Annotated[
        Path | None, typer.Option(help="delays to add: fidelity.json of a run, or a YAML file of constants")
    ] = None,
) -> None:
    """Predict an experiment with ideal flows in virtual time: the same artifacts as run, no root, no network."""
    from inputs.plugin_fault import PluginFault
    from results.records.artifacts import RUNS, ArtifactError, RunDirectory
    from results.report.table import print_summary
    from simulation.constants import Constants, ConstantsError, read_constants
    from simulation.experiment_run import simulate_experiment

    found = checked(experiment, overrides or [], seed, dry_run=dry_run)
    if found.cluster.link_delay_us:
        say("the twin has no propagation delay: cluster.link_delay_us is left out")
    made = missing(artifact_dir or RUNS)
    directory: RunDirectory | None = None
    try:
        delays = Constants() if constants is None else read_constants(constants)
        directory = RunDirectory.create(found.name, artifact_dir=artifact_dir)
        summary = simulate_experiment(found, directory, argv=sys.argv, constants=delays, report=say)
    except (ArtifactError, ConstantsError) as error:
        fail(str(error), BAD_INPUT if directory is None else FAILED)  # a disk that took no more has been computed for
    except PluginFault as error:
        fail(str(error))
    finally:
        if directory is not None:
            give_back(directory.path, made)
    print_summary(summary)
    say(f"report: {directory.path / 'report.html'}")


def validate(
    experiment: Annotated[Path | None, typer.Argument(help="experiment file (YAML)", show_default=False)] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    artifact_dir: ArtifactDir = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="compare this finished run instead of making one (no root)"),
    ] = None,
) -> None:
    """Run an experiment with real packets (root) and on the twin, and say what they disagree on."""
    from results.records.artifacts import ArtifactError, RunDirectory

    if (experiment is None) == (run is None):
        fail("give an experiment file to run, or --run DIR of a finished run", BAD_INPUT)
    if experiment is not None:
        directory = run_packets(experiment, overrides or [], seed, artifact_dir, dry_run=False)
        _write_residuals(directory, directory.path)
        return
    assert run is not None
    if overrides or seed is not None:
        fail("--run takes the experiment and the seeds of that run: leave out --set and --seed", BAD_INPUT)
    try:
        finished = RunDirectory.open(run)
    except ArtifactError as error:
        fail(str(error), BAD_INPUT)
    if artifact_dir is not None and not artifact_dir.is_dir():
        fail(f"--artifact-dir {artifact_dir} is no directory: make it, or leave it out", BAD_INPUT)
    _write_residuals(finished, artifact_dir or finished.path)


def _write_residuals(directory: RunDirectory, write_to: Path) -> None:
    from inputs.errors import InputError
    from inputs.plugin_fault import PluginFault
    from results.records.artifacts import write_json
    from simulation.validation import residual_table, validate

    try:
        document, _ = validate(directory)
        written = write_json(write_to / "validation.json", document)
        give_back(written)
    except InputError as error:
        fail(str(error), BAD_INPUT)
    except PluginFault as error:
        fail(str(error))
    console = Terminal()
    console.print(residual_table(document))
    for limitation in document["limitations"]:
        console.say(f"known limitation: {limitation}")
    console.say(f"residuals: {written}")
