"""Every fabric and seed of an experiment on the twin, into one run directory: the artifacts of an emulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.schema.spec import Experiment, Fabric
from results.metrics.accounting import account_run
from results.metrics.collisions import account_ecmp
from results.metrics.metrics import summarise
from results.records.artifacts import RunDirectory, provenance
from results.records.summary import RunSummary, Summary
from results.report.report import write_report
from simulation.constants import Constants
from simulation.twin import Twin, TwinResult
from workloads.request import Request

NOTES = (
    "a simulation has no machine to keep up: this verdict is about its model (docs/explanation/twin.md)",
    "flows are fluid and share links max-min fair at once: no packets, slow start, queues, retransmissions or timeouts",
)


def simulate_experiment(
    experiment: Experiment,
    run_directory: RunDirectory,
    *,
    argv: Sequence[str],
    constants: Constants | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Summary:
    """Simulate every fabric with every seed; `report` is given a line after each. Raises ValueError for a policy or
    routing the twin does not know."""
    constants = constants or Constants()
    run_directory.write_config(experiment.dump())
    traces = [Path(tenant.path) for tenant in experiment.workload.tenants if tenant.path]
    run_directory.write_provenance(
        provenance(argv=argv, seeds=experiment.seeds, datapath="none", traces=traces, plugins=experiment.plugins)
        | {"substrate": "simulation", "constants": asdict(constants)}
    )
    runs: list[RunSummary] = []
    for seed in experiment.seeds:
        arrivals = experiment.arrivals(seed)
        for tenant in arrivals.reports:
            for line in tenant.lines():
                report(line)
        for fabric in experiment.fabrics:
            result = Twin(experiment, fabric, seed, arrivals.requests, constants).run()
            write_tables(run_directory, fabric.name, seed, result, constants)
            runs.append(summary_of(experiment, fabric, seed, result))
            run_directory.write_summary(runs)
    summary = run_directory.summary()
    write_report(run_directory.path)
    return summary


def write_tables(run_directory: RunDirectory, name: str, seed: int, result: TwinResult, constants: Constants) -> None:
    """The CSV files and fidelity.json of one fabric and seed."""
    frames = result.frames
    tables = {
        "requests": frames.requests,
        "transfers": frames.transfers,
        "circuits": frames.circuits,
        "links": result.links,
    }
    for table, frame in tables.items():
        run_directory.write_table(name, seed, table, frame)
    run_directory.write_fidelity(name, seed, fidelity(constants))


def fidelity(constants: Constants) -> dict[str, Any]:
    """fidelity.json of a simulation."""
    return {
        "schema": 1,
        "substrate": "simulation",
        "verdict": "valid",
        "reasons": [],
        "datapath": "none",
        "constants_s": asdict(constants),
        "measures": [],
        "notes": list(NOTES),
    }


def summary_of(experiment: Experiment, fabric: Fabric, seed: int, result: TwinResult) -> RunSummary:
    """The entry of one fabric and seed in summary.json."""
    return summarise(
        result.frames.requests,
        result.frames.circuits,
        name=fabric.name,
        fabric=fabric.kind,
        seed=seed,
        substrate="simulation",
        prefill_duration_s=experiment.timing.duration_s,
        ttft_multiple=experiment.slo.ttft_multiple,
        verdict="valid",
        accounting=account_run(experiment, fabric.kind, result.frames.requests, result.frames.circuits)
        | account_ecmp(experiment, fabric, result.frames.transfers),
    )


def predict(
    experiment: Experiment,
    fabric: Fabric,
    seed: int,
    requests: Sequence[Request],
    *,
    constants: Constants,
    uplinks: Mapping[tuple[str, int], int],
    stand: Mapping[str, str],
) -> tuple[TwinResult, RunSummary]:
    """What ideal flows would have done beside a run: its uplinks, its constants, the circuits at its start."""
    result = Twin(experiment, fabric, seed, requests, constants, uplinks, stand).run()
    return result, summary_of(experiment, fabric, seed, result)
