"""The ends of a run from the command line as a user starts it. Every other end is drilled in test_drills.py."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_runs import NAMESPACES, Commands, skip_where_links_fail, user

SHORT = ["--set", "workload.window_s=6", "--set", "workload.warmup_s=2"]


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with user(tmp_path) as found:
        yield found


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
