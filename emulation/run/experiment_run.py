"""Every fabric and seed of an experiment, one after the other, into one run directory."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

from emulation.linux.ledger import LeftBehind, RunLedger, clean, dead_runs
from emulation.plan.fabric_plan import FabricPlan
from emulation.run.fabric_run import FabricResult, FabricRun, RunFailed
from experiments.schema.spec import Experiment, Fabric
from outputs.files import why
from outputs.terminal import Terminal
from process.interrupts import Interrupted, interruptible, shielded
from results.metrics.accounting import account_run, part_bytes_of, with_sizes
from results.metrics.collisions import account_ecmp, with_collisions
from results.metrics.metrics import summarise
from results.records.artifacts import ArtifactError, RunDirectory, provenance
from results.records.summary import RunSummary, Summary
from results.report.progress import ProgressView
from results.report.report import write_report
from topologies.wiring import COMMON_SYSCTLS
from workloads.request import Request

__all__ = ["Interrupted", "run_experiment"]

#: What `summary.json` says while fabrics are still to come: true where it is the last that could be written.
UNDER_WAY = "the run did not get to its next fabric: it is under way, or was killed, or its disk was full"


def run_experiment(
    experiment: Experiment,
    run_directory: RunDirectory,
    *,
    datapath: str,
    argv: Sequence[str],
    console: Terminal,
    pcap: bool = False,
) -> Summary:
    """Run every fabric with every seed; `summary.json` is whole after each of them. `pcap`: capture and audit.

    A fabric that ends early has its artifacts too, with every offered request and the reason, and is the last one:
    then RunFailed is raised, or Interrupted where a signal ended it. Raises AnotherRun while another run is alive,
    ArtifactError where results cannot be written. Whatever was made is removed first, and looked up afterwards:
    LeftBehind is raised where something is still there. `summary.json` says what was not run, wherever the end came.
    """
    run_id = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{os.getpid()}"
    traces = [Path(tenant.path) for tenant in experiment.workload.tenants if tenant.path]
    account = _Account(run_directory, [(seed, fabric) for seed in experiment.seeds for fabric in experiment.fabrics])
    with interruptible(), account.closing(), contextlib.ExitStack() as closing:
        ledger = RunLedger.open(run_id)
        closing.push(functools.partial(_close, ledger))
        for dead in dead_runs():
            console.say(_cleaned(dead))
        run_directory.write_config(experiment.dump())
        record = provenance(
            argv=argv,
            seeds=experiment.seeds,
            datapath=datapath,
            traces=traces,
            plugins=experiment.plugins,
            sysctls=dict(COMMON_SYSCTLS),
        )
        run_directory.write_provenance(record)
        plugins = {plugin["path"]: plugin["sha256"] for plugin in record["plugins"]}
        for seed in experiment.seeds:
            arrivals = experiment.arrivals(seed)
            for report in arrivals.reports:
                for line in report.lines():
                    console.say(line)
            for fabric in experiment.fabrics:
                account.begins()
                plan = FabricPlan(experiment, fabric, seed, tuple(arrivals.requests), plugins)
                with _machine_failed(fabric), contextlib.ExitStack() as shield:
                    result = _run_fabric(plan, ledger, run_directory, datapath, console, shield, pcap)
                    account.ended(_summary(plan, result, arrivals.requests), result.failure)
                if result.interrupted is not None:
                    raise result.interrupted
                if result.failure:
                    raise RunFailed(
                        f"fabric {fabric.name} ended early: {result.failure}\nwhat it measured, and what came before, "
                        f"is in {run_directory.path}"
                    )
    summary = run_directory.summary()
    write_report(run_directory.path)
    return summary


@dataclass
class _Account:
    """`summary.json`, which says at every moment what was not run. `ahead`: (seed, fabric) still to come."""

    run_directory: RunDirectory
    ahead: list[tuple[int, Fabric]]
    _at: tuple[int, Fabric] | None = None
    _runs: list[RunSummary] = field(default_factory=list)
    _told: bool = False

    def begins(self) -> None:
        """The next fabric is run."""
        self._at = self.ahead.pop(0)

    def ended(self, run: RunSummary, failure: str | None) -> None:
        """It has its artifacts. Raises ArtifactError."""
        self._runs.append(run)
        if failure:
            self._ended_early(failure)
        elif self.ahead:
            self._write(UNDER_WAY)
        else:
            self.run_directory.write_summary(self._runs)

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Whatever ends the block before its time, in a tear-down or between two fabrics too, is in `summary.json`,
        and what was measured in a report."""
        try:
            yield
        except (Interrupted, RunFailed, ArtifactError, LeftBehind) as error:
            why = error.during if isinstance(error, LeftBehind) else error
            with shielded(), contextlib.suppress(ArtifactError, OSError):  # on a full disk what was written last stands
                if why is not None and self._runs and not self._told:
                    self._ended_early(str(why))
            raise

    def _ended_early(self, reason: str) -> None:
        self._write(reason)
        self._told = True
        write_report(self.run_directory.path)

    def _write(self, reason: str) -> None:
        """What a reader must know of a run that did not get through its fabrics."""
        assert self._at is not None
        seed, fabric = self._at
        not_run = [{"fabric": fabric.name, "seed": seed} for seed, fabric in self.ahead]
        ended_early = {"fabric": fabric.name, "seed": seed, "reason": reason, "not_run": not_run}
        self.run_directory.write_summary(self._runs, ended_early=ended_early)


def _cleaned(dead: Path) -> str:
    """Remove what a dead run left behind; what there was. A run need not wait for what cannot be removed."""
    try:
        return f"a dead run had left {len(clean(dead))} things behind: removed"
    except LeftBehind as error:
        return f"a dead run had left {len(error.removed)} things behind: removed; {error}"


def _close(
    ledger: RunLedger, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    with shielded():
        ledger.close(error)


@contextlib.contextmanager
def _machine_failed(fabric: Fabric) -> Iterator[None]:
    """A disk that has filled up or can no longer be written, a folder that is gone, memory or descriptors that have run
    out: where no part of the run could be blamed for it, it is the run's end and no fault of ours."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        raise RunFailed(f"fabric {fabric.name} ended early: {where}{why(error)}") from error
    except MemoryError as error:
        raise RunFailed(f"fabric {fabric.name} ended early: there is not enough memory; free some") from error


def _run_fabric(
    plan: FabricPlan,
    ledger: RunLedger,
    run_directory: RunDirectory,
    datapath: str,
    console: Terminal,
    shield: contextlib.ExitStack,
    pcap: bool,
) -> FabricResult:
    name, seed = plan.fabric.name, plan.seed
    title = name if len(plan.experiment.seeds) == 1 else f"{name}, seed {seed}"
    with ProgressView(title, console=console) as view:
        run = FabricRun(
            plan,
            ledger,
            datapath,
            report=view.step,
            progress=view.update,
            keep_logs=run_directory.fabric_path(name, seed),
            pcap=pcap,
        )
        result = run.run(shield)
    frames = result.frames
    frames.circuits = with_sizes(frames.circuits, frames.requests, part_bytes_of(plan.experiment.kv))
    paths = plan.experiment.kv_paths(plan.fabric)
    if paths is not None and plan.hashes:
        frames.transfers = with_collisions(frames.transfers, paths)
    for table, frame in (("requests", frames.requests), ("transfers", frames.transfers), ("links", result.links)):
        run_directory.write_table(name, seed, table, frame)
    run_directory.write_table(name, seed, "circuits", frames.circuits)
    run_directory.write_fidelity(name, seed, result.fidelity | {"timings_s": result.timings_s})
    timings = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in result.timings_s.items())
    console.say(f"{title}: {result.fidelity['verdict']} ({timings})")
    return result


def _summary(plan: FabricPlan, result: FabricResult, requests: Sequence[Request]) -> RunSummary:
    experiment = plan.experiment
    return summarise(
        result.frames.requests,
        result.frames.circuits,
        name=plan.fabric.name,
        fabric=plan.fabric.kind,
        seed=plan.seed,
        substrate="emulation",
        prefill_duration_s=experiment.timing.duration_s,
        ttft_multiple=experiment.slo.ttft_multiple,
        verdict=result.fidelity["verdict"],
        reasons=result.fidelity["reasons"],
        accounting=account_run(experiment, plan.fabric.kind, result.frames.requests, result.frames.circuits)
        | account_ecmp(experiment, plan.fabric, result.frames.transfers),
    )
