"""The ledger: what a run made is removed, exactly that, whoever does it and however often."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from full_disk import files_end_at

from emulation.linux.children import spawn
from emulation.linux.ledger import AnotherRun, LedgerError, RunLedger, clean, dead_runs
from emulation.linux.processes import end_processes, start_ticks

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def dead_run(base: Path, *entries: dict) -> Path:
    """A run whose process is gone, with these lines in its ledger."""
    directory = base / "dead"
    directory.mkdir(parents=True)
    first = {"kind": "run", "run_id": "dead", "prefix": "hg0000", "pid": os.getpid(), "start_ticks": 1}
    (directory / "ledger.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in (first, *entries)))
    return directory


def test_without_room_for_a_ledger_there_is_no_run_and_nothing_left(tmp_path):
    with files_end_at(0), pytest.raises(LedgerError, match=f"cannot keep a ledger in {tmp_path}: File too large"):
        RunLedger.open("first", base=tmp_path)
    with RunLedger.open("first", base=tmp_path):
        assert not dead_runs(tmp_path)


def test_a_line_without_room_leaves_the_ledger_as_it_was(tmp_path):
    with RunLedger.open("full", base=tmp_path) as run:
        run.write(kind="process", pid=2**22 + 1, start_ticks=1)
        path = run.directory / "ledger.jsonl"
        before = path.read_text()
        with files_end_at(len(before) + 10), pytest.raises(OSError, match=r"File too large: '.*ledger\.jsonl'"):
            run.write(kind="process", pid=2**22 + 2, start_ticks=1)
        assert path.read_text() == before
        run.write(kind="process", pid=2**22 + 3, start_ticks=1)
        assert [entry["pid"] for entry in run.entries("process")] == [2**22 + 1, 2**22 + 3]


def test_a_process_that_the_ledger_has_no_room_for_is_ended(tmp_path):
    with RunLedger.open("full", base=tmp_path) as run:
        size = (run.directory / "ledger.jsonl").stat().st_size
        with files_end_at(size), pytest.raises(OSError, match="File too large"):
            spawn(["sleep", "60"], ledger=run, log=tmp_path / "log")
    sleeping = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True)
    assert "sleep 60" not in sleeping.stdout


def test_a_second_run_is_refused_and_told_whose_turn_it_is(tmp_path):
    with RunLedger.open("first", base=tmp_path), pytest.raises(AnotherRun, match="first") as refusal:
        RunLedger.open("second", base=tmp_path)
    assert refusal.value.run_id == "first"
    assert refusal.value.pid == os.getpid()
    assert str(tmp_path / "lock") in str(refusal.value)
    RunLedger.open("second", base=tmp_path).close()


def test_a_closed_run_leaves_nothing_but_the_lock_file(tmp_path):
    ledger = RunLedger.open("one", base=tmp_path)
    directory = ledger.subdirectory("ovs0")
    (directory / "conf.db").write_text("x")
    assert ledger.close() == [f"directory {directory}"]
    assert ledger.close() == []
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_line_is_written_before_the_thing_is_made(tmp_path):
    with RunLedger.open("one", base=tmp_path) as ledger:
        (tmp_path / "one" / "ovs0").mkdir()
        with pytest.raises(FileExistsError):
            ledger.subdirectory("ovs0")
        last = (tmp_path / "one" / "ledger.jsonl").read_text().splitlines()[-1]
        assert json.loads(last) == {"kind": "directory", "path": str(tmp_path / "one" / "ovs0")}


def test_a_process_is_ended_and_reaped(tmp_path, sleeper):
    with RunLedger.open("one", base=tmp_path) as ledger:
        ledger.process(sleeper.pid)
        assert ledger.remove() == [f"process {sleeper.pid}"]
        assert start_ticks(sleeper.pid) is None
        assert ledger.remove() == []


def test_a_process_that_ignores_sigterm_is_killed(tmp_path):
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    process.stdout.readline()
    assert end_processes([(process.pid, start_ticks(process.pid))], patience_s=0.1) == [process.pid]
    assert start_ticks(process.pid) is None


def test_a_pid_that_another_process_got_is_left_alone(tmp_path, sleeper):
    ticks = start_ticks(sleeper.pid)
    run = dead_run(tmp_path, {"kind": "process", "pid": sleeper.pid, "start_ticks": ticks - 1})
    assert clean(run) == [f"directory {run}"]
    assert start_ticks(sleeper.pid) == ticks


def test_a_dead_run_is_found_and_cleaned_once(tmp_path, sleeper):
    ours = {"kind": "process", "pid": sleeper.pid, "start_ticks": start_ticks(sleeper.pid)}
    run = dead_run(tmp_path, ours, {"kind": "directory", "path": str(tmp_path / "dead" / "ovs0")})
    (run / "ovs0").mkdir()
    assert dead_runs(tmp_path) == [run]
    assert clean(run) == [f"process {sleeper.pid}", f"directory {run / 'ovs0'}", f"directory {run}"]
    assert dead_runs(tmp_path) == []
    assert clean(run) == []


def test_a_live_run_is_neither_dead_nor_cleaned(tmp_path):
    with RunLedger.open("alive", base=tmp_path) as ledger:
        assert dead_runs(tmp_path) == []
        with pytest.raises(LedgerError, match="alive is alive"):
            clean(ledger.directory)


def test_a_run_killed_outright_is_cleaned_afterwards(tmp_path):
    """Its lock is free at once, and its ledger still lists what it started."""
    program = (
        "import subprocess, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from emulation.linux.ledger import RunLedger\n"
        "run = RunLedger.open('victim', base=Path(sys.argv[2]))\n"
        "child = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL); run.process(child.pid)\n"
        "print(child.pid, flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(ROOT), str(tmp_path)]
    victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = int(victim.stdout.readline())
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    (run,) = dead_runs(tmp_path)
    with RunLedger.open("next", base=tmp_path):
        assert clean(run) == [f"process {child}", f"directory {run}"]
    for _ in range(100):
        if start_ticks(child) is None:
            break
        time.sleep(0.01)
    assert start_ticks(child) is None


def test_global_settings_go_back_to_what_they_were_newest_first(tmp_path):
    setting = tmp_path / "gc_thresh3"
    setting.write_text("8192\n")
    lines = [{"kind": "sysctl", "path": str(setting), "before": before} for before in ("1024", "4096")]
    run = dead_run(tmp_path / "base", *lines)
    assert clean(run)[:2] == [f"sysctl {setting} back to 4096", f"sysctl {setting} back to 1024"]
    assert setting.read_text() == "1024"


def test_a_setting_that_is_back_already_is_not_written(tmp_path):
    setting = tmp_path / "gc_thresh3"
    setting.write_text("1024\n")
    run = dead_run(tmp_path / "base", {"kind": "sysctl", "path": str(setting), "before": "1024"})
    assert clean(run) == [f"directory {run}"]
    assert setting.read_text() == "1024\n"


def test_a_directory_outside_the_run_is_never_removed(tmp_path):
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    run = dead_run(tmp_path / "base", {"kind": "directory", "path": str(treasure)})
    clean(run)
    assert treasure.is_dir()


def test_a_line_cut_short_by_a_kill_hides_nothing_before_it(tmp_path, sleeper):
    ours = {"kind": "process", "pid": sleeper.pid, "start_ticks": start_ticks(sleeper.pid)}
    run = dead_run(tmp_path, ours)
    with (run / "ledger.jsonl").open("a") as file:
        file.write('{"kind": "proc')
    assert f"process {sleeper.pid}" in clean(run)


@pytest.mark.parametrize("run_id", ["", "../escape", "a/b", ".hidden", "x" * 65])
def test_a_run_id_that_is_no_plain_name_is_refused(tmp_path, run_id):
    with pytest.raises(LedgerError, match="run id"):
        RunLedger.open(run_id, base=tmp_path)


def test_a_run_id_in_use_is_refused_and_the_lock_given_back(tmp_path):
    dead_run(tmp_path)
    with pytest.raises(LedgerError, match="heliograph clean"):
        RunLedger.open("dead", base=tmp_path)
    RunLedger.open("other", base=tmp_path).close()


def test_a_namespace_of_another_name_is_refused_before_anything_is_made(tmp_path):
    with RunLedger.open("one", base=tmp_path) as ledger, pytest.raises(LedgerError, match="starts with hg"):
        ledger.namespaces(["foreign"])


def test_a_run_killed_before_its_first_line_is_dead_and_one_that_is_starting_is_not(tmp_path):
    """Starting: its lock is held and names it. A name in a lock that nobody holds says nothing."""
    base = tmp_path / "runs"
    for name in ("no-ledger", "starting"):
        (base / name).mkdir(parents=True)
    with (base / "lock").open("w") as lock:
        lock.write(json.dumps({"run_id": "starting", "pid": os.getpid()}))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [path.name for path in dead_runs(base)] == ["no-ledger"]
        with pytest.raises(LedgerError, match="alive"):
            clean(base / "starting")
    (base / "no-line").mkdir()
    (base / "no-line" / "ledger.jsonl").write_text("")
    assert {path.name for path in dead_runs(base)} == {"no-ledger", "no-line", "starting"}
    for path in dead_runs(base):
        assert clean(path) == [f"directory {path}"]
    assert [path.name for path in base.iterdir()] == ["lock"]
