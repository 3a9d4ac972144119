"""The door: every command of `./heliograph` except setup and test, which the launcher does itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from economics.commands import cost, link_budget

if TYPE_CHECKING:
    from experiments.spec import Experiment
    from results.artifacts import RunDirectory
    from results.summary import Summary

ROOT = Path(__file__).resolve().parent
DEMO = ROOT / "experiments" / "demo.yaml"

#: Exit codes beside 0 (done; verdicts may be degraded) and 1 (failed).
BAD_INPUT, INVALID, INTERRUPTED = 2, 3, 130

app = typer.Typer(
    name="heliograph",
    help="What the network does to the time to first token of disaggregated LLM serving, with real packets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("cost")(cost)
app.command("link-budget")(link_budget)

ExperimentFile = Annotated[Path, typer.Argument(help="experiment file (YAML)", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="path.to.key=value", help="override a key of the file; list items by index"),
]
Seed = Annotated[int | None, typer.Option(help="run with this seed instead of the file's")]
ArtifactDir = Annotated[
    Path | None, typer.Option(help="where to write the artifacts (new or empty; default results/runs/TIME-NAME)")
]


@app.command()
def demo(artifact_dir: ArtifactDir = None) -> None:
    """Circuits against ECMP with the same arrivals: runs experiments/demo.yaml, prints the table, writes the report."""
    _run(DEMO, [], None, artifact_dir, dry_run=False)


@app.command()
def run(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    seed: Seed = None,
    artifact_dir: ArtifactDir = None,
    dry_run: Annotated[bool, typer.Option(help="check the file and say what would run; needs no root")] = False,
    pcap: Annotated[
        bool,
        typer.Option("--pcap", help="capture the KV packets (Wireshark opens the files) and audit the run by them"),
    ] = False,
) -> None:
    """Run an experiment with real packets (root)."""
    _run(experiment, overrides or [], seed, artifact_dir, dry_run=dry_run, pcap=pcap)


@app.command()
def simulate(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    seed: Seed = None,
    artifact_dir: ArtifactDir = None,
    dry_run: Annotated[bool, typer.Option(help="check the file and say what would run")] = False,
    constants: Annotated[
        Path | None, typer.Option(help="delays to add: fidelity.json of a run, or a YAML file of constants")
    ] = None,
) -> None:
    """Predict an experiment with ideal flows in virtual time: the same artifacts as run, no root, no network."""
    from results.artifacts import ArtifactError, RunDirectory
    from results.table import print_summary
    from simulation.constants import Constants, ConstantsError, read_constants
    from simulation.experiment_run import simulate_experiment

    checked = _checked(experiment, overrides or [], seed, dry_run=dry_run)
    try:
        delays = Constants() if constants is None else read_constants(constants)
        directory = RunDirectory.create(checked.name, artifact_dir=artifact_dir)
        summary = simulate_experiment(checked, directory, argv=sys.argv, constants=delays, report=typer.echo)
    except (ArtifactError, ConstantsError) as error:
        _fail(str(error), BAD_INPUT)
    print_summary(summary)
    typer.echo(f"report: {directory.path / 'report.html'}")


@app.command()
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
    from results.artifacts import ArtifactError, RunDirectory

    if (experiment is None) == (run is None):
        _fail("give an experiment file to run, or --run DIR of a finished run", BAD_INPUT)
    if experiment is not None:
        directory = _run(experiment, overrides or [], seed, artifact_dir, dry_run=False)
        _validate(directory, directory.path)
        return
    assert run is not None
    if overrides or seed is not None:
        _fail("--run takes the experiment and the seeds of that run: leave out --set and --seed", BAD_INPUT)
    try:
        finished = RunDirectory.open(run)
    except ArtifactError as error:
        _fail(str(error), BAD_INPUT)
    if artifact_dir is not None and not artifact_dir.is_dir():
        _fail(f"--artifact-dir {artifact_dir} is no directory: make it, or leave it out", BAD_INPUT)
    _validate(finished, artifact_dir or finished.path)


@app.command()
def doctor() -> None:
    """What this machine can do, what is missing, and the remedy; exit 1 if it cannot run an experiment."""
    from rich.console import Console

    from emulation.preflight import can_run, capabilities, doctor_table

    found = capabilities()
    Console().print(doctor_table(found))
    raise typer.Exit(0 if can_run(found) else 1)


@app.command()
def clean() -> None:
    """Remove exactly what dead runs of ours left behind (root)."""
    from emulation.ledger import LedgerError, dead_runs
    from emulation.ledger import clean as clean_run

    _need_root("clean removes namespaces and processes")
    found = dead_runs()
    if not found:
        typer.echo("nothing to remove: no dead run left anything behind")
    for directory in found:
        try:
            for line in clean_run(directory):
                typer.echo(f"removed {line}")
        except LedgerError as error:
            _fail(str(error))


@app.command()
def fit(
    file: Annotated[Path, typer.Argument(help="CSV of measured prefills with the columns new, cached, ms")],
    tp: Annotated[int, typer.Option(min=1, help="tensor-parallel ranks that were measured")],
    chunk_tokens: Annotated[int, typer.Option(min=1, help="most new tokens of one chunk")] = 2048,
    output: Annotated[
        Path | None, typer.Option(help="timing file to write (default: FILE with .yaml; never overwritten)")
    ] = None,
) -> None:
    """Fit a prefill timing model to measurements, and write it as a file that prefill.timing takes."""
    from results.artifacts import ArtifactError, write_text
    from workloads.prefill_fit import FitError, read_samples, timing_yaml
    from workloads.prefill_fit import fit as fit_timing

    target = output or file.with_suffix(".yaml")
    if target.suffix not in (".yaml", ".yml"):
        _fail(f"--output {target}: prefill.timing takes a file ending in .yaml; name it so", BAD_INPUT)
    if target.exists():
        _fail(f"{target} exists: name another file with --output, or remove it", BAD_INPUT)
    try:
        found = fit_timing(read_samples(file), chunk_tokens=chunk_tokens, where=str(file))
        write_text(target, timing_yaml(found, tp=tp, source=file.name))
    except FitError as error:
        _fail(str(error), BAD_INPUT)
    except ArtifactError as error:
        _fail(f"{error}; name another file with --output", BAD_INPUT)
    timing, worst = found.timing, found.worst
    typer.echo(
        f"T_ms = max({timing.floor_ms:.4g}, {timing.t0_ms:.4g} + {timing.a_ms_per_token:.4g} n + "
        f"{timing.b_ms_per_token2:.4g} n (c + n/2))"
    )
    typer.echo(
        f"{found.rows} rows, relative error: median {found.median_error:.2%}, p95 {found.p95_error:.2%}, maximum "
        f"{found.max_error:.2%} (new {worst.new_tokens}, cached {worst.cached_tokens}, {worst.ms:g} ms)"
    )
    typer.echo(f"written to {target}: use it with --set prefill.timing={target}")


@app.command()
def report(run_directory: Annotated[Path, typer.Argument(help="directory of a run")]) -> None:
    """Write report.html again, from the artifacts alone."""
    from results.artifacts import ArtifactError
    from results.report import write_report

    try:
        typer.echo(write_report(run_directory))
    except ArtifactError as error:
        _fail(str(error), BAD_INPUT)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="directory of a run")],
    second: Annotated[Path, typer.Argument(help="directory of another")],
    different_arrivals: Annotated[
        bool, typer.Option(help="compare although the two runs did not see the same arrivals")
    ] = False,
) -> None:
    """Two runs side by side, from their artifacts alone."""
    from rich.console import Console

    from results.artifacts import ArtifactError
    from results.compare import compare as compare_runs

    try:
        Console().print(compare_runs(first, second, allow_different_arrivals=different_arrivals))
    except ArtifactError as error:
        _fail(str(error), BAD_INPUT)


@app.command()
def trace(
    file: Annotated[Path, typer.Argument(help="trace file: plain, gzip or zstd", show_default=False)],
    source: Annotated[str, typer.Option(help="its format; auto recognises it by content")] = "auto",
    cluster: Annotated[
        Path | None, typer.Option(metavar="EXPERIMENT.yaml", help="also say what this experiment's cluster would see")
    ] = None,
    max_context_tokens: Annotated[int, typer.Option(min=2, help="longer requests are dropped and counted")] = 131_072,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON, in real units")] = False,
) -> None:
    """What would be replayed of a trace: rows, percentiles of tokens, prefix hits, load and KV demand of a cluster."""
    import json

    from experiments.spec import SpecError, load
    from workloads.traces.formats import SOURCES, open_trace
    from workloads.traces.summary import Server, lines, summarise
    from workloads.traces.trace import TraceError

    if source not in SOURCES:
        _fail(f"--source {source!r} is no trace format (allowed: {', '.join(SOURCES)})", BAD_INPUT)
    try:
        server = None
        if cluster is not None:
            experiment = load(cluster)
            server = Server(experiment.cluster.prefill_instances, experiment.timing, experiment.kv)
        reading = open_trace(file, source, max_context_tokens=max_context_tokens)
        found = summarise(reading, server)
    except (SpecError, TraceError) as error:
        _fail(str(error), BAD_INPUT)
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines(found, reading.report().lines())))


def _checked(
    path: Path, overrides: list[str], seed: int | None, *, dry_run: bool, emulated: bool = False
) -> Experiment:
    """The experiment, with requests in every window, and with links that can be made where it is to be `emulated`;
    with `dry_run` it is printed, and that is all."""
    from emulation.plan_checks import refusals
    from experiments import rules
    from experiments.spec import SpecError, load
    from workloads.traces.trace import TraceError

    try:
        experiment = load(path, overrides, seed)
        rules.look_in(path)
        refused = rules.refusals(experiment) + (refusals(experiment) if emulated else [])
        if refused:
            _fail("\n".join(f"{path}: {line}" for line in refused), BAD_INPUT)
        arrivals = {seed: experiment.arrivals(seed) for seed in experiment.seeds}
    except (SpecError, TraceError) as error:
        _fail(str(error), BAD_INPUT)
    empty = [seed for seed, found in arrivals.items() if not any(not r.warmup for r in found.requests)]
    if empty:
        _fail(
            f"{path}: no request falls into the measured window of seed {empty[0]}; make workload.window_s longer, "
            "raise the tenants' load, or move offset_s of a trace",
            BAD_INPUT,
        )
    if dry_run:
        typer.echo(experiment.dump())
        for found in arrivals.values():
            for report_ in found.reports:
                typer.echo("\n".join(report_.lines()))
        raise typer.Exit
    return experiment


def _run(
    path: Path, overrides: list[str], seed: int | None, artifact_dir: Path | None, *, dry_run: bool, pcap: bool = False
) -> RunDirectory:
    """Run an experiment, its twin after it, and print the table; returns where the artifacts are."""
    experiment = _checked(path, overrides, seed, dry_run=dry_run, emulated=True)
    _need_root("a run makes network namespaces")

    from rich.console import Console

    from emulation.experiment_run import run_experiment
    from emulation.fabric_run import RunFailed
    from emulation.interrupts import Interrupted
    from emulation.ledger import LedgerError
    from emulation.netns import NamespaceError
    from emulation.ovs import OpenVSwitchError
    from emulation.preflight import can_run, capabilities, choose_datapath, doctor_table
    from emulation.testbed import TestbedError
    from results.artifacts import ArtifactError, RunDirectory
    from results.table import print_summary

    console = Console(highlight=False)
    found_capabilities = capabilities()
    if not can_run(found_capabilities):
        console.print(doctor_table(found_capabilities))
        _fail("this machine cannot run an experiment: see the table for what is missing and the remedy")
    try:
        directory = RunDirectory.create(experiment.name, artifact_dir=artifact_dir)
    except ArtifactError as error:
        _fail(str(error), BAD_INPUT)
    try:
        summary = run_experiment(
            experiment, directory, datapath=choose_datapath(), argv=sys.argv, console=console, pcap=pcap
        )
    except Interrupted as error:
        _fail(
            f"{error}: everything the run had made is removed; what was measured is in {directory.path}",
            128 + error.number,
        )
    except (RunFailed, LedgerError, NamespaceError, OpenVSwitchError, TestbedError, ArtifactError) as error:
        _fail(f"{error}\neverything the run had made is removed")
    print_summary(_with_twin(directory, summary))
    _give_back(directory.path)
    console.print(f"report: {directory.path / 'report.html'}", soft_wrap=True)
    if any(entry.verdict == "invalid" for entry in summary.runs):
        raise typer.Exit(INVALID)
    return directory


def _with_twin(directory: RunDirectory, summary: Summary) -> Summary:
    """The summary with the twin's prediction; a twin that fails costs a line, never a run."""
    from results.report import write_report
    from simulation.validation import predict_beside

    try:
        summary = predict_beside(directory)
        write_report(directory.path)
    except Exception as error:
        typer.echo(f"heliograph: the twin made no prediction: {type(error).__name__}: {error}", err=True)
    return summary


def _validate(directory: RunDirectory, write_to: Path) -> None:
    from rich.console import Console

    from experiments.spec import SpecError
    from results.artifacts import ArtifactError, write_json
    from simulation.validation import ValidationError, residual_table, validate
    from workloads.traces.trace import TraceError

    try:
        document, _ = validate(directory)
        written = write_json(write_to / "validation.json", document)
    except (ArtifactError, SpecError, TraceError, ValidationError) as error:
        _fail(str(error), BAD_INPUT)
    # twelve columns: a figure cut short would be worse than a line that wraps
    console = Console(highlight=False, width=max(Console().width, 140))
    console.print(residual_table(document))
    for limitation in document["limitations"]:
        console.print(f"known limitation: {limitation}", soft_wrap=True)
    console.print(f"residuals: {written}", soft_wrap=True)


def _give_back(path: Path) -> None:
    """What sudo wrote belongs to whoever called sudo: `report` needs no root afterwards."""
    owner, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if os.geteuid() == 0 and owner and group and owner.isdigit() and group.isdigit():
        for place in (path, *path.rglob("*")):
            os.chown(place, int(owner), int(group), follow_symlinks=False)


def _need_root(why: str) -> None:
    if os.geteuid():
        _fail(f"{why}: run it with sudo")


def _fail(message: str, code: int = 1) -> NoReturn:
    typer.echo(f"heliograph: {message}", err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
