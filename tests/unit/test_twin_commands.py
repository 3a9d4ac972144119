"""simulate and validate from the command line: artifacts, determinism, residuals, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from twin_cases import EPS, OCS, experiment
from typer.testing import CliRunner

import cli
from commands.packets import with_twin
from experiments.schema.spec import load
from results.metrics.residuals import residuals
from results.records.artifacts import RunDirectory
from results.report.table import summary_text
from simulation.constants import Constants, ConstantsError, read_constants
from simulation.validation import compare_one, experiment_of, predict_beside, read_measured

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def case_file(tmp_path) -> Path:
    experiment(tmp_path, OCS, prefill_instances=2, decode_instances=2)
    document = yaml.safe_load((tmp_path / "case.yaml").read_text())
    document["fabrics"] = [EPS | {"uplinks": 2}, OCS, {"name": "ceiling", "kind": "none"}]
    document["workload"] |= {"window_s": 20, "warmup_s": 2}
    document["scale"] = {"rate_scale": 1e-4}
    document["prefill"] = {"median_error": 0.046}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(document))
    return tmp_path / "case.yaml"


def invoke(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.output


def as_emulation(directory: Path) -> None:
    """Take a simulation for a measurement: residuals against it are known."""
    summary = json.loads((directory / "summary.json").read_text())
    for run in summary["runs"]:
        run["substrate"] = "emulation"
    (directory / "summary.json").write_text(json.dumps(summary))


def test_simulate_writes_the_artifacts_of_a_run(case_file, tmp_path):
    output = invoke("simulate", case_file, "--artifact-dir", tmp_path / "out")
    run = RunDirectory.open(tmp_path / "out")
    assert [(entry.name, entry.substrate, entry.verdict) for entry in run.summary().runs] == [
        ("eps", "simulation", "valid"),
        ("ocs", "simulation", "valid"),
        ("ceiling", "simulation", "valid"),
    ]
    for name in ("eps", "ocs", "ceiling"):
        for table in ("requests", "transfers", "circuits", "links"):
            assert run.table(name, 1, table) is not None
    circuits = run.table("ocs", 1, "circuits")
    assert circuits["bytes"].notna().all()
    assert circuits["migrated"].notna().all()
    ocs = next(entry for entry in run.summary().runs if entry.name == "ocs")
    assert ocs.accounting["migrated"] > 0
    moving_s = sum(ports["live_moving_s"] for name, ports in ocs.accounting["ports"].items() if name.startswith("p"))
    moved = ocs.accounting["head_bytes_per_rank"] + ocs.accounting["tail_bytes_per_rank"]
    assert moving_s == pytest.approx(moved / load(case_file).kv_goodput_bytes_per_s)
    fidelity = json.loads((tmp_path / "out" / "ocs" / "seed1" / "fidelity.json").read_text())
    assert fidelity["substrate"] == "simulation"
    assert any("verdict is about its model" in note for note in fidelity["notes"])
    assert (tmp_path / "out" / "report.html").is_file()
    assert "mean TTFT" in output


def test_the_ceiling_bounds_every_fabric(case_file, tmp_path):
    invoke("simulate", case_file, "--artifact-dir", tmp_path / "out")
    means = {entry.name: entry.ttft_s.mean for entry in RunDirectory.open(tmp_path / "out").summary().runs}
    assert means["ceiling"] < means["ocs"]
    assert means["ceiling"] < means["eps"]


def test_the_same_file_and_seed_give_the_same_bytes_whatever_python_hashes(case_file, tmp_path):
    for seed in ("1", "2"):
        words = [
            sys.executable,
            str(ROOT / "cli.py"),
            "simulate",
            str(case_file),
            "--artifact-dir",
            str(tmp_path / seed),
        ]
        subprocess.run(words, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT)
    for file in ("requests.csv", "transfers.csv", "circuits.csv", "links.csv"):
        for fabric in ("eps", "ocs", "ceiling"):
            one, other = ((tmp_path / seed / fabric / "seed1" / file).read_bytes() for seed in ("1", "2"))
            assert one == other


def test_validate_of_what_the_twin_itself_wrote_finds_no_residual(case_file, tmp_path):
    invoke("simulate", case_file, "--artifact-dir", tmp_path / "out")
    as_emulation(tmp_path / "out")
    invoke("validate", "--run", tmp_path / "out")
    document = json.loads((tmp_path / "out" / "validation.json").read_text())
    for run in document["runs"]:
        assert run["requests"] > 20
        assert run["ttft"]["mean_ratio"] == pytest.approx(1.0, abs=1e-9)
        assert run["ttft"]["max_absolute_share"] < 1e-6
        assert run["same_decisions_share"] == 1.0
    assert document["limitations"]


def test_validate_takes_the_delays_that_a_run_measured(case_file, tmp_path):
    (tmp_path / "delays.yaml").write_text("return_s: 0.004\nrequest_s: 0.002\n")
    words = ("simulate", case_file, "--artifact-dir", tmp_path / "out", "--constants", tmp_path / "delays.yaml")
    invoke(*words)
    as_emulation(tmp_path / "out")
    invoke("validate", "--run", tmp_path / "out")
    for run in json.loads((tmp_path / "out" / "validation.json").read_text())["runs"]:
        assert run["constants_s"]["return_s"] == pytest.approx(0.004)
        assert run["constants_s"]["request_s"] == pytest.approx(0.002)
        assert run["ttft"]["max_absolute_share"] < 1e-6


def test_validate_takes_the_uplinks_that_a_run_recorded(case_file, tmp_path):
    invoke("simulate", case_file, "--artifact-dir", tmp_path / "out")
    as_emulation(tmp_path / "out")
    config = tmp_path / "out" / "config.yaml"
    config.write_text(config.read_text().replace("ecmp_seed: 1", "ecmp_seed: 99"))  # a hash that says another thing
    invoke("validate", "--run", tmp_path / "out")
    document = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert document["runs"][0]["ttft"]["max_absolute_share"] < 1e-6


def test_validate_lets_circuits_stand_that_stood_when_the_clock_started(case_file, tmp_path):
    invoke("simulate", case_file, "--artifact-dir", tmp_path / "out")
    log = [
        {"event": "setup", "pairs": {"p0": "d0"}},
        {"event": "setup", "pairs": {"p0": "d1", "p1": "d0"}},
        {"event": "clock"},
        {"event": "setup", "pairs": {}},
    ]
    place = tmp_path / "out" / "ocs" / "seed1"
    (place / "controller.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    run = RunDirectory.open(tmp_path / "out")
    assert read_measured(run, "ocs", 1).stand == {"p0": "d1", "p1": "d0"}
    as_emulation(tmp_path / "out")
    case = experiment_of(run)
    document = compare_one(case, case.fabrics[1], run.summary().runs[1], run)
    assert document["metrics"]["switches"]["predicted"] is not None


def test_a_summary_shows_the_prediction_beside_the_measurement(case_file, tmp_path):
    invoke("simulate", case_file, "--artifact-dir", tmp_path / "out")
    as_emulation(tmp_path / "out")
    summary = predict_beside(RunDirectory.open(tmp_path / "out"))
    assert all(entry.twin is not None and entry.twin["mean_ratio"] == pytest.approx(1.0) for entry in summary.runs)
    assert "ocs: twin: mean " in summary_text(summary)
    assert "measured / twin 1.000" in summary_text(summary)


def test_a_twin_that_fails_costs_a_line_and_no_run(case_file, tmp_path, capsys):
    invoke("simulate", case_file, "--artifact-dir", tmp_path / "out")
    as_emulation(tmp_path / "out")
    directory = RunDirectory.open(tmp_path / "out")
    (tmp_path / "out" / "eps" / "seed1" / "transfers.csv").write_text("nonsense\n")
    summary = directory.summary()
    assert with_twin(directory, summary) == summary
    assert "the twin made no prediction" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("validate",), "give an experiment file to run, or --run DIR"),
        (("validate", "--run", "nowhere"), "nowhere is no directory"),
        (("validate", "--run", ".", "--seed", "3"), "leave out --set and --seed"),
    ],
)
def test_validate_refuses_what_it_cannot_compare(words, text):
    assert text in invoke(*words, code=2)


def test_validate_refuses_a_simulation(case_file, tmp_path):
    invoke("simulate", case_file, "--artifact-dir", tmp_path / "out")
    assert "is a simulation" in invoke("validate", "--run", tmp_path / "out", code=2)


def test_validate_refuses_other_arrivals(case_file, tmp_path):
    invoke("simulate", case_file, "--artifact-dir", tmp_path / "out")
    as_emulation(tmp_path / "out")
    config = tmp_path / "out" / "config.yaml"
    config.write_text(config.read_text().replace("load: 0.5", "load: 0.9"))
    assert "both need the same arrivals" in invoke("validate", "--run", tmp_path / "out", code=2)


def test_constants_that_a_run_calibrated_hold_where_it_measured_none(tmp_path):
    document = {
        "measures": [{"name": "reconfiguration beyond tau, median", "real": 3.0}],
        "calibration": {"constants": {"control_s": 0.0002, "switch_excess_s": 0.009, "of a later version": 1.0}},
    }
    (tmp_path / "fidelity.json").write_text(json.dumps(document))
    assert read_constants(tmp_path / "fidelity.json") == Constants(control_s=0.0002, switch_excess_s=0.003)


def test_constants_come_from_the_fidelity_of_a_run(tmp_path):
    measures = [
        {"name": "live circuit to sender told, median", "real": 0.8},
        {"name": "reconfiguration beyond tau, median", "real": 3.5},
        {"name": "calibrated excess of a switch", "real": 2.5},
        {"name": "arrival lag p99", "real": 9.0},
    ]
    (tmp_path / "fidelity.json").write_text(json.dumps({"measures": measures}))
    assert read_constants(tmp_path / "fidelity.json") == Constants(
        live_told_s=0.8e-3, switch_excess_s=3.5e-3, calibrated_excess_s=2.5e-3
    )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("returns_s: 1", "no constant returns_s"),
        ("return_s: -1", "return_s is -1"),
        ("- 1", "expected keys and values"),
    ],
)
def test_constants_that_make_no_sense_are_refused(tmp_path, text, wrong):
    (tmp_path / "delays.yaml").write_text(text)
    with pytest.raises(ConstantsError, match=wrong):
        read_constants(tmp_path / "delays.yaml")


def requests_table(*ttft_s: float, **columns: list) -> pd.DataFrame:
    n = len(ttft_s)
    table = pd.DataFrame(
        {
            "id": [f"r{i}" for i in range(n)],
            "status": "completed",
            "arrival_s": [float(i) for i in range(n)],
            "prefill": "p0",
            "decode": "d0",
            "ttft_s": ttft_s,
        }
    )
    for part in ("queue_s", "prefill_s", "circuit_wait_s", "control_s", "return_s"):
        table[part] = 0.0
    table["transfer_exposed_s"] = ttft_s
    return table.assign(**columns)


def test_residuals_by_hand():
    found = residuals(
        requests_table(1.2, 1.1, 0.9, decode=["d0", "d1", "d0"]),
        requests_table(1.0, 1.0, 1.0),
    )
    assert found["ttft"]["median_share"] == pytest.approx(0.1)  # measured is slower: positive
    assert found["ttft"]["median_absolute_share"] == pytest.approx(0.1)
    assert found["ttft"]["max_absolute_share"] == pytest.approx(0.2)
    assert found["ttft"]["slower_share"] == pytest.approx(2 / 3)
    assert found["ttft"]["mean_ratio"] == pytest.approx(3.2 / 3)
    assert found["same_decisions_share"] == pytest.approx(2 / 3)
    assert found["parts"]["transfer_exposed_s"]["max_absolute_s"] == pytest.approx(0.2)
    assert found["parts"]["queue_s"]["max_absolute_s"] == 0.0
    assert found["worst"][0]["largest_part"] == "transfer_exposed_s"


def test_residuals_leave_out_what_one_side_did_not_complete():
    found = residuals(requests_table(1.0, 2.0, status=["completed", "failed"]), requests_table(1.0, 1.0))
    assert found["requests"] == 1
    assert found["ttft"]["mean_ratio"] == pytest.approx(1.0)


def test_residuals_of_nothing_are_undefined():
    found = residuals(requests_table(1.0, status=["failed"]), requests_table(1.0))
    assert found["ttft"] == {"n": 0}
    assert found["same_decisions_share"] is None
