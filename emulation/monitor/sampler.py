"""One thread that looks at the machine, the queues and the rules while a run is on, and knows what that costs.

Each watch has its own period, and looks less often where a look takes long. The thread runs at a raised nice value, so
that it sees a hog instead of starving behind it, but below the agents, which run in real time: it never delays a packet
or a timer for longer than a system call.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

NICE = -10
#: A watch that takes long looks less often: none takes more than this share of a core.
MOST_SHARE = 0.01


class Watch(Protocol):
    """Something that is looked at again and again."""

    period_s: float

    def sample(self, now_s: float) -> None:
        """Look once; `now_s` is CLOCK_MONOTONIC. Whatever it raises ends this watch and is noted."""


@dataclass(frozen=True, slots=True)
class SamplerCost:
    """`cpu_percent`: of one core; `longest_gap_s`: between two looks, against the shortest period: what happened in it
    was not seen; `failures`: watches that ended early, in words."""

    cpu_percent: float
    longest_gap_s: float
    failures: tuple[str, ...] = ()


class Sampler:
    """A context manager: looks from when it is entered until it is left; `cost()` tells what that took."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = list(watches)
        self._stop = threading.Event()
        self._failures: list[str] = []
        self._cpu_s = self._longest_gap_s = 0.0
        self._began_s = self._ended_s = 0.0
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(5.0)
        self._ended_s = time.monotonic()

    def cost(self) -> SamplerCost:
        """Once it was left."""
        elapsed_s = max(self._ended_s - self._began_s, 1e-9)
        return SamplerCost(100 * self._cpu_s / elapsed_s, self._longest_gap_s, tuple(self._failures))

    def _run(self) -> None:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        began_cpu_s = time.thread_time()
        due_s = dict.fromkeys(self._watches, 0.0)
        last_s = time.monotonic()
        while due_s:
            now_s = time.monotonic()
            self._longest_gap_s, last_s = max(self._longest_gap_s, now_s - last_s), now_s
            for watch in [watch for watch, at_s in due_s.items() if at_s <= now_s]:
                spent_s = -time.thread_time()
                self._look(watch, due_s)
                spent_s += time.thread_time()
                if watch in due_s:
                    due_s[watch] = now_s + max(watch.period_s, spent_s / MOST_SHARE)
            self._cpu_s = time.thread_time() - began_cpu_s
            if self._stop.wait(max(0.0, min(due_s.values(), default=0.0) - time.monotonic())):
                break
        for watch in list(due_s):  # what happened since the last look
            self._look(watch, due_s)
        self._cpu_s = time.thread_time() - began_cpu_s

    def _look(self, watch: Watch, due_s: dict[Watch, float]) -> None:
        try:
            watch.sample(time.monotonic())
        except Exception as error:  # a watch that fails must cost neither the run nor the other watches
            self._failures.append(f"{type(watch).__name__}: {error or type(error).__name__}")
            del due_s[watch]
