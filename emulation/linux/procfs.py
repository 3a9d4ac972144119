"""What the kernel tells of cores, processes and memory: /proc, read and parsed here; no process is started for it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Of one core since boot, seconds: at work (interrupts included), idle (waiting for a disk included), and taken by
    the hypervisor."""

    busy_s: float
    idle_s: float
    steal_s: float


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """Of one process since its start, all threads, seconds: on a core, and ready to run but waiting for one."""

    run_s: float
    wait_s: float


def parse_cores(text: str) -> list[CoreTimes]:
    """Of /proc/stat, in the order of the cores."""
    cores = []
    for line in text.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, idle, iowait, irq, softirq, steal = (int(each) / TICKS_PER_S for each in fields[:8])
            cores.append(CoreTimes(user + nice + system + irq + softirq, idle + iowait, steal))
    return cores


def parse_schedstat(text: str) -> ProcessTimes:
    """Of /proc/PID/schedstat: nanoseconds on a core, nanoseconds on a run queue, number of turns."""
    run_ns, wait_ns, _ = text.split()
    return ProcessTimes(int(run_ns) / 1e9, int(wait_ns) / 1e9)


def parse_state(text: str) -> str:
    """The state letter of /proc/PID/stat; the name before it is in parentheses and may hold anything."""
    return text[text.rindex(")") + 2]


def parse_available_bytes(text: str) -> int:
    """Memory that can be had without swapping, from /proc/meminfo."""
    line = next(line for line in text.splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def cores() -> list[CoreTimes]:
    """Every core now."""
    return parse_cores((PROC / "stat").read_text())


def process_times(pid: int) -> ProcessTimes | None:
    """A process now; None when it is gone. Threads come and go: those that ended between two readings are missing."""
    run_s = wait_s = 0.0
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return None
    for thread in threads:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            times = parse_schedstat(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text())
            run_s, wait_s = run_s + times.run_s, wait_s + times.wait_s
    return ProcessTimes(run_s, wait_s)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or held by a debugger; False when it is gone."""
    try:
        return parse_state(Path(f"/proc/{pid}/stat").read_text()) in "Tt"
    except (FileNotFoundError, ProcessLookupError):
        return False


def available_bytes() -> int:
    """Memory that can be had now without swapping."""
    return parse_available_bytes((PROC / "meminfo").read_text())


def children(pid: int) -> list[int]:
    """Pids of a process's children, oldest first; none when it is gone."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def kernel_packet_threads() -> list[int]:
    """The kernel's own threads that carry packets when interrupts cannot keep up (ksoftirqd): work of ours."""
    found = []
    for path in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "comm").read_text().startswith("ksoftirqd/"):
                found.append(int(path.name))
    return found
