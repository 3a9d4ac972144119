"""Removing what a ledger lists, and looking whether it is gone.

Processes first (they hold the rest), then sysctls newest first, namespaces in one batch, directories. Nothing is ever
removed by name alone: a process must have the recorded start time, a namespace the recorded inode, a directory must lie
in the run's own. What is still there afterwards is said, each with what to do about it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulation.linux.netns import NETNS_DIR, NamespaceError, batch
from emulation.linux.processes import end_processes, is_same_process, start_ticks

Entry = dict[str, Any]
#: What a run's parents had started ends with them, but not in zero time.
ENDS_WITHIN_S, LOOK_S = 3.0, 0.05
CLEAN = "then `sudo ./heliograph clean`"


@dataclass(frozen=True, slots=True)
class Left:
    """The entry of something that is still there, and what is known of it, with the remedy."""

    entry: Entry
    why: str


def remove(entries: Sequence[Entry], run_dir: Path, *, pids_are_ours: bool = True) -> tuple[list[str], list[Left]]:
    """Remove what `entries` list; a line for each thing removed, and what is left.

    pids_are_ours: False where they were recorded in another pid or time namespace, in which the numbers mean other
    processes; those of the run ended with it.
    """

    def of(kind: str) -> list[Entry]:
        return [entry for entry in entries if entry["kind"] == kind]

    processes = of("process") if pids_are_ours else []
    ended = end_processes([(e["pid"], e["start_ticks"]) for e in processes])
    strays = _strays([e["pid"] for e in processes], run_dir)
    ended += end_processes([(e["pid"], e["start_ticks"]) for e in strays])
    removed = [f"process {pid}" for pid in ended]
    left = [each for entry in (*processes, *strays) for each in _process_left(entry)]
    for entry in reversed(of("sysctl")):
        path, before = Path(entry["path"]), entry["before"]
        if path.exists() and path.read_text().split() != before.split():
            try:
                path.write_text(before)
                removed.append(f"sysctl {path} back to {before}")
            except OSError as error:
                left.append(Left(entry, f"{path} is not {before} again ({error.strerror}): `echo {before} > {path}`"))
    lines, still = remove_namespaces(of("namespace"))
    removed, left = removed + lines, left + still
    if pids_are_ours:
        left += _holders(of("holder"))
    for entry in of("directory"):
        path = Path(entry["path"])
        if run_dir in path.parents and path.exists():
            shutil.rmtree(path, ignore_errors=True)
            if path.exists():
                left.append(Left(entry, f"directory {path} cannot be removed: see what is mounted there, {CLEAN}"))
            else:
                removed.append(f"directory {path}")
    return removed, left


def remove_namespaces(entries: Sequence[Entry]) -> tuple[list[str], list[Left]]:
    """Remove the namespaces that `entries` list and that are there; a line for each that is gone, and what is left.

    Links and bridges go with their namespace, but not while a process is in it: such a process is left too, as an entry
    of kind "holder".
    """
    listed = {entry["name"]: entry for entry in entries}  # the later entry of a name has the inode
    ours = {name: inode for name, entry in listed.items() if (inode := _inode(name, entry.get("inode"))) is not None}
    inside = _inside({inode: name for name, inode in ours.items()})
    said = ""
    try:
        batch("ip", "".join(f"netns del {name}\n" for name in ours), where="the root namespace", options="-force")
    except NamespaceError as error:
        said = f" ({error})"
    still = [name for name, inode in ours.items() if _inode(name, inode) is not None]
    left = [Left(listed[name], f"namespace {name} is still there{said}: `ip netns del {name}`") for name in still]
    return [f"namespace {name}" for name in ours if name not in still], left + _holders(inside)


def _inode(name: str, recorded: int | None) -> int | None:
    """Of a namespace that is there, where it is the one that was recorded. Without an inode the run was killed while
    making it: its random prefix was free a moment before."""
    try:
        found = (NETNS_DIR / name).stat().st_ino
    except FileNotFoundError:
        return None
    return found if recorded is None or found == recorded else None


def _strays(sessions: Sequence[int], run_dir: Path) -> list[Entry]:
    """What the processes of a run had started themselves and what outlived them: the kernel ends it with them, but not
    what was stopped in its first moment. It is of a listed process's session, and says its errors into the run's own
    directory."""
    found: list[Entry] = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc")) if sessions else ()):
        with contextlib.suppress(OSError):
            ours = os.getsid(pid) in sessions and os.readlink(f"/proc/{pid}/fd/2").startswith(f"{run_dir}/")
            if ours and pid not in sessions and (ticks := start_ticks(pid)) is not None:
                found.append({"kind": "process", "pid": pid, "start_ticks": ticks})
    return found


def _process_left(entry: Entry) -> list[Left]:
    pid = entry["pid"]
    if pid == os.getpid() or not is_same_process(pid, entry["start_ticks"]):
        return []
    return [
        Left(entry, f"process {pid} ({_name(pid)}) does not end: the kernel holds it, see /proc/{pid}/stack; {CLEAN}")
    ]


def _inside(names: Mapping[int, str]) -> list[Entry]:
    """A "holder" for every process in one of these network namespaces (inode -> name)."""
    found: list[Entry] = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc")) if names else ()):
        if (inode := _network_of(pid)) in names and (ticks := start_ticks(pid)) is not None:
            holder = {"kind": "holder", "pid": pid, "start_ticks": ticks, "inode": inode, "namespace": names[inode]}
            found.append(holder)
    return found


def _network_of(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # it has ended
        return 0


def _holders(entries: Iterable[Entry]) -> list[Left]:
    """Those that are still in their namespace once whoever is about to end has had the time to."""
    until_s = time.monotonic() + ENDS_WITHIN_S
    while True:
        entries = [
            e for e in entries if is_same_process(e["pid"], e["start_ticks"]) and _network_of(e["pid"]) == e["inode"]
        ]
        if not entries or time.monotonic() > until_s:
            break
        time.sleep(LOOK_S)
    return [
        Left(
            entry,
            f"namespace {entry['namespace']} and its links live on in process {entry['pid']} ({_name(entry['pid'])}): "
            f"end it, {CLEAN}",
        )
        for entry in entries
    ]


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return "".join(c if c.isprintable() else "?" for c in Path(f"/proc/{pid}/comm").read_text().rstrip("\n"))
    return "gone"
