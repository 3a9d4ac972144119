"""As much of a trace as a slice of it needs: a file of gigabytes is read only as far as the slice, and held in part.

A trace that is too short for its tenant's load may be superposed with shifted copies of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from workloads.prefill import PrefillTiming
from workloads.traces.reading import TraceReading
from workloads.traces.replay import Replay, replay, spread_ties
from workloads.traces.trace import Trace, TraceError, TraceRow

# Every public trace of an hour is read whole; beyond that, a slice is tried for each time the rows double.
_FIRST_TRY_ROWS: Final = 131_072
# Rows kept before the offset: no warm-up replays as many.
_ROWS_BEFORE_OFFSET: Final = 262_144


def slice_of(
    reading: TraceReading,
    *,
    load: float | None,
    instances: int,
    timing: PrefillTiming,
    window_s: float,
    warmup_s: float,
    offset_s: float | None,
    speedup: float,
    copies: int,
    ties: str,
    rng: np.random.Generator,
    shifts: Sequence[float] | None = None,
) -> tuple[Replay, Trace, tuple[str, ...]]:
    """The slice that `replay` cuts, what was read for it, and what to say about it. Raises TraceError.

    Ties are spread over the tick (`spread`) or kept (`keep`); `rng` draws where. `shifts`: by which share of the
    trace's length each copy is turned; None: copy i by i / copies.
    """
    state = rng.bit_generator.state

    def cut(rows: list[TraceRow]) -> tuple[Replay, Trace, tuple[str, ...]]:
        # A trial that fails must not change what the next one draws.
        rng.bit_generator.state = state
        trace = Trace(rows, reading.report())
        times_s = [row.time_s for row in rows]
        notes: list[str] = []
        if ties == "spread" and trace.report.tied_rows:
            times_s = spread_ties(rows, trace.report.tick_s, rng)
            notes.append(
                f"rows that share a time are spread over the tick of {trace.report.tick_s:g} s "
                "(ties: keep replays bursts)"
            )
        if copies > 1 or shifts is not None:
            by = [i / copies for i in range(copies)] if shifts is None else shifts
            trace, times_s = _superposed(trace, times_s, by)
            how = (
                f"by a further 1/{copies} of its span"
                if shifts is None
                else "by a share of its span drawn from the seed"
            )
            notes.append(
                f"{copies} copies of the trace are superposed, each shifted {how} and wrapped around; they share no "
                "prefix"
                if copies > 1
                else f"the trace is shifted {how} and wrapped around"
            )
        slice_ = replay(
            trace,
            times_s,
            load=load,
            instances=instances,
            timing=timing,
            window_s=window_s,
            warmup_s=warmup_s,
            offset_s=offset_s,
            speedup=speedup,
        )
        return slice_, trace, tuple(notes)

    rows: list[TraceRow] = []
    next_try = _FIRST_TRY_ROWS
    before = 0
    for row in reading:
        rows.append(row)
        if offset_s is not None and row.time_s < offset_s:
            before = len(rows)
            if before >= 2 * _ROWS_BEFORE_OFFSET and copies == 1:
                del rows[:_ROWS_BEFORE_OFFSET]
                next_try = len(rows) + _FIRST_TRY_ROWS
            continue
        if len(rows) < next_try or copies > 1 or shifts is not None:
            continue
        next_try = 2 * len(rows)
        try:
            found = cut(rows)
        except TraceError:
            continue
        reading.refuse_unit()
        if found[0].measured and found[0].measured[-1][1].time_s < rows[-1].time_s:
            return found
    return cut(rows)


def _superposed(trace: Trace, times_s: Sequence[float], shifts: Sequence[float]) -> tuple[Trace, list[float]]:
    """The rows of all copies in time order. Copy i is shifted by `shifts[i]` of the trace's length, and what leaves the
    end comes in at the start, so that the mean rate is that of the trace, times the copies."""
    gap_s = trace.report.gap_s or trace.report.span_s / max(1, len(times_s) - 1)
    length_s = times_s[-1] + gap_s
    if length_s <= 0:
        raise TraceError(trace.report.path, None, "all rows share one time, so shifted copies cannot be superposed")
    merged: list[tuple[float, int, int, TraceRow]] = []
    for copy, shift in enumerate(shifts):
        suffix = f"#{copy}" if copy else ""
        for i, (time_s, row) in enumerate(zip(times_s, trace.rows, strict=True)):
            at_s = (time_s + shift * length_s) % length_s
            session = f"{row.session}{suffix}" if row.session else ""
            # written out: `dataclasses.replace` would take a quarter of the time of a window's arrivals
            turned = TraceRow(at_s, row.new_tokens, row.cached_tokens, session, row.line, row.output_tokens)
            merged.append((at_s, copy, i, turned))
    merged.sort(key=lambda item: item[:3])
    return Trace([row for *_, row in merged], trace.report), [at_s for at_s, *_ in merged]
