"""The lock of a live run: nobody else can hold it, it says who does, and a run is alive while it is held."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emulation.linux.ledger import AnotherRun, LedgerError, RunLedger, clean, dead_runs, no_run
from emulation.linux.run_lock import is_held

ROOT = Path(__file__).resolve().parents[2]
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else, or make namespaces")
SOMEBODY = 54321
LIVE_RUN = (
    "import sys; sys.path.insert(0, sys.argv[1])\n"
    "from pathlib import Path\n"
    "from emulation.linux.ledger import RunLedger\n"
    "with RunLedger.open('victim', base=Path(sys.argv[2])):\n"
    "    print('open', flush=True); sys.stdin.read()\n"
)


@contextmanager
def live_run(base: Path, *before: str) -> Iterator[subprocess.Popen[str]]:
    """A run in another process, started by `before` (such as unshare)."""
    command = [*before, sys.executable, "-c", LIVE_RUN, str(ROOT), str(base)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "open\n":
        process.communicate()
        pytest.skip(f"{' '.join(before)} does not work here")
    yield process
    process.communicate(timeout=30)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "heliograph"


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_directories_and_lock_have_their_modes_whatever_the_umask(base: Path) -> None:
    with RunLedger.open("one", base=base) as ledger:
        paths = (base, base / "lock", ledger.directory, ledger.directory / "ledger.jsonl")
        assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o755, 0o600, 0o755, 0o600]


@ROOT_ONLY
@pytest.mark.parametrize("name", ["lock", "one/ledger.jsonl"])
def test_nobody_else_can_hold_it(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    base = Path("/tmp") / f"hg-lock-{os.getpid()}"  # pytest's own folders let nobody else in anyway
    try:
        with RunLedger.open("one", base=base):
            take = f"import fcntl, os; fcntl.flock(os.open({str(base / name)!r}, os.O_RDONLY), fcntl.LOCK_SH)"
            # unlike a Python of the checkout, the system's can be read by anybody
            done = subprocess.run(
                ["setpriv", f"--reuid={SOMEBODY}", "--clear-groups", "/usr/bin/python3", "-c", take],
                capture_output=True, text=True,
            )  # fmt: skip
            assert "PermissionError" in done.stderr, done
    finally:
        subprocess.run(["rm", "-r", str(base)], check=True)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_place_where_others_can_write_is_refused(base: Path, mode: int) -> None:
    base.mkdir()
    base.chmod(mode)
    for deed in (lambda: RunLedger.open("one", base=base), lambda: dead_runs(base)):
        with pytest.raises(LedgerError, match=rf"{base} can be written by others \(mode {mode:04o}\)"):
            deed()
    assert not list(base.iterdir())


@ROOT_ONLY
def test_somebody_elses_place_is_refused(base: Path) -> None:
    base.mkdir()
    os.chown(base, SOMEBODY, SOMEBODY)
    with pytest.raises(LedgerError, match=f"belongs to user id {SOMEBODY}"):
        RunLedger.open("one", base=base)


def test_a_link_in_the_place_of_the_lock_is_refused_and_not_followed(base: Path, tmp_path: Path) -> None:
    base.mkdir(mode=0o755)
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    (base / "lock").symlink_to(treasure)
    with pytest.raises(LedgerError, match="symbolic link"):
        RunLedger.open("one", base=base)
    assert treasure.read_text() == "gold"
    (tmp_path / "elsewhere").symlink_to(base)
    with pytest.raises(LedgerError, match="not a directory"):
        RunLedger.open("one", base=tmp_path / "elsewhere")


def test_the_holder_is_named_with_its_command_and_since_when(base: Path) -> None:
    with live_run(base) as process, pytest.raises(AnotherRun) as refusal:
        RunLedger.open("second", base=base)
    assert refusal.value.pid == process.pid
    for words in (f"run victim (process {process.pid}: {sys.executable} -c ", ", since 2", " UTC) holds "):
        assert words in str(refusal.value)


def test_a_holder_that_is_no_run_is_named_and_not_taken_for_the_run_before(base: Path) -> None:
    RunLedger.open("before", base=base).close()
    (base / "lock").write_text('{"run_id": "before", "pid": 1, "command": "x", "since": "y"}')
    with subprocess.Popen(["flock", str(base / "lock"), "cat"], stdin=subprocess.PIPE) as holder:
        while not is_held(base / "lock"):
            pass
        with pytest.raises(AnotherRun) as refusal:
            RunLedger.open("second", base=base)
        assert holder.stdin is not None
        holder.stdin.close()
    assert refusal.value.pid == holder.pid
    assert str(refusal.value).startswith(f"process {holder.pid}: flock {base}/lock cat, since 2")


@ROOT_ONLY
@pytest.mark.parametrize(
    "namespaces",
    [
        ["--pid", "--fork", "--kill-child"],
        ["--pid", "--fork", "--mount-proc"],
        ["--time", "--boottime=86400", "--fork"],
    ],
    ids=["pid", "pid-and-proc", "time"],
)
def test_a_run_of_another_pid_or_time_namespace_is_alive(base: Path, namespaces: list[str]) -> None:
    with live_run(base, "unshare", *namespaces):
        assert dead_runs(base) == []
        with pytest.raises(LedgerError, match="victim is alive"):
            clean(base / "victim")
        with pytest.raises(AnotherRun, match="run victim"), no_run(base):
            pass
        assert (base / "victim" / "ledger.jsonl").is_file()
    assert not (base / "victim").exists(), "it removed itself"


def test_a_look_at_the_lock_does_not_keep_a_run_from_starting(base: Path) -> None:
    for number in range(20):
        with RunLedger.open(f"run{number}", base=base):
            looks = [subprocess.Popen(["flock", "--shared", "--timeout=5", base / "lock", "true"]) for _ in range(2)]
        for look in looks:
            assert look.wait() == 0


def test_a_dead_run_of_another_pid_namespace_costs_no_process_that_has_its_number_now(base: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        ledger = RunLedger.open("dead", base=base)
        ledger.process(sleeper.pid)
        text = (ledger.directory / "ledger.jsonl").read_text()
        kept = ledger.directory.parent / "other"
        kept.mkdir()
        first, rest = text.split("\n", 1)
        (kept / "ledger.jsonl").write_text(first.replace('"among": [', '"among": [1, ') + "\n" + rest)
        assert clean(kept) == [f"directory {kept}"]
        assert sleeper.poll() is None
        sleeper.kill()
        ledger.close()
