"""What the machine did while a run was on, sampled at low cost: cores, steal, memory, and the processes of the run."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from types import TracebackType

import psutil

SAMPLE_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Over the samples: the busiest core's mean and the mean of all cores, in percent; steal in percent; memory in
    bytes; CPU of named processes in percent of one core."""

    samples: int
    busiest_core_percent: float
    all_cores_percent: float
    p95_all_cores_percent: float
    steal_percent: float
    least_available_memory_bytes: int
    process_percent: dict[str, float] = field(default_factory=dict)


class MachineWatch:
    """A context manager that samples in a thread of its own until it is left; `use()` then tells."""

    def __init__(self, processes: dict[str, int]) -> None:
        """`processes`: a name for each pid to follow (a pid that is gone counts as 0 %)."""
        self._processes: dict[str, psutil.Process] = {}
        for name, pid in processes.items():
            try:
                self._processes[name] = psutil.Process(pid)
            except psutil.NoSuchProcess:
                continue
        self._cores: list[list[float]] = []
        self._steal: list[float] = []
        self._memory: list[int] = []
        self._shares: dict[str, list[float]] = {name: [] for name in self._processes}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="machine-watch", daemon=True)

    def __enter__(self) -> MachineWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(2.0)

    def use(self) -> MachineUse | None:
        """The figures; None when the run was over before the first sample."""
        if not self._cores:
            return None
        means = [sum(core) / len(core) for core in zip(*self._cores, strict=True)]
        totals = sorted(sum(sample) / len(sample) for sample in self._cores)
        return MachineUse(
            samples=len(self._cores),
            busiest_core_percent=max(means),
            all_cores_percent=sum(totals) / len(totals),
            p95_all_cores_percent=totals[math.ceil(0.95 * len(totals)) - 1],
            steal_percent=sum(self._steal) / len(self._steal),
            least_available_memory_bytes=min(self._memory),
            process_percent={name: sum(shares) / len(shares) for name, shares in self._shares.items() if shares},
        )

    def _sample(self) -> None:
        psutil.cpu_percent(percpu=True)
        before = psutil.cpu_times()
        for process in self._processes.values():
            self._share(process)
        while not self._stop.wait(SAMPLE_EVERY_S):
            self._cores.append(psutil.cpu_percent(percpu=True))
            now = psutil.cpu_times()
            elapsed_s = sum(now) - sum(before)
            self._steal.append(100 * (getattr(now, "steal", 0.0) - getattr(before, "steal", 0.0)) / (elapsed_s or 1.0))
            before = now
            self._memory.append(psutil.virtual_memory().available)
            for name, process in self._processes.items():
                self._shares[name].append(self._share(process))

    @staticmethod
    def _share(process: psutil.Process) -> float:
        try:
            return float(process.cpu_percent())
        except psutil.Error:
            return 0.0
