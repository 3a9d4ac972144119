"""What a run made, written down before it is made, so that it can be removed by anyone afterwards.

    /run/heliograph/lock                      flocked by the live run (`emulation/linux/run_lock.py`)
    /run/heliograph/<run id>/ledger.jsonl     flocked by the run that it is of

One JSON line for each thing: `{"kind": "run", ...}` first, then `namespace`, `process`, `sysctl` and `directory`
lines. A live run remembers them too: its ledger may be removed under it. Its own teardown and `clean` of a dead run are
the same code (`emulation/linux/removal.py`). A run is alive while the lock of its ledger is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from emulation.linux import run_lock
from emulation.linux.netns import NETNS_DIR, batch, sysctl_path
from emulation.linux.processes import start_ticks
from emulation.linux.removal import Entry, Left, remove, remove_namespaces
from emulation.linux.run_lock import AnotherRun, LedgerError, own_directory

__all__ = ["AnotherRun", "LedgerError", "LeftBehind", "RunLedger", "clean", "dead_runs", "no_run"]

#: Where runs keep their ledgers, read at each call: the drills give every lane of theirs a place of its own.
BASE = Path("/run/heliograph")


class LeftBehind(LedgerError):
    """Something could not be removed: says what, and what to do. `removed` is gone; `during`: what ended the run
    before, if anything did. The ledger stays, for another try."""

    def __init__(self, removed: list[str], left: Sequence[Left], during: BaseException | None) -> None:
        super().__init__("not removed:\n" + "\n".join(f"  {each.why}" for each in left))
        self.removed, self.during = removed, during


class RunLedger:
    """The ledger of the live run. Open it with `RunLedger.open`; leave it with `close` (or as a context manager).

    run_id names the directory; `prefix` ("hg" and 4 hex digits) starts the name of every namespace of the run.
    """

    def __init__(self, run_id: str, directory: Path, prefix: str, lock: int, file: int) -> None:
        self.run_id, self.directory, self.prefix = run_id, directory, prefix
        self._lock, self._file = lock, file
        self._path = directory / "ledger.jsonl"
        self._first_bytes = os.fstat(file).st_size
        self._entries: list[Entry] = []
        self._open = True

    @classmethod
    def open(cls, run_id: str, *, base: Path | None = None) -> RunLedger:
        """Take the lock and start a ledger. Raises AnotherRun while another run is alive, LedgerError on a bad or
        used run id, where there is no room for it, and where others could write."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", run_id):
            raise LedgerError(f"run id {run_id!r}: give up to 64 letters, digits, dots, dashes and underscores")
        base = base or BASE
        try:
            own_directory(base)
            lock = run_lock.take(base / "lock", run_id)
        except OSError as error:
            raise LedgerError(f"cannot keep a ledger in {base}: {error.strerror}") from error
        directory = base / run_id
        try:
            directory.mkdir()
            directory.chmod(0o755)  # the run's parts that are not root reach what is theirs in it, whatever the umask
        except FileExistsError as error:
            run_lock.give_back(lock)
            raise LedgerError(
                f"{directory} exists: a run of that name was here; `heliograph clean` removes it"
            ) from error
        except OSError as error:
            run_lock.give_back(lock)
            raise LedgerError(f"cannot keep a ledger in {base}: {error.strerror}") from error
        prefix = _free_prefix()
        try:
            return cls(run_id, directory, prefix, lock, _begin(directory, run_id, prefix))
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            run_lock.give_back(lock)
            raise LedgerError(f"cannot keep a ledger in {base}: {error.strerror}; make room there") from error

    def write(self, **entry: Any) -> None:
        """Append one line; it is with the kernel when this returns, so it outlives a SIGKILL. Raises OSError where
        there is no room; the ledger is then as it was."""
        self._append([entry])

    def _append(self, entries: Sequence[Entry]) -> None:
        before = os.fstat(self._file).st_size
        try:
            _write(self._file, entries)
        except OSError as error:
            os.ftruncate(self._file, before)  # half a line would hide what comes after it
            raise OSError(error.errno, error.strerror, str(self._path)) from None
        self._entries += entries

    def entries(self, kind: str) -> list[Entry]:
        """What has been listed of a kind ("namespace", "process", "sysctl", "directory"), oldest first."""
        return [entry for entry in self._entries if entry["kind"] == kind]

    def namespaces(self, names: Sequence[str]) -> None:
        """Announce namespaces, then make them. Raises LedgerError when one exists already (it is someone else's)."""
        for name in names:
            if not name.startswith(self.prefix):
                raise LedgerError(f"namespace {name}: a name of this run starts with {self.prefix}")
            if (NETNS_DIR / name).exists():
                raise LedgerError(f"namespace {name} exists already and is not ours to use")
        self._append([{"kind": "namespace", "name": name} for name in names])
        batch("ip", "".join(f"netns add {name}\n" for name in names), where="the root namespace", tied=True)
        self._append([{"kind": "namespace", "name": name, "inode": (NETNS_DIR / name).stat().st_ino} for name in names])

    def remove_namespaces(self, names: Sequence[str]) -> None:
        """Remove those of `names` that this ledger lists and that are there; what cannot be removed is tried again by
        `remove` and `close`, which say so."""
        _, left = remove_namespaces([entry for entry in self.entries("namespace") if entry["name"] in names])
        self._append([each.entry for each in left if each.entry["kind"] == "holder"])

    def process(self, pid: int) -> None:
        """Record a process just started. It should have PR_SET_PDEATHSIG, which covers the moment before this call."""
        self.write(kind="process", pid=pid, start_ticks=start_ticks(pid))

    def sysctl(self, name: str, value: str) -> None:
        """Record a global sysctl's value, then set it."""
        path = sysctl_path(name)
        self.setting(path, path.read_text().strip())
        path.write_text(value)

    def setting(self, path: Path, before: str) -> None:
        """Record that a global setting of the kernel is about to change from `before`."""
        self.write(kind="sysctl", path=str(path), before=before)

    def subdirectory(self, name: str) -> Path:
        """Make and return a directory of the run."""
        path = self.directory / name
        self.write(kind="directory", path=str(path))
        path.mkdir()
        return path

    def remove(self) -> list[str]:
        """Remove everything listed so far and keep the ledger open: a run's fabrics follow each other. Returns what
        was removed; what could not be is listed still, and tried again by `close`."""
        return self._remove()[0]

    def _remove(self) -> tuple[list[str], list[Left]]:
        removed, left = remove(self._entries, self.directory)
        # What is gone must not be looked for again: its names may be in use by the next fabric of this run.
        os.ftruncate(self._file, self._first_bytes)
        self._entries = [each.entry for each in left]
        with contextlib.suppress(OSError):  # without room for it, it is remembered here
            _write(self._file, self._entries)
        return removed, left

    def close(self, during: BaseException | None = None) -> list[str]:
        """Remove everything, then the ledger and its directory, then give the lock back. Returns what was removed;
        may be called again. during: what ends the run, if anything does.

        Raises LeftBehind where something is still there that was looked up afterwards.
        """
        if not self._open:
            return []
        self._open = False
        try:
            removed, left = self._remove()
            if not left:
                left = _remove_directory(self.directory)
        finally:
            os.close(self._file)
            run_lock.give_back(self._lock)
        if left:
            raise LeftBehind(removed, left, during)
        return removed

    def __enter__(self) -> RunLedger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)


@contextlib.contextmanager
def no_run(base: Path | None = None) -> Iterator[None]:
    """No run is alive inside the block, and none can begin. Raises AnotherRun while one is, and LedgerError."""
    base = base or BASE
    try:
        own_directory(base)
        with run_lock.held(base / "lock", ""):
            yield
    except OSError as error:
        raise LedgerError(f"cannot look for dead runs in {base}: {error.strerror}") from error


def dead_runs(base: Path | None = None) -> list[Path]:
    """Directories of runs that no process keeps the ledger of, oldest first. Empty when there are none. Raises
    LedgerError where they are somebody else's, whose locks cannot be seen."""
    base = base or BASE
    if not base.is_dir():
        return []
    own_directory(base)
    found = [path for path in base.iterdir() if path.is_dir() and not path.is_symlink() and not _is_alive(path)]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def clean(run_dir: Path) -> list[str]:
    """Remove exactly what a dead run's ledger lists, then the ledger. Returns a line for each thing removed; a
    second call finds nothing.

    Raises LedgerError when the run is alive, LeftBehind where something is still there afterwards.
    """
    if not run_dir.is_dir():
        return []
    if _is_alive(run_dir):
        raise LedgerError(f"run {run_dir.name} is alive: end it first, it removes what it made")
    entries = _read(run_dir)
    pids_are_ours = not entries or entries[0].get("among", _among()) == _among()
    removed, left = remove(entries, run_dir, pids_are_ours=pids_are_ours)
    left = left or _remove_directory(run_dir)
    if left:
        raise LeftBehind(removed, left, None)
    return [*removed, f"directory {run_dir}"]


def _begin(directory: Path, run_id: str, prefix: str) -> int:
    """The descriptor of a new ledger, locked. It has its name only once it is: a ledger without a lock is a dead run's.
    Raises OSError."""
    pid = os.getpid()
    first = {"kind": "run", "run_id": run_id, "prefix": prefix, "pid": pid, "start_ticks": start_ticks(pid)}
    new = directory / "ledger.new"
    file = os.open(new, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write(file, [first | {"among": _among()}])
        new.rename(directory / "ledger.jsonl")
    except OSError:
        os.close(file)
        raise
    return file


def _among() -> list[int]:
    """The namespaces in which a pid and a start time mean one process and no other."""
    return [
        os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("pid", "time") if os.path.exists(f"/proc/self/ns/{kind}")
    ]


def _write(file: int, entries: Sequence[Entry]) -> None:
    text = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
    while text:
        text = text[os.write(file, text) :]


def _free_prefix() -> str:
    taken = {name[:6] for name in os.listdir(NETNS_DIR)} if NETNS_DIR.exists() else set()
    while (prefix := f"hg{secrets.token_hex(2)}") in taken:
        pass
    return prefix


def _remove_directory(run_dir: Path) -> list[Left]:
    shutil.rmtree(run_dir, ignore_errors=True)
    if not run_dir.exists():
        return []
    return [
        Left({"kind": "directory", "path": str(run_dir)}, f"directory {run_dir} cannot be removed: see what holds it")
    ]


def _read(run_dir: Path) -> list[Entry]:
    """The entries of a ledger. The last line may be cut short by a kill: what it announced was not made."""
    entries: list[Entry] = []
    try:
        lines = (run_dir / "ledger.jsonl").read_text().splitlines()
    except FileNotFoundError:  # killed between the directory and its ledger: nothing else was made
        return []
    for line in lines:
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
    return entries


def _is_alive(run_dir: Path) -> bool:
    ledger, lock = run_dir / "ledger.jsonl", run_dir.parent / "lock"
    if ledger.exists():
        return run_lock.is_held(ledger)
    # No ledger yet: it is starting, or was killed while it did. The lock was taken before, and says by whom.
    return run_lock.is_held(lock) and run_lock.named(lock) == run_dir.name
