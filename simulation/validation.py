"""The twin beside an emulation: the same requests, the uplinks that its flows took, the constants that it measured."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.schema.spec import Experiment, Fabric, load
from inputs import json_file
from inputs.errors import InputError, shown
from inputs.text_file import lines
from outputs.sheet import Column, Sheet
from results.metrics.metrics import completed
from results.metrics.residuals import residuals
from results.records.artifacts import RunDirectory
from results.records.schema import TTFT_PARTS
from results.records.summary import RunSummary, Summary
from results.report.replay import other_plugins
from simulation.constants import Constants, from_fidelity
from simulation.experiment_run import predict

LIMITATIONS = (
    "fluid flows: no slow start, no queue, no retransmission or timeout, and no last packet that a shaper lets out "
    "early: a transfer differs by a millisecond or two whatever its size",
    "links are shared max-min fair by flow and at once; the emulation shares them by source address (deficit round "
    "robin over 32 classes) and TCP needs some round trips to find its share",
    "constants are medians: the spread of control, switching and timers is not modelled",
    "decisions follow loads: one request that ends a millisecond earlier can send those behind it elsewhere, so "
    "residuals of single requests are larger than those of means",
)


class ValidationError(InputError):
    """A run that cannot be compared with a twin: says which and why."""


@dataclass(frozen=True)
class Measured:
    """What an emulation left behind for one fabric and seed."""

    requests: pd.DataFrame
    constants: Constants
    uplinks: Mapping[tuple[str, int], int]
    stand: Mapping[str, str]


def read_measured(run: RunDirectory, name: str, seed: int) -> Measured:
    """What one fabric and seed left. ValidationError where a table is missing, ArtifactError where it is broken."""
    requests, transfers = run.table(name, seed, "requests"), run.table(name, seed, "transfers")
    place = run.path / name / f"seed{seed}"
    if requests is None or transfers is None:
        raise ValidationError(f"{place} holds no requests.csv and transfers.csv: the run did not get that far")
    known = transfers.dropna(subset=["uplink"])
    uplinks = {
        (str(request), int(rank)): int(uplink)
        for request, rank, uplink in zip(known["request"], known["rank"], known["uplink"], strict=True)
    }
    return Measured(requests, _constants(run.fidelity(name, seed), requests), uplinks, _standing(place))


def _constants(fidelity: Mapping[str, Any], requests: pd.DataFrame) -> Constants:
    """Medians over measured requests, and what fidelity.json tells of switches and grants."""
    found = from_fidelity(fidelity)
    done = completed(requests)
    if len(done):
        found["request_s"] = max(float((done["received_s"] - done["arrival_s"]).median()), 0.0)
        found["return_s"] = max(float(done["return_s"].median()), 0.0)
    return Constants(**found)


def _standing(place: Path) -> dict[str, str]:
    """The circuits that stood when the clock started: those laid last before it."""
    log = place / "controller.jsonl"
    pairs: dict[str, str] = {}
    for number, line in lines(log) if os.path.lexists(log) else ():
        event = json_file.parse(line, str(log), number)
        if not isinstance(event, dict):
            raise ValidationError(f"{log}:{number}: expected keys and values, found {shown(event)}")
        if event.get("event") == "clock":
            break
        if event.get("event") == "setup":
            laid = event.get("pairs")
            if not isinstance(laid, dict) or not all(isinstance(each, str) for each in laid.values()):
                raise ValidationError(f"{log}:{number}: pairs: {shown(laid)}: expected instances by instance")
            pairs = laid
    return pairs


def experiment_of(run: RunDirectory) -> Experiment:
    """The experiment of a run, from its config.yaml. ValidationError where a plug-in is not the one that ran."""
    experiment = load(run.path / "config.yaml")
    if others := other_plugins(run.provenance(), experiment.plugins):
        raise ValidationError(*(f"{run.path}: {line}" for line in others))
    return experiment


def validate(run: RunDirectory) -> tuple[dict[str, Any], list[RunSummary]]:
    """Residuals of every fabric and seed of a finished emulation, and its summaries with the key `twin`; writes
    nothing.

    Raises ValidationError for the directory of a simulation, or where the arrivals or a plug-in are others, and
    PluginFault where one fails.
    """
    experiment = experiment_of(run)
    fabrics = {fabric.name: fabric for fabric in experiment.fabrics}
    found: list[dict[str, Any]] = []
    entries: list[RunSummary] = []
    for entry in run.summary().runs:
        if entry.substrate != "emulation":
            raise ValidationError(f"{run.path} is a simulation; validate compares an emulation with its twin")
        if entry.name not in fabrics or entry.seed not in experiment.seeds:
            raise ValidationError(
                f"{run.path}: summary.json has fabric {entry.name} with seed {entry.seed}, and config.yaml has not"
            )
        document = compare_one(experiment, fabrics[entry.name], entry, run)
        found.append(document)
        entries.append(entry.model_copy(update={"twin": twin_of(document)}))
    return {"schema": 1, "runs": found, "limitations": list(LIMITATIONS)}, entries


def predict_beside(run: RunDirectory) -> Summary:
    """Put the twin's prediction into the summary of a run that has just ended, beside what was measured."""
    _, entries = validate(run)
    return run.write_summary(entries)


def compare_one(experiment: Experiment, fabric: Fabric, entry: RunSummary, run: RunDirectory) -> dict[str, Any]:
    """One fabric and seed: metrics and residuals."""
    measured = read_measured(run, fabric.name, entry.seed)
    requests = experiment.requests(entry.seed)
    result, predicted = predict(
        experiment,
        fabric,
        entry.seed,
        requests,
        constants=measured.constants,
        uplinks=measured.uplinks,
        stand=measured.stand,
    )
    try:
        compared = residuals(measured.requests, result.frames.requests)
    except ValueError as error:
        raise ValidationError(f"{run.path}, {fabric.name}, seed {entry.seed}: {error}") from error
    return {
        "name": fabric.name,
        "fabric": fabric.kind,
        "seed": entry.seed,
        "constants_s": asdict(measured.constants),
        "metrics": _metrics(entry, predicted),
        **compared,
    }


def _metrics(measured: RunSummary, predicted: RunSummary) -> dict[str, dict[str, float | None]]:
    """Each figure of the summary: measured, predicted, and their ratio where both are there."""
    rows: dict[str, tuple[float | None, float | None]] = {
        f"ttft_{key}_s": (getattr(measured.ttft_s, key), getattr(predicted.ttft_s, key))
        for key in ("mean", "p50", "p90", "p95", "p99")
    }
    for key in ("ttft_exposed_share", "hidden_share", "slo_attainment", "migrated_share", "switches", "reuses"):
        rows[key] = getattr(measured, key), getattr(predicted, key)
    return {
        key: {"measured": ours, "predicted": theirs, "ratio": ours / theirs if ours is not None and theirs else None}
        for key, (ours, theirs) in rows.items()
    }


def twin_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The key `twin` of a run's entry in summary.json."""
    metrics = document["metrics"]
    ttft = document["ttft"]
    return {
        "ttft_s": {key: metrics[f"ttft_{key}_s"]["predicted"] for key in ("mean", "p50", "p90", "p95", "p99")},
        "mean_ratio": metrics["ttft_mean_s"]["ratio"],
        "median_absolute_share": ttft.get("median_absolute_share"),
        "p95_absolute_share": ttft.get("p95_absolute_share"),
    }


def residual_table(document: Mapping[str, Any]) -> Sheet:
    """Residuals for a terminal: one line per fabric and seed."""
    figures = ("seed", "n", "mean, s", "twin, s", "ratio", "|res| p50", "p95", "max", "slower", "same decisions")
    columns = [Column("fabric", "name"), *map(Column, figures), Column("sits in", "name")]
    rows: list[Sequence[str]] = []
    for run in document["runs"]:
        ttft = run["ttft"]
        if not ttft["n"]:
            rows.append((run["name"], str(run["seed"]), "0", *["-"] * 9))
            continue
        parts = {part: run["parts"][part]["mean_s"] or 0.0 for part in TTFT_PARTS}
        most = max(parts, key=lambda part: abs(parts[part]))
        rows.append(
            (
                run["name"],
                str(run["seed"]),
                str(ttft["n"]),
                f"{ttft['mean_measured_s']:.4f}",
                f"{ttft['mean_predicted_s']:.4f}",
                f"{ttft['mean_ratio']:.3f}",
                *(f"{100 * ttft[f'{key}_absolute_share']:.2f} %" for key in ("median", "p95", "max")),
                f"{100 * ttft['slower_share']:.0f} %",
                f"{100 * run['same_decisions_share']:.0f} %",
                f"{most.removesuffix('_s')} {1e3 * parts[most]:+.2f} ms",
            )
        )
    return Sheet(columns, rows, title="measured / twin")
