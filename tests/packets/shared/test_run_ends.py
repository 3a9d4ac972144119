"""A whole run from the command line as a user starts it, and its ends. Every other end is drilled in test_drills.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command_runs import LINK_OFF, NAMESPACES, Commands, skip_where_links_fail, user

from results.artifacts import RunDirectory

SHORT = ["--set", "workload.window_s=6", "--set", "workload.warmup_s=2"]
MACHINE_TOO_BUSY = 3


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with user(tmp_path) as found:
        yield found


def test_a_short_run_writes_every_artifact(commands: Commands, tmp_path: Path) -> None:
    # The one test of whole runs that is never skipped: were the probes themselves wrong, it would say so.
    for attempt in range(3):
        out = tmp_path / f"out{attempt}"
        run = commands.start("run", "experiments/demo.yaml", *SHORT, "--pcap", "--artifact-dir", out)
        status = run.ended(120)
        if LINK_OFF not in run.said():
            break
    assert status in (0, MACHINE_TOO_BUSY), run.said()
    summary = json.loads((out / "summary.json").read_text())
    assert [(entry["name"], entry["fabric"]) for entry in summary["runs"]] == [
        ("eps-2to1-ecmp", "eps"),
        ("ocs-25ms", "ocs"),
        ("ocs-25ms-no-reuse", "ocs"),
    ]
    offered = {json.dumps(entry["requests"], sort_keys=True) for entry in summary["runs"]}
    assert len(offered) == 1, "every fabric sees and completes the same requests"
    assert summary["runs"][0]["requests"]["failed"] == 0
    assert (status == 0) == all(entry["verdict"] != "invalid" for entry in summary["runs"])
    directory = RunDirectory.open(out)
    arrivals = []
    for entry in summary["runs"]:
        requests = directory.table(entry["name"], 1, "requests")
        parts = requests.filter(regex="^(queue|prefill|circuit_wait|transfer_exposed|control|return)_s$")
        assert parts.shape[1] == 6
        assert (parts.sum(axis=1) - requests["ttft_s"]).abs().max() < 1e-6
        links = directory.table(entry["name"], 1, "links")
        assert links["tx_bytes"].sum() > directory.table(entry["name"], 1, "transfers")["emulated_bytes"].sum()
        arrivals.append(requests["arrival_s"].tolist())
        audit = json.loads((out / entry["name"] / "seed1" / "fidelity.json").read_text())["audit"]
        assert audit["violations"] == []
        transfers = directory.table(entry["name"], 1, "transfers")
        assert audit["payload_bytes"] == transfers["emulated_bytes"].sum()
        assert (audit["flows"] or audit["reconfigurations"]) > 0
        assert list((out / entry["name"] / "seed1" / "pcap").glob("*.pcap"))
    assert arrivals[0] == arrivals[1] == arrivals[2]
    circuits = directory.table("ocs-25ms-no-reuse", 1, "circuits")
    assert circuits["needs_switch"].all()
    steps = circuits[["remove_s", "barrier_s", "purge_s", "dark_wait_s", "install_s", "barrier2_s", "purge2_s"]]
    assert (steps.sum(axis=1) >= 0.025).all()
    assert "plotly" in (out / "report.html").read_text()[:6_000_000].lower()
    assert yaml.safe_load((out / "config.yaml").read_text())["name"] == "demo"


def test_an_interrupted_run_removes_everything_and_says_so(commands: Commands, tmp_path: Path) -> None:
    run = commands.start("run", "experiments/demo.yaml", *SHORT, "--artifact-dir", tmp_path / "out")
    run.wait_for("eps-2to1-ecmp: connect")
    run.process.send_signal(signal.SIGINT)
    assert run.ended(60) == 130, run.said()
    assert "interrupted by SIGINT" in run.said()
    assert "Traceback" not in run.said()


def test_a_second_run_refuses_while_one_is_alive(commands: Commands, tmp_path: Path) -> None:
    first = commands.start("run", "experiments/demo.yaml", *SHORT, "--artifact-dir", tmp_path / "first")
    first.wait_for("eps-2to1-ecmp: build")
    second = commands.start("run", "experiments/demo.yaml", *SHORT, "--artifact-dir", tmp_path / "second")
    status = second.ended(60)
    skip_where_links_fail(first.said())
    assert status == 1, second.said()
    assert str(first.process.pid) in second.said()
    assert "Traceback" not in second.said()
    first.process.send_signal(signal.SIGTERM)
    assert first.ended(60) == 128 + signal.SIGTERM, first.said()


def test_clean_removes_what_a_killed_run_left(commands: Commands, tmp_path: Path) -> None:
    run = commands.start("run", "experiments/demo.yaml", *SHORT, "--artifact-dir", tmp_path / "out")
    run.wait_for("eps-2to1-ecmp: connect")
    run.process.kill()
    run.ended(10)
    assert commands.namespaces(), "there is something to clean"
    foreign = f"hgffff-{os.getpid()}"  # looks like ours, but no ledger lists it
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        clean = commands.start("clean")
        assert clean.ended(60) == 0, clean.said()
        assert not commands.namespaces()
        assert (NAMESPACES / foreign).exists()
    finally:
        subprocess.run(["ip", "netns", "del", foreign], check=True)
