"""A whole run from the command line as a user starts it, and its ends. Every other end is drilled in test_drills.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from emulation.ledger import BASE, dead_runs
from results.artifacts import RunDirectory

ROOT = Path(__file__).resolve().parents[2]
SHORT = ["--set", "workload.window_s=6", "--set", "workload.warmup_s=2"]
MACHINE_TOO_BUSY = 3
LINK_OFF = "of its rate; 3 % is allowed"
MARK = f"HELIOGRAPH_TEST={os.getpid()}-{time.monotonic_ns()}"


def heliograph(*arguments: str, **options) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "cli.py"), *arguments]
    name, _, value = MARK.partition("=")
    environment = {**os.environ, name: value}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment, **options
    )


def namespaces() -> set[str]:
    return set(os.listdir("/run/netns")) if Path("/run/netns").is_dir() else set()


def processes() -> set[str]:
    """Processes of the runs that these tests started, by pid: they inherit our mark."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            marked = MARK.encode() in (path / "environ").read_bytes().split(b"\0")
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if marked:
            found.add(f"{path.name}: {b' '.join(words).decode()[:120]}")
    return found


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = namespaces(), processes()
    assert not dead_runs(), "an earlier run left something behind: ./heliograph clean"
    yield
    assert (namespaces(), processes()) == before
    assert not [path for path in BASE.iterdir() if path.is_dir()], "a run directory is left"


def wait_for(run: subprocess.Popen[str], text: str, timeout_s: float = 30.0) -> str:
    """Read the run's output up to a line with `text`."""
    assert run.stdout is not None
    seen, deadline_s = "", time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        line = run.stdout.readline()
        seen += line
        if text in line:
            return seen
        if not line and run.poll() is not None:
            break
    skip_where_links_fail(seen)
    raise AssertionError(f"{text!r} did not appear in:\n{seen}")


def skip_where_links_fail(output: str) -> None:
    """A run that its own probes refused says nothing about what this test looks at."""
    if LINK_OFF in output:
        pytest.skip(f"this machine cannot carry its links now: {output[-600:]}")


def test_a_short_run_writes_every_artifact(tmp_path: Path) -> None:
    # The one test of whole runs that is never skipped: were the probes themselves wrong, it would say so.
    for attempt in range(3):
        out = tmp_path / f"out{attempt}"
        run = heliograph("run", "experiments/demo.yaml", *SHORT, "--pcap", "--artifact-dir", str(out))
        output, _ = run.communicate(timeout=120)
        if LINK_OFF not in output:
            break
    assert run.returncode in (0, MACHINE_TOO_BUSY), output
    summary = json.loads((out / "summary.json").read_text())
    assert [(entry["name"], entry["fabric"]) for entry in summary["runs"]] == [
        ("eps-2to1-ecmp", "eps"),
        ("ocs-25ms", "ocs"),
        ("ocs-25ms-no-reuse", "ocs"),
    ]
    offered = {json.dumps(entry["requests"], sort_keys=True) for entry in summary["runs"]}
    assert len(offered) == 1, "every fabric sees and completes the same requests"
    assert summary["runs"][0]["requests"]["failed"] == 0
    assert (run.returncode == 0) == all(entry["verdict"] != "invalid" for entry in summary["runs"])
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


def test_an_interrupted_run_removes_everything_and_says_so(tmp_path: Path) -> None:
    run = heliograph("run", "experiments/demo.yaml", *SHORT, "--artifact-dir", str(tmp_path / "out"))
    wait_for(run, "eps-2to1-ecmp: connect")
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130, output
    assert "interrupted by SIGINT" in output
    assert "Traceback" not in output


def test_a_second_run_refuses_while_one_is_alive(tmp_path: Path) -> None:
    first = heliograph("run", "experiments/demo.yaml", *SHORT, "--artifact-dir", str(tmp_path / "first"))
    wait_for(first, "run")
    second = heliograph("run", "experiments/demo.yaml", *SHORT, "--artifact-dir", str(tmp_path / "second"))
    output, _ = second.communicate(timeout=30)
    assert second.returncode == 1
    assert str(first.pid) in output
    assert "Traceback" not in output
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=20)


def test_clean_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    run = heliograph("run", "experiments/demo.yaml", *SHORT, "--artifact-dir", str(tmp_path / "out"))
    wait_for(run, "eps-2to1-ecmp: connect")
    run.kill()
    run.communicate(timeout=10)
    foreign = f"hgffff-{os.getpid()}"  # looks like ours, but no ledger lists it
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        clean = heliograph("clean")
        output, _ = clean.communicate(timeout=20)
        assert clean.returncode == 0, output
        assert foreign in namespaces()
    finally:
        subprocess.run(["ip", "netns", "del", foreign], check=True)
