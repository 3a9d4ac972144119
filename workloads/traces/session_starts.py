"""Arrivals of sessions whose trace has none: they start as a Poisson process, and keep their own times after that.

A window of a minute is shorter than a session of hours. So the window is a look at a process that has been running for
ever: sessions that started before it are in it with the calls they make then, at the rate of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from workloads.prefill import PrefillTiming
from workloads.seeds import stream
from workloads.traces.reading import TraceReading
from workloads.traces.trace import TraceError, TraceReport, TraceRow


@dataclass(frozen=True, slots=True)
class Corpus:
    """The work of a corpus of sessions: `work_s` is the prefill time of all its calls."""

    sessions: int
    calls: int
    work_s: float
    report: TraceReport


def corpus(reading: TraceReading, timing: PrefillTiming) -> Corpus:
    """One pass over the trace. Raises TraceError."""
    sessions, calls, work_s = 0, 0, 0.0
    for _, rows in groupby(reading, key=lambda row: row.session):
        sessions += 1
        for row in rows:
            calls += 1
            work_s += timing.duration_s(row.new_tokens, row.cached_tokens)
    return Corpus(sessions, calls, work_s, reading.report())


def session_rate_per_s(found: Corpus, load: float, instances: int) -> float:
    """Session starts per second that offer `load` on `instances`: load * instances / mean prefill time of a session."""
    return load * instances * found.sessions / found.work_s


def calls_in(
    open_reading: Callable[[], TraceReading],
    *,
    rate_per_s: float,
    sessions: int,
    span_s: float,
    speedup: float,
    seed: int,
    labels: tuple[str, ...],
) -> list[tuple[float, TraceRow]]:
    """The calls made in [0, span_s), sorted by time, of sessions that start at `rate_per_s` in all, each session of the
    corpus as often as any other.

    Think times are the trace's, divided by `speedup`. Each start is a session of its own (`name@0`, `name@1`, ...).
    """
    found: list[tuple[float, TraceRow]] = []
    each_per_s = rate_per_s / sessions
    for name, group in groupby(open_reading(), key=lambda row: row.session):
        rows = list(group)
        times_s = np.array([row.time_s for row in rows]) / speedup
        rng = stream(seed, *labels, "session starts", name)
        lasts_s = float(times_s.max())
        expected = each_per_s * (lasts_s + span_s)
        if expected > 1e6:
            raise TraceError(rows[0].session, None, f"{expected:.3g} starts of one session; lower load or window_s")
        starts_s = np.sort(rng.uniform(-lasts_s, span_s, size=rng.poisson(expected)))
        for number, start_s in enumerate(starts_s.tolist()):
            at_s = start_s + times_s
            for i in np.flatnonzero((at_s >= 0) & (at_s < span_s)).tolist():
                row = rows[i]
                session = f"{name}@{number}"
                renamed = TraceRow(row.time_s, row.new_tokens, row.cached_tokens, session, row.line, row.output_tokens)
                found.append((min(float(at_s[i]), math.nextafter(span_s, 0.0)), renamed))
    found.sort(key=lambda item: (item[0], item[1].session, item[1].line))
    return found
