"""What a run made, written down before it is made, so that it can be removed by anyone afterwards.

    /run/heliograph/lock                 flocked by the live run
    /run/heliograph/<run id>/ledger.jsonl

One JSON line for each thing: `{"kind": "run", ...}` first, then `namespace`, `process`, `sysctl` and `directory`
lines. A live run's own teardown and `clean` of a dead run are the same code. Nothing is ever removed by name alone:
a process must have the recorded start time, a namespace the recorded inode, a directory must lie in the run's own.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from emulation.linux.netns import NETNS_DIR, batch, sysctl_path
from emulation.linux.processes import end_processes, is_same_process, start_ticks

#: Where runs keep their ledgers, read at each call: the drills give every lane of theirs a place of its own.
BASE = Path("/run/heliograph")
Entry = dict[str, Any]


class LedgerError(RuntimeError):
    """A ledger cannot be opened, read or cleaned: says which and why."""


class AnotherRun(LedgerError):
    """Another run is alive. `run_id` and `pid` say which."""

    def __init__(self, run_id: str, pid: int, lock: Path) -> None:
        super().__init__(
            f"run {run_id} (process {pid}) holds {lock}: wait for it or end it; two runs would disturb each other"
        )
        self.run_id, self.pid = run_id, pid


class RunLedger:
    """The ledger of the live run. Open it with `RunLedger.open`; leave it with `close` (or as a context manager).

    run_id names the directory; `prefix` ("hg" and 4 hex digits) starts the name of every namespace of the run.
    """

    def __init__(self, run_id: str, directory: Path, prefix: str, lock: int) -> None:
        self.run_id, self.directory, self.prefix = run_id, directory, prefix
        self._lock = lock
        self._path = directory / "ledger.jsonl"
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._first_bytes = os.fstat(self._file).st_size
        self._open = True

    @classmethod
    def open(cls, run_id: str, *, base: Path | None = None) -> RunLedger:
        """Take the lock and start a ledger. Raises AnotherRun while another run is alive, LedgerError on a bad or
        used run id and where there is no room for it."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", run_id):
            raise LedgerError(f"run id {run_id!r}: give up to 64 letters, digits, dots, dashes and underscores")
        base = base or BASE
        try:
            base.mkdir(parents=True, exist_ok=True)
            lock = _take_lock(base / "lock", run_id)
        except OSError as error:
            raise LedgerError(f"cannot keep a ledger in {base}: {error.strerror}") from error
        directory = base / run_id
        try:
            directory.mkdir(mode=0o755)
        except FileExistsError as error:
            os.close(lock)
            raise LedgerError(
                f"{directory} exists: a run of that name was here; `heliograph clean` removes it"
            ) from error
        except OSError as error:
            os.close(lock)
            raise LedgerError(f"cannot keep a ledger in {base}: {error.strerror}") from error
        pid, prefix = os.getpid(), _free_prefix()
        first = {"kind": "run", "run_id": run_id, "prefix": prefix, "pid": pid, "start_ticks": start_ticks(pid)}
        try:
            # under its name only once it says whose it is: a ledger without a living process is a dead run's
            (directory / "ledger.new").write_text(json.dumps(first) + "\n")
            (directory / "ledger.new").rename(directory / "ledger.jsonl")
            return cls(run_id, directory, prefix, lock)
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)
            raise LedgerError(f"cannot keep a ledger in {base}: {error.strerror}; make room there") from error

    def write(self, **entry: Any) -> None:
        """Append one line; it is with the kernel when this returns, so it outlives a SIGKILL. Raises OSError where
        there is no room; the ledger is then as it was."""
        self._append([entry])

    def _append(self, entries: Iterable[Entry]) -> None:
        text = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        before = os.fstat(self._file).st_size
        written = 0
        try:
            while written < len(text):
                written += os.write(self._file, text[written:])
        except OSError as error:
            os.ftruncate(self._file, before)  # half a line would hide what comes after it
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def entries(self, kind: str) -> list[Entry]:
        """What has been listed of a kind ("namespace", "process", "sysctl", "directory"), oldest first."""
        return [entry for entry in _read(self.directory) if entry["kind"] == kind]

    def namespaces(self, names: Sequence[str]) -> None:
        """Announce namespaces, then make them. Raises LedgerError when one exists already (it is someone else's)."""
        for name in names:
            if not name.startswith(self.prefix):
                raise LedgerError(f"namespace {name}: a name of this run starts with {self.prefix}")
            if (NETNS_DIR / name).exists():
                raise LedgerError(f"namespace {name} exists already and is not ours to use")
        self._append({"kind": "namespace", "name": name} for name in names)
        batch("ip", "".join(f"netns add {name}\n" for name in names), where="the root namespace", tied=True)
        self._append({"kind": "namespace", "name": name, "inode": (NETNS_DIR / name).stat().st_ino} for name in names)

    def remove_namespaces(self, names: Sequence[str]) -> None:
        """Remove those of `names` that this ledger lists and that are there."""
        listed = {entry["name"]: entry.get("inode") for entry in self.entries("namespace")}
        _remove_namespaces({name: listed[name] for name in names if name in listed})

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
        was removed."""
        removed = _remove(_read(self.directory), self.directory)
        # What is gone must not be looked for again: its names may be in use by the next fabric of this run.
        os.ftruncate(self._file, self._first_bytes)
        return removed

    def close(self) -> list[str]:
        """Remove everything, then the ledger and its directory, then give the lock back. Returns what was removed;
        may be called again."""
        if not self._open:
            return []
        removed = _remove(_read(self.directory), self.directory)
        self._open = False
        os.close(self._file)
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)
        return removed

    def __enter__(self) -> RunLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _take_lock(path: Path, run_id: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            holder = json.loads(os.pread(descriptor, 4096, 0))
        except ValueError:  # between its flock and its write
            holder = {"run_id": "(starting)", "pid": 0}
        os.close(descriptor)
        raise AnotherRun(holder["run_id"], holder["pid"], path) from None
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"run_id": run_id, "pid": os.getpid()}).encode(), 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _free_prefix() -> str:
    taken = {name[:6] for name in os.listdir(NETNS_DIR)} if NETNS_DIR.exists() else set()
    while (prefix := f"hg{secrets.token_hex(2)}") in taken:
        pass
    return prefix


def dead_runs(base: Path | None = None) -> list[Path]:
    """Directories of runs whose process is gone, oldest first. Empty when there are none."""
    base = base or BASE
    if not base.is_dir():
        return []
    found = [path for path in base.iterdir() if path.is_dir() and not _is_alive(path)]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def clean(run_dir: Path) -> list[str]:
    """Remove exactly what a dead run's ledger lists, then the ledger. Returns a line for each thing removed; a
    second call finds nothing.

    Raises LedgerError when the run is alive.
    """
    if not run_dir.is_dir():
        return []
    if _is_alive(run_dir):
        raise LedgerError(f"run {run_dir.name} is alive: end it first, it removes what it made")
    removed = _remove(_read(run_dir), run_dir)
    shutil.rmtree(run_dir, ignore_errors=True)
    return [*removed, f"directory {run_dir}"]


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
    entries = _read(run_dir)
    if entries:
        return is_same_process(entries[0]["pid"], entries[0]["start_ticks"])
    # No line yet: it is starting, or was killed while it did. The lock was taken before, and says by whom.
    try:
        holder = json.loads((run_dir.parent / "lock").read_text())
        return bool(holder["run_id"] == run_dir.name and start_ticks(holder["pid"]) is not None)
    except (OSError, ValueError, KeyError):
        return False


def _remove(entries: Sequence[Entry], run_dir: Path) -> list[str]:
    """Processes first (they hold the rest), then sysctls newest first, namespaces in one batch, directories."""

    def of(kind: str) -> Iterable[Entry]:
        return (entry for entry in entries if entry["kind"] == kind)

    removed = [
        f"process {pid}" for pid in end_processes([(entry["pid"], entry["start_ticks"]) for entry in of("process")])
    ]
    for entry in reversed(list(of("sysctl"))):
        path = Path(entry["path"])
        if path.exists() and path.read_text().split() != entry["before"].split():
            path.write_text(entry["before"])
            removed.append(f"sysctl {path} back to {entry['before']}")
    removed += _remove_namespaces({entry["name"]: entry.get("inode") for entry in of("namespace")})
    for entry in of("directory"):
        path = Path(entry["path"])
        if run_dir in path.parents and path.exists():
            shutil.rmtree(path, ignore_errors=True)
            removed.append(f"directory {path}")
    return removed


def _remove_namespaces(inodes: dict[str, int | None]) -> list[str]:
    ours = []
    for name, inode in inodes.items():
        try:
            found = (NETNS_DIR / name).stat().st_ino
        except FileNotFoundError:
            continue
        # Without an inode the run was killed while making it: its random prefix was free a moment before.
        if inode is None or found == inode:
            ours.append(name)
    batch("ip", "".join(f"netns del {name}\n" for name in ours), where="the root namespace")
    return [f"namespace {name}" for name in ours]
