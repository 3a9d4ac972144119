"""Artifacts that somebody cut, emptied or edited: read, or refused with one line each, never a traceback."""

from __future__ import annotations

import contextlib
import copy
import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import cli
from results.records.artifacts import ArtifactError, RunDirectory
from results.report.accounting_view import move_row, port_rows
from results.report.compare import METRICS
from results.report.fidelity_view import fidelity_view
from results.report.replay import Recorded, changes, other_plugins, other_traces
from results.report.table import comparisons, part_rows, remarks, row
from simulation.constants import Constants, ConstantsError, from_fidelity

sys.path.append(str(Path(__file__).parent))
from tampering import ODD, SPEC, TAMPERED, as_emulated, places, tampered

BAD_INPUT = 2
DROPPED = object()


def invoke(*words: object) -> tuple[int, str]:
    """Exit status and output; an exception that is no exit is raised as it is."""
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tampered")
    (folder / "spec.yaml").write_text(SPEC)
    code, output = invoke("simulate", folder / "spec.yaml", "--artifact-dir", folder / "run")
    assert code == 0, output
    as_emulated(folder / "run")
    return folder / "run"


COMMANDS = {
    "report": lambda run, first: ["report", run],
    "compare": lambda run, first: ["compare", run, first],
    "compared": lambda run, first: ["compare", first, run, "--different-arrivals"],
    "validate": lambda run, first: ["validate", "--run", run],
    "replay": lambda run, first: ["run", "--replay", run, "--dry-run"],
    "constants": lambda run, first: [
        "sweep", first / "config.yaml", "--constants", run / "ocs" / "seed1" / "fidelity.json", "--dry-run",
    ],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_the_run_that_is_tampered_with_is_read_as_it_is(finished, command):
    code, output = invoke(*COMMANDS[command](finished, finished))
    assert code == 0, output


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(edits=TAMPERED, command=st.sampled_from(sorted(COMMANDS)))
def test_a_run_that_was_tampered_with_is_read_or_refused_on_printable_lines(finished, edits, command):
    run = finished.parent / "copy"
    tampered(finished, run, edits)
    code, output = invoke(*COMMANDS[command](run, finished))
    assert code in (0, BAD_INPUT), output
    if code == BAD_INPUT:
        assert "heliograph: " in output
        assert all(line.isprintable() for line in output.splitlines())


def of_summary(path: Path) -> None:
    """What report and compare say of a summary, without its figures."""
    summary = RunDirectory(path).summary()
    runs = summary.runs
    comparisons(summary), remarks(summary), port_rows(runs), part_rows(runs)
    for entry in runs:
        move_row(entry, runs), row(entry, runs), [read(entry) for _, _, read in METRICS]


def of_fidelity(path: Path) -> None:
    document = RunDirectory(path).fidelity("ocs", 1)
    fidelity_view("ocs", document), Constants(**from_fidelity(document))


def of_provenance(path: Path) -> None:
    record = RunDirectory(path).provenance()
    found = Recorded(RunDirectory(path), path / "config.yaml", {"seeds": [], "traces": [], **record})
    other_traces(found, []), other_plugins(record, {}), changes(record, {"packages": {"x": "1"}}), found.seeds


@pytest.mark.parametrize(
    ("name", "reader"),
    [("summary.json", of_summary), ("ocs/seed1/fidelity.json", of_fidelity), ("provenance.json", of_provenance)],
)
def test_every_value_may_be_dropped_or_another_and_is_told_or_refused(finished, tmp_path, name, reader):
    original = json.loads((finished / name).read_text())
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for at in places(original):
        for odd in [*ODD, DROPPED]:
            document = copy.deepcopy(original)
            *above, key = at
            parent = document
            for step in above:
                parent = parent[step]
            if odd is DROPPED:
                del parent[key]
            else:
                parent[key] = odd
            path.write_text(json.dumps(document))
            with contextlib.suppress(ArtifactError, ConstantsError):
                reader(tmp_path)


@pytest.mark.parametrize("name", ["../other", "/etc", "a/b", "..", "", "a\x00b"])
def test_a_summary_leads_nowhere_outside_of_its_run(finished, tmp_path, name):
    document = json.loads((finished / "summary.json").read_text())
    document["runs"][0]["name"] = name
    (tmp_path / "summary.json").write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match=r"runs\.0\.name: .* names no folder of this run"):
        RunDirectory(tmp_path).summary()
