"""Making a recorded run again: what is refused, what is said to differ, how near two runs are. Runs are the twin's."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from plugin_cases import CHOICE, small
from trace_samples import mooncake
from typer.testing import CliRunner

import cli
from results.records.artifacts import RunDirectory
from results.report.replay import changes, nearness

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def invoke(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return re.sub(r"\s+", " ", done.output)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace and a finished run of it, and of synthetic requests, over circuits."""
    tmp_path = tmp_path_factory.mktemp("original")
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(mooncake())
    document = yaml.safe_load((EXPERIMENTS / "datapaths.yaml").read_text())
    document["fabrics"] = document["fabrics"][1:]
    document["workload"]["tenants"] = [
        {"name": "agentic", "source": "synthetic-agentic", "share": 0.5, "load": 0.6},
        {"name": "chat", "source": "mooncake", "path": str(trace), "share": 0.5},
    ]
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(document))
    invoke("simulate", tmp_path / "case.yaml", "--artifact-dir", tmp_path / "run")
    return tmp_path


@pytest.fixture
def finished(original: Path, tmp_path: Path) -> Path:
    """The run's directory, in a copy of that folder."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(original), str(tmp_path)))
    return tmp_path / "run"


def edit(path: Path, change) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_a_run_whose_trace_seeds_and_arrivals_are_the_same_can_be_made_again(finished: Path) -> None:
    assert "can be made again" in invoke("run", "--replay", finished, "--dry-run")


def test_a_trace_that_is_not_the_same_byte_for_byte_is_refused_with_both_hashes(finished: Path) -> None:
    trace = finished.parent / "trace.jsonl"
    trace.write_text(trace.read_text() + "\n")
    output = invoke("run", "--replay", finished, "--dry-run", code=2)
    recorded = json.loads((finished / "provenance.json").read_text())["traces"][0]["sha256"]
    assert f"the run replayed {recorded}" in output
    assert "nothing was built" in output


def test_a_plug_in_that_is_not_the_same_byte_for_byte_is_refused_and_one_that_moved_is_found(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(CHOICE)
    invoke("simulate", small(tmp_path, "mine:Mine"), "--artifact-dir", tmp_path / "run")
    words = ("run", "--replay", tmp_path / "run", "--dry-run")
    assert "can be made again" in invoke(*words)
    plugin.write_text(CHOICE + "# edited\n")
    recorded, _ = json.loads((tmp_path / "run" / "provenance.json").read_text())["plugins"]
    assert f"and the run had {recorded['sha256']}" in invoke(*words, code=2)
    (tmp_path / "moved.py").write_text(CHOICE + "Other = Mine\n")
    moved = f"fabrics.1.decode_choice={tmp_path}/moved.py"
    plugin.write_text(CHOICE)
    assert f"and the run had {recorded['sha256']}" in invoke(*words, "--set", f"{moved}:Mine", code=2)
    assert "names " + str(tmp_path / "moved.py:Other") in invoke(*words, "--set", f"{moved}:Other", code=2)
    (tmp_path / "moved.py").write_text(CHOICE)
    assert "can be made again" in invoke(*words, "--set", f"{moved}:Mine")
    assert "only workload.tenants.N.path" in invoke(*words, "--set", "fabrics.1.decode_choice=least-loaded", code=2)


def test_a_trace_that_has_moved_is_found_where_it_is_said_to_be(finished: Path) -> None:
    moved = finished.parent / "moved.jsonl"
    (finished.parent / "trace.jsonl").rename(moved)
    words = ("run", "--replay", finished, "--dry-run")
    assert "trace.jsonl" in invoke(*words, code=2)
    assert "can be made again" in invoke(*words, "--set", f"workload.tenants.1.path={moved}")


@pytest.mark.parametrize("words", [["--seed", "2"], ["--set", "workload.window_s=5"]])
def test_what_would_be_another_experiment_is_refused(finished: Path, words: list[str]) -> None:
    assert "makes the recorded experiment again" in invoke("run", "--replay", finished, *words, code=2)


def test_other_arrivals_than_were_recorded_are_refused(finished: Path) -> None:
    config = finished / "config.yaml"
    config.write_text(config.read_text().replace("load: 0.6", "load: 0.7"))
    assert "requests are others than were recorded" in invoke("run", "--replay", finished, "--dry-run", code=2)


def test_one_request_of_another_length_is_another_run(finished: Path) -> None:
    table = finished / "ocs-25ms/seed1/requests.csv"
    frame = pd.read_csv(table, float_precision="round_trip")
    frame.loc[3, "new_tokens"] += 1
    frame.to_csv(table, index=False)
    assert "seed 1: 1 of " in invoke("run", "--replay", finished, "--dry-run", code=2)


def test_other_seeds_than_were_recorded_are_refused(finished: Path) -> None:
    edit(finished / "provenance.json", lambda record: record.update(seeds=[1, 2]))
    assert "has the seeds [1], and the run had [1, 2]" in invoke("run", "--replay", finished, "--dry-run", code=2)


def test_a_directory_that_does_not_say_what_it_was_made_of_is_refused(finished: Path, tmp_path: Path) -> None:
    assert "no summary.json" in invoke("run", "--replay", tmp_path, code=2)  # the folder above
    edit(finished / "provenance.json", lambda record: record.pop("traces"))
    assert "does not say traces" in invoke("run", "--replay", finished, code=2)
    (finished / "config.yaml").unlink()
    assert "no config.yaml" in invoke("run", "--replay", finished, code=2)


def test_a_file_and_a_replay_exclude_each_other() -> None:
    assert "or --replay DIR" in invoke("run", code=2)
    assert "or --replay DIR" in invoke("run", "a.yaml", "--replay", "b", code=2)


def test_what_differs_of_the_machine_and_the_versions_is_said(finished: Path) -> None:
    then = {"kernel": "6.1.0-57-amd64", "datapath": "system", "machine": {"cores": 4}, "sysctls": {"a": "1", "b": "2"}}
    now = {"kernel": "6.18.44", "datapath": "netdev", "machine": {"cores": 2}, "sysctls": {"a": "0"}}
    assert changes(then | {"packages": {"numpy": "2.2.6"}}, now | {"packages": {"numpy": "2.3.0"}}) == [
        "kernel: 6.1.0-57-amd64 then, 6.18.44 now",
        "datapath: system then, netdev now",
        "cores: 4 then, 2 now",
        "numpy: 2.2.6 then, 2.3.0 now",
        "sysctl a: 1 then, 0 now",
        "sysctl b: 2 then, not set now",
    ]
    assert changes(now, now) == []
    # of a twin's run: it has no datapath, and this machine has one
    assert "replay: datapath: none then" in invoke("run", "--replay", finished, "--dry-run")


def test_two_runs_are_near_by_their_choices_and_their_medians(finished: Path) -> None:
    again = finished.parent / "again"
    invoke("simulate", finished / "config.yaml", "--artifact-dir", again)
    (line,) = nearness(RunDirectory.open(finished), RunDirectory.open(again))
    count = len((finished / "ocs-25ms/seed1/requests.csv").read_text().splitlines()) - 1
    assert line.startswith(
        f"ocs-25ms, seed 1: same prefill for {count} and same decode for {count} of {count} requests"
    )
    assert line.endswith("+0.0%, within 5%")
    edit(again / "summary.json", lambda record: record["runs"][0]["ttft_s"].update(p50=99.0))
    requests = again / "ocs-25ms/seed1/requests.csv"
    requests.write_text(requests.read_text().replace(",d0,", ",d1,", 1))
    (line,) = nearness(RunDirectory.open(finished), RunDirectory.open(again))
    assert f"same decode for {count - 1} of {count}" in line
    assert line.endswith("beyond 5%")
