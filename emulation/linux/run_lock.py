"""The lock that a live run holds, and who holds it.

    /run/heliograph/        root's, 0755
    /run/heliograph/lock    root's, 0600; flocked by the live run, which is named in it

A run is alive while its lock is held, whatever pid or time namespace it was started in. Nobody but the owner can open
the file, so nobody else can hold it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil

#: Somebody who only looks whether the lock is held has it for a moment.
LOOK_S, AGAIN_S = 0.5, 0.02
LOCKS = Path("/proc/locks")
COMMAND_CHARACTERS = 160


class LedgerError(RuntimeError):
    """A ledger cannot be opened, read or cleaned: says which and why."""


class AnotherRun(LedgerError):
    """Another run is alive, or somebody else holds the lock. `run_id` ("" of somebody else) and `pid` (None where it
    cannot be found) say which."""

    def __init__(self, holder: Holder, lock: Path) -> None:
        remedy = "wait for it or end it; two runs would disturb each other"
        super().__init__(f"{holder.sentence()} holds {lock}: {remedy}")
        self.holder, self.run_id, self.pid = holder, holder.run_id, holder.pid


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, as far as it can be found. `since`: in words, UTC. `elsewhere`: in another pid namespace."""

    run_id: str
    pid: int | None
    command: str
    since: str
    elsewhere: bool = False

    def sentence(self) -> str:
        """The subject of a sentence: run, process, command, since when."""
        place = " of another pid namespace" if self.elsewhere else ""
        process = "a process that cannot be seen from here" if self.pid is None else f"process {self.pid}{place}"
        about = f"{process}{f': {self.command}' if self.command else ''}{f', since {self.since}' if self.since else ''}"
        return f"run {self.run_id} ({about})" if self.run_id else about


def own_directory(path: Path) -> None:
    """Make `path`, or see that it is ours alone to write in: what stands in it is believed, and removed by.

    0755 whatever the umask. Raises LedgerError where it is a link or somebody else can write there, and OSError.
    """
    try:
        path.mkdir(parents=True)
        path.chmod(0o755)
    except FileExistsError:
        pass
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise LedgerError(f"{path} is not a directory: remove it")
    if found.st_uid != os.geteuid():
        raise LedgerError(f"{path} belongs to user id {found.st_uid}, not to {os.geteuid()}: remove it")
    if found.st_mode & 0o022:
        raise LedgerError(
            f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}): what is in it cannot be "
            f"believed; see what it holds, then remove it or `chmod 755 {path}`"
        )


def take(path: Path, run_id: str) -> int:
    """The descriptor of the lock, held until it is closed; its directory is there. Raises AnotherRun, LedgerError where
    it is no plain file, and OSError."""
    descriptor = _open(path)
    try:
        _lock(descriptor, path)
        os.ftruncate(descriptor, 0)
        us = {"run_id": run_id, "pid": os.getpid(), "command": _words(sys.orig_argv), "since": _moment(time.time())}
        os.pwrite(descriptor, json.dumps(us).encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def give_back(descriptor: int) -> None:
    """Hold the lock no longer; what was said of its holder is true no more."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


@contextlib.contextmanager
def held(path: Path, name: str) -> Iterator[None]:
    """No run can begin inside the block. Raises what `take` raises."""
    descriptor = take(path, name)
    try:
        yield
    finally:
        give_back(descriptor)


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock of this file. Raises PermissionError where that cannot be seen."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def named(path: Path) -> str:
    """The run that the lock's file names; "" where it names none."""
    try:
        return str(json.loads(path.read_text())["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if path.is_symlink():
            raise LedgerError(f"{path} is a symbolic link, which no run of ours makes: remove it") from error
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise LedgerError(f"{path} is not a plain file of ours: remove it")
    os.fchmod(descriptor, 0o600)
    return descriptor


def _lock(descriptor: int, path: Path) -> None:
    until_s = time.monotonic() + LOOK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise AnotherRun(_holder(descriptor), path) from None
            time.sleep(AGAIN_S)


def _holder(descriptor: int) -> Holder:
    """What the live run wrote into its lock; the kernel knows better where that was not its holder."""
    try:
        said = json.loads(os.pread(descriptor, 4096, 0))
        named = Holder(str(said["run_id"]), int(said["pid"]), str(said["command"]), str(said["since"]))
    except (ValueError, KeyError, TypeError):  # between its flock and its write, or nothing of ours
        named = Holder("", None, "", "")
    pid = _locker(descriptor)
    if pid is None:
        return Holder(named.run_id, named.pid, named.command, named.since, elsewhere=named.pid is not None)
    if named.pid in _pids_of(pid):
        return Holder(named.run_id, pid, named.command, named.since)
    try:
        process = psutil.Process(pid)
        return Holder("", pid, _words(process.cmdline()), _moment(process.create_time()))
    except psutil.Error:
        return Holder("", pid, "", "")


def _locker(descriptor: int) -> int | None:
    """The process that flocked this file; None where it cannot be seen from our pid namespace."""
    file = os.fstat(descriptor)
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    with contextlib.suppress(OSError, ValueError):
        for line in LOCKS.read_text().splitlines():
            fields = line.split()
            if "FLOCK" in fields and "->" not in fields and place in fields and (pid := int(fields[4])) > 0:
                return pid
    return None


def _pids_of(pid: int) -> list[int]:
    """The pids of a process, in every pid namespace from ours down to its own."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(each) for each in line.split()[1:]]
    return [pid]


def _words(command: list[str]) -> str:
    """A command line as it could be typed, on one line, no longer than a line has room for."""
    text = "".join(character if character.isprintable() else "?" for character in shlex.join(command))
    return text if len(text) <= COMMAND_CHARACTERS else f"{text[:COMMAND_CHARACTERS]} [...]"


def _moment(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
