"""`heliograph demo` and `run`: experiments with real packets, the twin's prediction beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.check import checked
from commands.replay import checked_replay, print_beside
from commands.shared import (
    BAD_INPUT,
    INVALID,
    ROOT,
    ArtifactDir,
    Overrides,
    Seed,
    fail,
    give_back,
    left_behind,
    missing,
    need_root,
)
from outputs.terminal import Terminal, say

if TYPE_CHECKING:
    from results.records.artifacts import RunDirectory
    from results.records.summary import Summary

DEMO = ROOT / "experiments" / "demo.yaml"


def demo(artifact_dir: ArtifactDir = None) -> None:
    """Circuits against ECMP with the same arrivals: runs experiments/demo.yaml, prints the table, writes the report."""
    run_packets(DEMO, [], None, artifact_dir, dry_run=False)


def run(
    experiment: Annotated[Path | None, typer.Argument(help="experiment file (YAML)", show_default=False)] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    artifact_dir: ArtifactDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="check the file and say what would run; needs no root")
    ] = False,
    pcap: Annotated[
        bool,
        typer.Option(
            "--pcap", metavar="", help="capture the KV packets (Wireshark opens the files) and audit the run by them"
        ),
    ] = False,
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="DIR", help="make this finished run again, and put both side by side"),
    ] = None,
) -> None:
    """Run an experiment with real packets (root)."""
    if (experiment is None) == (replay is None):
        fail("give an experiment file to run, or --replay DIR of a finished run", BAD_INPUT)
    if experiment is None:
        assert replay is not None
        recorded = checked_replay(replay, overrides or [], seed, dry_run=dry_run)
        run_packets(
            recorded.config,
            overrides or [],
            None,
            artifact_dir,
            dry_run=False,
            pcap=pcap,
            then=lambda directory: print_beside(recorded.directory, directory),
        )
        return
    run_packets(experiment, overrides or [], seed, artifact_dir, dry_run=dry_run, pcap=pcap)


def run_packets(
    path: Path,
    overrides: list[str],
    seed: int | None,
    artifact_dir: Path | None,
    *,
    dry_run: bool,
    pcap: bool = False,
    then: Callable[[RunDirectory], None] | None = None,
) -> RunDirectory:
    """Run an experiment, its twin after it, print the table and do `then`; returns where the artifacts are."""
    experiment = checked(path, overrides, seed, dry_run=dry_run, emulated=True)
    need_root("a run makes network namespaces")

    from emulation.doctor.preflight import can_run, capabilities, choose_datapath, doctor_table
    from emulation.linux.ledger import AnotherRun, LedgerError, LeftBehind
    from emulation.linux.netns import NamespaceError
    from emulation.network.ovs import OpenVSwitchError
    from emulation.network.testbed import TestbedError
    from emulation.run.experiment_run import run_experiment
    from emulation.run.fabric_run import RunFailed
    from process.interrupts import Interrupted
    from results.records.artifacts import RUNS, ArtifactError, RunDirectory
    from results.report.table import print_summary

    console = Terminal()
    found_capabilities = capabilities()
    if not can_run(found_capabilities):
        console.print(doctor_table(found_capabilities))
        fail("this machine cannot run an experiment: see the table for what is missing and the remedy")
    made = missing(artifact_dir or RUNS)
    try:
        directory = RunDirectory.create(experiment.name, artifact_dir=artifact_dir)
    except ArtifactError as error:
        fail(str(error), BAD_INPUT)
    try:
        try:
            summary = run_experiment(
                experiment, directory, datapath=choose_datapath(), argv=sys.argv, console=console, pcap=pcap
            )
        except Interrupted as error:
            fail(
                f"{error}: everything the run had made is removed; what was measured is in {directory.path}",
                error.status,
            )
        except LeftBehind as error:
            fail(*left_behind(error, f"what was measured is in {directory.path}"))
        except AnotherRun as error:
            fail(str(error))
        except (
            RunFailed,
            LedgerError,
            NamespaceError,
            OpenVSwitchError,
            TestbedError,
            ArtifactError,
            OSError,
        ) as error:
            fail(f"{error}\neverything the run had made is removed")
        print_summary(with_twin(directory, summary))
        console.say(f"report: {directory.path / 'report.html'}")
        if then is not None:
            then(directory)
    finally:
        give_back(directory.path, made)
    if any(entry.verdict == "invalid" for entry in summary.runs):
        raise typer.Exit(INVALID)
    return directory


def with_twin(directory: RunDirectory, summary: Summary) -> Summary:
    """The summary with the twin's prediction; a twin that fails costs a line, never a run."""
    from results.report.report import write_report
    from simulation.validation import predict_beside

    try:
        summary = predict_beside(directory)
        write_report(directory.path)
    except Exception as error:
        say(f"heliograph: the twin made no prediction: {type(error).__name__}: {error}", err=True)
    return summary
