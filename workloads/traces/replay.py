"""Replay of a slice of a trace at a tenant's load: one factor scales its time axis, nothing else changes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

import numpy as np

from workloads.prefill import PrefillTiming
from workloads.traces.trace import Trace, TraceError, TraceRow


@dataclass(frozen=True, slots=True)
class Replay:
    """Rows with their run-clock arrivals, sorted: warm-up rows in [0, warmup_s), measured ones in [warmup_s, warmup_s
    + window_s).

    `time_factor` is run time / trace time (below 1 replays faster than recorded); the measured window starts
    `offset_s` into the trace and covers `covered_s` of it.
    """

    warmup: list[tuple[float, TraceRow]] = field(repr=False)
    measured: list[tuple[float, TraceRow]] = field(repr=False)
    time_factor: float
    offset_s: float
    covered_s: float


def spread_ties(rows: Sequence[TraceRow], tick_s: float, rng: np.random.Generator) -> list[float]:
    """Times in which rows that share a time are spread uniformly from it to the next distinct time (at most one tick).

    A trace recorded on a coarse grid would otherwise replay as a burst at each tick, an incast the service never saw.
    Rows keep their order; rows with a time of their own keep it.
    """
    groups = [(time_s, len(list(group))) for time_s, group in groupby(rows, key=lambda row: row.time_s)]
    times_s: list[float] = []
    for i, (time_s, count) in enumerate(groups):
        if count == 1:
            times_s.append(time_s)
            continue
        gap_s = min(groups[i + 1][0] - time_s, tick_s) if i + 1 < len(groups) else tick_s
        times_s.extend(float(time_s + gap_s * share) for share in np.sort(rng.random(count)))
    return times_s


def replay(
    trace: Trace,
    times_s: Sequence[float],
    *,
    load: float | None,
    instances: int,
    timing: PrefillTiming,
    window_s: float,
    warmup_s: float,
    offset_s: float | None = None,
) -> Replay:
    """Cut and scale a trace so that the prefill time of its measured rows is load * window_s * instances.

    The factor follows from the trace alone: from the offset on, rows are taken until their prefill time is nearest to
    that target, and the part of the trace they cover becomes the window. The utilisation is met to within half a
    request. Without a `load` the factor is 1. The warm-up replays the rows before the offset; where no offset is
    given it is the earliest row that leaves room for the warm-up. Raises TraceError where the trace is too short.
    """
    path = trace.report.path
    durations_s = [timing.duration_s(row.new_tokens, row.cached_tokens) for row in trace.rows]
    work_s = [0.0, *accumulate(durations_s)]
    starts = range(len(times_s)) if offset_s is None else [bisect_left(times_s, offset_s)]
    end_s = times_s[-1] + trace.report.tick_s
    longest_s = 0.0
    for first in starts:
        if first >= len(times_s):
            break
        start_s = times_s[first] if offset_s is None else offset_s
        if load is None:
            covered_s, last = window_s, bisect_left(times_s, start_s + window_s)
            enough = start_s + window_s <= end_s
        else:
            target_s = load * window_s * instances
            last = _nearest(work_s, work_s[first] + target_s, first + 1)
            enough = work_s[-1] - work_s[first] >= target_s
            covered_s = (times_s[last] if last < len(times_s) else end_s) - start_s
        longest_s = max(longest_s, work_s[-1] - work_s[first])
        if not enough:
            break
        # Rows that share one time cannot be stretched into a window.
        if covered_s <= 0:
            continue
        time_factor = window_s / covered_s
        if start_s - times_s[0] < warmup_s / time_factor:
            if offset_s is None:
                continue
            raise TraceError(
                path,
                None,
                f"offset_s {offset_s:g} leaves {start_s - times_s[0]:g} s of the trace for the warm-up, which takes "
                f"{warmup_s / time_factor:.3g} s of it; raise offset_s or lower warmup_s",
            )
        before = bisect_left(times_s, start_s - warmup_s / time_factor)

        def run_s(time_s: float, start_s: float = start_s, time_factor: float = time_factor) -> float:
            return max(0.0, warmup_s + (time_s - start_s) * time_factor)

        # Rounding must not carry a row over the edge that the slice just drew.
        edge_s = math.nextafter(warmup_s, 0.0)
        return Replay(
            warmup=[(min(run_s(times_s[i]), edge_s), trace.rows[i]) for i in range(before, first)],
            measured=[(max(run_s(times_s[i]), warmup_s), trace.rows[i]) for i in range(first, last)],
            time_factor=time_factor,
            offset_s=start_s,
            covered_s=covered_s,
        )
    where = "after the warm-up" if offset_s is None else f"after offset_s {offset_s:g}"
    if load is None:
        raise TraceError(
            path,
            None,
            f"the trace is {end_s:.3g} s long and holds no window of {window_s:g} s {where} at its own rate; "
            "lower window_s, warmup_s or offset_s, or give a load",
        )
    raise TraceError(
        path,
        None,
        f"the trace holds {longest_s:.3g} s of prefill {where}, and load {load:g} on {instances} instances over "
        f"{window_s:g} s takes {load * window_s * instances:.3g} s; lower load, window_s or offset_s",
    )


def _nearest(work_s: Sequence[float], target_s: float, low: int) -> int:
    """The index from `low` on whose cumulated work is nearest to `target_s`."""
    i = max(bisect_left(work_s, target_s), low)
    if i >= len(work_s):
        return len(work_s) - 1
    return i - 1 if i > low and target_s - work_s[i - 1] < work_s[i] - target_s else i
