"""What the machine and the run's own processes did while a run was on: cores, foreign CPU, steal, memory, waiting for a
core, and processes that were stopped.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from emulation.linux import procfs
from emulation.linux.cpu_quota import Quota, quotas, since

FULL_PERCENT = 98.0


@dataclass(frozen=True, slots=True)
class Stop:
    """A process that was seen stopped; `seconds` is exact to two periods of the watch. `at_s`: CLOCK_MONOTONIC."""

    name: str
    at_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Over the samples, in percent of the whole machine unless said otherwise.

    `cores_percent`: mean of each core; `full_core_percent`: share of the samples in which some core was full;
    `foreign_percent`, `p95_foreign_percent`: CPU of processes that are not the run's; `process_percent`: CPU of a group
    of processes in percent of one core; `waiting_percent`: share of the time in which the worst process of a group was
    ready to run and had no core; `stops`: processes that were stopped; `throttled`: the CPU quota that was used up for
    longest, None where none was.
    """

    samples: int
    cores_percent: Sequence[float]
    all_cores_percent: float
    p95_all_cores_percent: float
    full_core_percent: float
    steal_percent: float
    foreign_percent: float
    p95_foreign_percent: float
    least_available_memory_bytes: int
    process_percent: dict[str, float] = field(default_factory=dict)
    waiting_percent: dict[str, float] = field(default_factory=dict)
    stops: Sequence[Stop] = ()
    throttled: Quota | None = None

    @property
    def busiest_core_percent(self) -> float:
        """Mean of the busiest core."""
        return max(self.cores_percent)


@dataclass(frozen=True, slots=True)
class _Reading:
    at_s: float
    cores: list[procfs.CoreTimes]
    processes: dict[int, procfs.ProcessTimes]


class MachineWatch:
    """Reads cores, processes and memory each `period_s`. groups: name -> {process name: pid} of the run's own."""

    period_s = 0.5

    def __init__(self, groups: Mapping[str, Mapping[str, int]]) -> None:
        self._groups = {group: dict(pids) for group, pids in groups.items()}
        own = {pid for pids in self._groups.values() for pid in pids.values()}
        self._own = sorted(own | {os.getpid(), *procfs.kernel_packet_threads()})
        self._before: _Reading | None = None
        self._busy: list[list[float]] = []
        self._steal: list[float] = []
        self._foreign: list[float] = []
        self._memory: list[int] = []
        self._first: _Reading | None = None
        self._quotas_before: list[Quota] = []
        self._quotas: list[Quota] = []

    def sample(self, now_s: float) -> None:
        """Read everything once."""
        processes = {pid: times for pid in self._own if (times := procfs.process_times(pid)) is not None}
        reading = _Reading(now_s, procfs.cores(), processes)
        before, self._before = self._before, reading
        self._memory.append(procfs.available_bytes())
        self._quotas = quotas()
        if before is None:
            self._first, self._quotas_before = reading, self._quotas
            return
        spans = list(zip(before.cores, reading.cores, strict=False))
        totals = [
            (now.busy_s + now.idle_s + now.steal_s) - (then.busy_s + then.idle_s + then.steal_s) for then, now in spans
        ]
        if not all(total > 0 for total in totals):  # less than a tick has passed
            return
        busy_s = [now.busy_s - then.busy_s for then, now in spans]
        self._busy.append([100 * each / total for each, total in zip(busy_s, totals, strict=True)])
        self._steal.append(100 * sum(now.steal_s - then.steal_s for then, now in spans) / sum(totals))
        ours_s = sum(
            times.run_s - before.processes[pid].run_s for pid, times in processes.items() if pid in before.processes
        )
        # ticks and nanoseconds disagree by a tick or two
        self._foreign.append(max(0.0, 100 * (sum(busy_s) - ours_s) / sum(totals)))

    def use(self, stops: Iterable[Stop] = ()) -> MachineUse | None:
        """The figures; None when the run was over before the second sample."""
        if not self._busy or self._first is None or self._before is None:
            return None
        totals = [sum(sample) / len(sample) for sample in self._busy]
        full = sum(max(sample) >= FULL_PERCENT for sample in self._busy)
        return MachineUse(
            samples=len(self._busy),
            cores_percent=[sum(core) / len(core) for core in zip(*self._busy, strict=True)],
            all_cores_percent=sum(totals) / len(totals),
            p95_all_cores_percent=nearest_rank(totals, 0.95),
            full_core_percent=100 * full / len(self._busy),
            steal_percent=sum(self._steal) / len(self._steal),
            foreign_percent=sum(self._foreign) / len(self._foreign),
            p95_foreign_percent=nearest_rank(self._foreign, 0.95),
            least_available_memory_bytes=min(self._memory),
            process_percent={group: sum(shares) for group, shares in self._shares("run_s").items()},
            waiting_percent={group: max(shares) for group, shares in self._shares("wait_s").items()},
            stops=tuple(stops),
            throttled=since(self._quotas_before, self._quotas),
        )

    def _shares(self, which: str) -> dict[str, list[float]]:
        """For each group, each process's part of the time between the first and the last reading, in percent."""
        assert self._first is not None
        assert self._before is not None
        first, last = self._first.processes, self._before.processes
        elapsed_s = self._before.at_s - self._first.at_s
        found: dict[str, list[float]] = {}
        for group, pids in self._groups.items():
            there = [pid for pid in pids.values() if pid in first and pid in last]
            if there and elapsed_s > 0:
                found[group] = [
                    100 * (getattr(last[pid], which) - getattr(first[pid], which)) / elapsed_s for pid in there
                ]
        return found


class StoppedProcesses:
    """Sees processes that a signal has stopped, if for longer than `period_s`. processes: name -> pid."""

    period_s = 0.1

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = dict(processes)
        self._since_s: dict[str, float] = {}
        self._stops: list[Stop] = []

    def sample(self, now_s: float) -> None:
        """Look at every process once."""
        for name, pid in self._processes.items():
            if procfs.is_stopped(pid):
                self._since_s.setdefault(name, now_s)
            elif name in self._since_s:
                since_s = self._since_s.pop(name)
                self._stops.append(Stop(name, since_s, now_s - since_s))
        self._last_s = now_s

    def stops(self) -> list[Stop]:
        """Every stop seen; one that lasts counts up to the last look."""
        return [*self._stops, *(Stop(name, at_s, self._last_s - at_s) for name, at_s in self._since_s.items())]


def nearest_rank(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of them do not exceed."""
    return sorted(samples)[math.ceil(share * len(samples)) - 1]
