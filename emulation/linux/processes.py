"""Processes told apart from later ones that got the same pid: by their start time in clock ticks."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from emulation.linux.procfs import ProcessTimes, process_times

RCU_EXPEDITED = Path("/sys/kernel/rcu_expedited")
#: The shortest time between two looks at how much processes have run.
LOOK_S = 0.1


@contextlib.contextmanager
def quick_grace_periods(record: Callable[[Path, str], None] | None = None) -> Iterator[None]:
    """Let the kernel hurry its RCU grace periods inside the block, where it can.

    A user-space datapath holds a packet socket for each port, and closing one waits for a grace period: 1.7 s for
    128 ports, 0.02 s when hurried. record: called with (path, value before) before the setting changes.
    """
    try:
        before = RCU_EXPEDITED.read_text().strip()
        if before == "0":
            if record is not None:
                record(RCU_EXPEDITED, before)
            RCU_EXPEDITED.write_text("1")
    except OSError:  # not in this kernel, or /sys is read-only, as in some containers: slower, nothing else
        before = "1"
    try:
        yield
    finally:
        if before == "0":
            RCU_EXPEDITED.write_text(before)


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None when there is none, or only its zombie is left."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may hold anything, so count from the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_same_process(pid: int, ticks: int | None) -> bool:
    """Is `pid` still the process that started at `ticks`?"""
    return ticks is not None and start_ticks(pid) == ticks


class Stillness:
    """How long some processes have neither run nor waited for a core: what tells one that is stuck from one that is
    only slow to answer on a busy machine. pids: those that are meant, asked anew each time."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
        self._last: list[tuple[int, ProcessTimes | None]] = []
        self._moved_s = self._looked_s = time.monotonic()

    def seconds(self) -> float:
        """Since one of them was last seen to move. Ask a few times a second; asked more often, it does not look."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s, seen = now_s, [(pid, process_times(pid)) for pid in self._pids()]
            if seen != self._last:
                self._last, self._moved_s = seen, now_s
        return now_s - self._moved_s


def end_processes(
    processes: Sequence[tuple[int, int | None]],
    *,
    patience_s: float = 1.0,
    record: Callable[[Path, str], None] | None = None,
) -> list[int]:
    """End processes given as (pid, start ticks): SIGTERM, then SIGKILL to those left after `patience_s`. Returns the
    pids ended.

    A pid whose start time differs belongs to someone else and is left alone. Signals go through a pidfd, so a pid
    cannot change hands between the check and the signal. record: as in `quick_grace_periods`.
    """
    ended: dict[int, int] = {}
    for pid, ticks in processes:
        if ticks is None or pid == os.getpid():
            continue
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        if pid not in ended and is_same_process(pid, ticks):
            ended[pid] = descriptor
        else:
            os.close(descriptor)
    try:
        with quick_grace_periods(record):
            _signal_all(list(ended.values()), patience_s)
        for pid in ended:
            with contextlib.suppress(ChildProcessError):  # only our own children leave a zombie to us
                os.waitpid(pid, os.WNOHANG)
    finally:
        for descriptor in ended.values():
            os.close(descriptor)
    return list(ended)


def _signal_all(descriptors: Sequence[int], patience_s: float) -> None:
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
        left = [descriptor for descriptor in descriptors if not _has_ended(descriptor, 0)]
        for descriptor in left:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
        deadline_s = time.monotonic() + wait_s
        for descriptor in left:
            _has_ended(descriptor, max(0.0, deadline_s - time.monotonic()))


def _has_ended(descriptor: int, wait_s: float) -> bool:
    return bool(select.select([descriptor], [], [], wait_s)[0])
