"""What a run made is remembered beside its ledger too, and gone is only what was looked up and was not there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import app
from emulation.linux import ledger as ledgers
from emulation.linux import removal
from emulation.linux.ledger import LeftBehind, RunLedger, clean, dead_runs
from emulation.linux.processes import start_ticks


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def unending(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes that no signal ends, as if the kernel held them."""
    held: list[int] = []
    end = removal.end_processes
    monkeypatch.setattr(
        removal, "end_processes", lambda processes: end([each for each in processes if each[0] not in held])
    )
    return held


def test_a_ledger_removed_under_a_live_run_costs_nothing_of_what_it_made(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    ledger = RunLedger.open("one", base=tmp_path)
    ledger.process(sleeper.pid)
    shutil.rmtree(ledger.directory)
    assert ledger.entries("process")
    assert ledger.close() == [f"process {sleeper.pid}"]
    assert start_ticks(sleeper.pid) is None


def test_a_ledger_emptied_under_a_live_run_costs_nothing_either(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    ledger = RunLedger.open("one", base=tmp_path)
    ledger.process(sleeper.pid)
    (ledger.directory / "ledger.jsonl").write_text("")
    assert ledger.remove() == [f"process {sleeper.pid}"]
    ledger.close()


def test_what_could_not_be_removed_is_said_with_the_remedy_and_clean_tries_again(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], unending: list[int]
) -> None:
    unending.append(sleeper.pid)
    ledger = RunLedger.open("one", base=tmp_path)
    ledger.process(sleeper.pid)
    assert ledger.remove() == [], "it is said when the run ends, and tried again then"
    with pytest.raises(LeftBehind, match=rf"process {sleeper.pid} \(sleep\) does not end.*then `sudo"):
        ledger.close()
    (dead,) = dead_runs(tmp_path)
    with pytest.raises(LeftBehind, match=f"process {sleeper.pid}"):
        clean(dead)
    unending.clear()
    assert clean(dead) == [f"process {sleeper.pid}", f"directory {dead}"]


def test_what_a_part_had_started_and_was_stopped_at_once_is_ended_too(tmp_path: Path) -> None:
    """A child that is stopped before it says with whom it dies outlives its parent."""
    ledger = RunLedger.open("one", base=tmp_path)
    stray = (
        "import os, signal; pid = os.fork()\nif not pid: os.kill(os.getpid(), signal.SIGSTOP)\nprint(pid, flush=True)"
    )
    log = ledger.directory / "log"
    with log.open("wb") as errors:
        part = subprocess.Popen(
            [sys.executable, "-c", f"{stray}; input()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
        )  # fmt: skip
        foreign = subprocess.Popen(["sleep", "60"], stderr=errors)
    try:
        ledger.process(part.pid)
        assert part.stdout is not None
        child = int(part.stdout.readline())
        assert ledger.close() == [f"process {part.pid}", f"process {child}"]
        assert start_ticks(child) is None
        assert foreign.poll() is None, "of another session"
    finally:
        foreign.kill()
        foreign.wait()
        part.communicate()


def test_a_directory_that_stays_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = RunLedger.open("one", base=tmp_path)
    with monkeypatch.context() as stuck:
        stuck.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
        with pytest.raises(LeftBehind, match=f"directory {ledger.directory} cannot be removed"):
            ledger.close()
    assert dead_runs(tmp_path) == [ledger.directory]


def test_what_ended_the_run_is_not_lost_by_what_it_left(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], unending: list[int]
) -> None:
    unending.append(sleeper.pid)
    fault = RuntimeError("the controller died")

    def run() -> None:
        with RunLedger.open("one", base=tmp_path) as ledger:
            ledger.process(sleeper.pid)
            raise fault

    with pytest.raises(LeftBehind) as left:
        run()
    assert left.value.during is fault


def test_clean_says_what_is_left_and_fails(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], unending: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commands.machine.need_root", lambda why: None)
    monkeypatch.setattr(ledgers, "BASE", tmp_path)
    unending.append(sleeper.pid)
    ledger = RunLedger.open("one", base=tmp_path)
    ledger.subdirectory("scratch")
    ledger.process(sleeper.pid)
    with pytest.raises(LeftBehind):
        ledger.close()
    done = CliRunner().invoke(app, ["clean"])
    assert done.exit_code == 1, done.output
    assert f"process {sleeper.pid} (sleep) does not end" in done.output
    unending.clear()
    done = CliRunner().invoke(app, ["clean"])
    assert (done.exit_code, done.output) == (
        0,
        f"removed process {sleeper.pid}\nremoved directory {ledger.directory}\n",
    )


def test_clean_during_a_live_run_says_whose_it_is_and_removes_nothing(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commands.machine.need_root", lambda why: None)
    monkeypatch.setattr(ledgers, "BASE", tmp_path)
    with RunLedger.open("alive", base=tmp_path) as ledger:
        ledger.process(sleeper.pid)
        done = CliRunner().invoke(app, ["clean"])
        assert done.exit_code == 1, done.output
        assert "run alive (process" in done.output
        assert "nothing is removed" in done.output
        assert sleeper.poll() is None
