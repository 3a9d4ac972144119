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
    speedup: float = 1.0,
) -> Replay:
    """Cut and scale a trace so that the prefill time of its measured rows is load * window_s * instances.

    The factor follows from the trace alone: from the offset on, rows are taken until their prefill time is nearest to
    that target, and the part of the trace they cover becomes the window. The utilisation is met to within half a
    request. Without a `load` the factor is 1 / `speedup`. The warm-up replays the rows before the offset; where no
    offset is given it is the earliest row that leaves room for the warm-up. Raises TraceError where the trace is too
    short.
    """
    durations_s = [timing.duration_s(row.new_tokens, row.cached_tokens) for row in trace.rows]
    work_s = [0.0, *accumulate(durations_s)]
    target_s = None if load is None else load * window_s * instances
    end_s = times_s[-1] + trace.report.gap_s
    # Without an offset, try the rows in turn until the warm-up fits before one.
    firsts = range(len(times_s)) if offset_s is None else (bisect_left(times_s, offset_s),)
    for first in firsts:
        start_s = times_s[first] if offset_s is None else offset_s
        if target_s is None:
            covered_s = window_s * speedup
            last, enough = bisect_left(times_s, start_s + covered_s), start_s + covered_s <= end_s
        else:
            enough = work_s[-1] - work_s[first] >= target_s
            last = _nearest(work_s, work_s[first] + target_s, first + 1) if enough else first
            covered_s = (times_s[last] if last < len(times_s) else end_s) - start_s
        if not enough:
            where = "after the warm-up" if offset_s is None else f"after offset_s {offset_s:g}"
            raise _too_short(trace, where, work_s[-1] - work_s[first], end_s, target_s, window_s * speedup)
        # Rows that share one time cannot be stretched into a window.
        if covered_s > 0 and start_s - times_s[0] >= warmup_s * covered_s / window_s:
            return _scaled(trace, times_s, first, last, start_s, covered_s, window_s=window_s, warmup_s=warmup_s)
        if offset_s is not None:
            raise TraceError(
                trace.report.path,
                None,
                f"offset_s {offset_s:g} leaves {max(0.0, start_s - times_s[0]):g} s of the trace for the warm-up, "
                f"which takes {warmup_s * covered_s / window_s:.3g} s of it; raise offset_s or lower warmup_s",
            )
    raise _too_short(trace, "after the warm-up", 0.0, end_s, target_s, window_s * speedup)


def _scaled(
    trace: Trace,
    times_s: Sequence[float],
    first: int,
    last: int,
    start_s: float,
    covered_s: float,
    *,
    window_s: float,
    warmup_s: float,
) -> Replay:
    """The replay of rows first..last - 1, whose window is [start_s, start_s + covered_s) of the trace."""
    time_factor = window_s / covered_s
    before = bisect_left(times_s, start_s - warmup_s / time_factor)

    def rows(low: int, high: int, from_s: float, to_s: float) -> list[tuple[float, TraceRow]]:
        # Rounding must not carry a row over an edge of the slice it was cut into.
        below_s = math.nextafter(to_s, 0.0)
        arrivals_s = (warmup_s + (times_s[i] - start_s) * time_factor for i in range(low, high))
        return [
            (min(max(arrival_s, from_s), below_s), row)
            for arrival_s, row in zip(arrivals_s, trace.rows[low:high], strict=True)
        ]

    return Replay(
        warmup=rows(before, first, 0.0, warmup_s),
        measured=rows(first, last, warmup_s, warmup_s + window_s),
        time_factor=time_factor,
        offset_s=start_s,
        covered_s=covered_s,
    )


def _too_short(
    trace: Trace, where: str, left_s: float, end_s: float, target_s: float | None, window_s: float
) -> TraceError:
    if target_s is None:
        return TraceError(
            trace.report.path,
            None,
            f"the trace is {end_s:.3g} s long and holds no window of {window_s:g} s {where} at its own rate; lower "
            "window_s, warmup_s, offset_s or speedup, or give a load or copies",
        )
    return TraceError(
        trace.report.path,
        None,
        f"the trace holds {left_s:.3g} s of prefill {where} and load * window_s * instances is {target_s:.3g} s; "
        "lower load, window_s or offset_s, or superpose copies of the trace (copies: N)",
    )


def _nearest(work_s: Sequence[float], target_s: float, low: int) -> int:
    """The index from `low` on whose cumulated work is nearest to `target_s`."""
    i = max(bisect_left(work_s, target_s), low)
    if i >= len(work_s):
        return len(work_s) - 1
    return i - 1 if i > low and target_s - work_s[i - 1] < work_s[i] - target_s else i
