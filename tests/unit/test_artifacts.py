"""Artifacts: written whole or not at all, never mixed, and read back as they were."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from datetime import datetime, timezone

import pandas as pd
import pytest
import yaml

from results.records import artifacts
from results.records.artifacts import ArtifactError, RunDirectory
from results.records.schema import REQUESTS
from results.records.summary import RequestCounts, RunSummary, TtftStatistics

NOON = datetime(2026, 1, 31, 12, 0, 5, tzinfo=timezone.utc)


def run_summary(**changes):
    values = {
        "name": "f",
        "fabric": "eps",
        "seed": 1,
        "substrate": "emulation",
        "requests": RequestCounts(offered=1, completed=1, failed=0, unfinished=0),
        "ttft_s": TtftStatistics(n=1, mean=0.5, null_reasons={"p50": "n = 1 is too small"}),
        "verdict": "valid",
    }
    return RunSummary(**(values | changes))


def test_a_run_gets_a_directory_named_after_its_time_and_name(tmp_path):
    assert RunDirectory.create("demo", runs=tmp_path, now=NOON).path == tmp_path / "20260131T120005Z-demo"


def test_two_runs_of_the_same_second_get_two_directories(tmp_path):
    paths = [RunDirectory.create("demo", runs=tmp_path, now=NOON).path.name for _ in range(3)]
    assert paths == ["20260131T120005Z-demo", "20260131T120005Z-demo-2", "20260131T120005Z-demo-3"]


def test_a_new_or_an_empty_artifact_directory_is_used(tmp_path):
    assert RunDirectory.create("demo", artifact_dir=tmp_path / "a" / "b").path == tmp_path / "a" / "b"
    assert RunDirectory.create("demo", artifact_dir=tmp_path / "a" / "b").path.is_dir()


def test_results_are_never_mixed_with_what_a_directory_holds(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"is not empty \(it holds summary.json\).*name a new directory"):
        RunDirectory.create("demo", artifact_dir=tmp_path)
    assert (tmp_path / "summary.json").read_text() == "{}"


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(ArtifactError, match=f"cannot use {tmp_path}/x for results: File exists"):
        RunDirectory.create("demo", artifact_dir=tmp_path / "x")


def test_a_directory_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    # root may write anywhere, so the kernel's answer is what is replaced
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ArtifactError, match="cannot be written by user"):
        RunDirectory.create("demo", artifact_dir=tmp_path)


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a b"])
def test_a_name_that_would_leave_the_directory_is_refused(tmp_path, name):
    with pytest.raises(ArtifactError, match="cannot name a directory"):
        RunDirectory.create(name, runs=tmp_path)
    with pytest.raises(ArtifactError, match="cannot name a directory"):
        RunDirectory(tmp_path).fabric_path(name, 1)


def test_a_write_that_dies_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch):
    path = artifacts.write_json(tmp_path / "summary.json", {"a": 1})

    def die(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(ArtifactError, match="No space left on device"):
        artifacts.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_nan_never_reaches_a_json_file(tmp_path):
    with pytest.raises(ArtifactError, match="not JSON compliant"):
        artifacts.write_json(tmp_path / "x.json", {"mean": float("nan")})
    assert not list(tmp_path.iterdir())


def test_a_table_reads_back_as_it_was_written(tmp_path):
    frame = REQUESTS.frame(
        [
            {
                "id": "007",
                "tenant": "NA",
                "session": "null",
                "arrival_s": 0.1 + 0.2,
                "new_tokens": 1,
                "cached_tokens": 0,
            }
            | {"status": "completed", "reason": 'a "quoted", reason\nof two lines', "migrated": True, "ttft_s": 1 / 3},
            {"id": "warmup-1", "tenant": "a", "arrival_s": 2.0, "status": "failed", "migrated": None},
            {"id": "b", "tenant": "a", "arrival_s": 2.0, "status": "failed", "migrated": False, "cached_tokens": 2**40},
        ]
    )
    run = RunDirectory.create("demo", artifact_dir=tmp_path)
    run.write_table("f", 1, "requests", frame)
    assert (tmp_path / "f" / "seed1" / "requests.csv").read_text().startswith("id,tenant,session,arrival_s,new_tokens,")
    pd.testing.assert_frame_equal(run.table("f", 1, "requests"), frame, check_exact=True)


def test_an_empty_table_keeps_its_columns(tmp_path):
    run = RunDirectory.create("demo", artifact_dir=tmp_path)
    run.write_table("f", 1, "circuits", artifacts.TABLES["circuits"].frame([]))
    assert list(run.table("f", 1, "circuits").columns) == artifacts.TABLES["circuits"].columns
    assert run.table("f", 1, "links") is None


def test_a_table_that_was_tampered_with_is_refused_by_file_and_column(tmp_path):
    run = RunDirectory.create("demo", artifact_dir=tmp_path)
    path = run.write_table("f", 1, "requests", REQUESTS.frame([{"id": "a", "arrival_s": 1.0}]))
    path.write_text(path.read_text().replace("1.0", "soon"))
    with pytest.raises(ArtifactError, match=r"requests.csv: requests.csv, column arrival_s: .*soon"):
        run.table("f", 1, "requests")


def test_the_summary_keeps_to_schema_1(tmp_path):
    run = RunDirectory.create("demo", artifact_dir=tmp_path)
    run.write_summary([run_summary()])
    raw = json.loads((tmp_path / "summary.json").read_text())
    assert raw["schema"] == 1
    entry = raw["runs"][0]
    contract = ["name", "fabric", "seed", "substrate", "requests", "ttft_s", "ttft_exposed_share", "hidden_share"]
    assert {*contract, "slo_attainment", "verdict", "reasons"} <= set(entry)
    assert {"offered", "completed", "failed", "unfinished"} <= set(entry["requests"])
    assert {"n", "mean", "p50", "p90", "p95", "p99"} <= set(entry["ttft_s"])
    assert entry["ttft_s"]["p50"] is None
    assert entry["ttft_s"]["null_reasons"]["p50"] == "n = 1 is too small"
    assert RunDirectory.open(tmp_path).summary().runs == [run_summary()]


def test_what_a_newer_writer_added_to_the_summary_is_kept(tmp_path):
    run = RunDirectory.create("demo", artifact_dir=tmp_path)
    run.write_summary([run_summary(energy_j=3.5)], host="x")
    again = run.summary().as_json()
    assert (again["host"], again["runs"][0]["energy_j"]) == ("x", 3.5)


def test_a_summary_of_another_schema_is_refused(tmp_path):
    (tmp_path / "summary.json").write_text('{"schema": 2, "runs": []}')
    with pytest.raises(ArtifactError, match=r"summary\.json.*\n?.*schema"):
        RunDirectory.open(tmp_path).summary()


def test_a_directory_without_a_summary_is_no_run(tmp_path):
    with pytest.raises(ArtifactError, match=r"holds no summary\.json"):
        RunDirectory.open(tmp_path)
    with pytest.raises(ArtifactError, match="is no directory"):
        RunDirectory.open(tmp_path / "missing")


def test_the_configuration_keeps_the_order_of_its_keys(tmp_path):
    run = RunDirectory.create("demo", artifact_dir=tmp_path)
    path = run.write_config("name: demo\ncluster: {tp: 4}\na: [1]\n")
    assert path.read_text().index("name") < path.read_text().index("cluster") < path.read_text().index("\na:")
    assert yaml.safe_load(path.read_text()) == run.config()
    assert run.provenance() == {}


def test_provenance_names_the_inputs_by_digest_and_the_machine_by_versions(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"x" * 3_000_000)
    record = artifacts.provenance(
        argv=["./heliograph", "demo"], seeds=[1, 2], datapath="netdev", traces=[trace], sysctls={"net.ipv4.x": "1"}
    )
    json.dumps(record, allow_nan=False)
    assert record["traces"] == [
        {"path": str(trace), "bytes": 3_000_000, "sha256": hashlib.sha256(b"x" * 3_000_000).hexdigest()}
    ]
    assert record["kernel"] == os.uname().release
    assert record["packages"]["pandas"] == pd.__version__
    assert (record["argv"], record["seeds"], record["datapath"]) == (["./heliograph", "demo"], [1, 2], "netdev")
    assert record["sysctls"] == {"net.ipv4.x": "1"}


def test_provenance_says_when_tracked_files_differ_from_the_revision(tmp_path, monkeypatch):
    def git(*words):
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "x")
    monkeypatch.setattr(artifacts, "ROOT", tmp_path)

    def revision():
        record = artifacts.provenance(argv=[], seeds=[], datapath="none")
        return record["git_revision"], record["git_dirty"]

    (tmp_path / "untracked").write_text("")  # results of earlier runs do not make a revision dirty
    name, dirty = revision()
    assert len(name) == 40
    assert dirty is False
    (tmp_path / "a").write_text("2")
    assert revision() == (name, True)


def test_provenance_outside_a_checkout_has_no_revision(tmp_path, monkeypatch):
    monkeypatch.setattr(artifacts, "ROOT", tmp_path)
    record = artifacts.provenance(argv=[], seeds=[], datapath="none")
    assert (record["git_revision"], record["git_dirty"]) == (None, None)


def test_a_boolean_that_is_neither_true_nor_false_is_refused(tmp_path):
    run = RunDirectory.create("demo", artifact_dir=tmp_path)
    path = run.write_table("f", 1, "requests", REQUESTS.frame([{"id": "a", "migrated": True}]))
    path.write_text(path.read_text().replace("True", "yes"))
    with pytest.raises(ArtifactError, match="column migrated: 'yes', expected True, False or nothing"):
        run.table("f", 1, "requests")
