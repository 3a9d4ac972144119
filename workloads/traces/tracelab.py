"""TraceLab's replay CSV: rounds of agent sessions, with the wait of the tool between them.

    session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms
    0,117,0,0,2318,200,300

* `prefix_len` tokens are cached, `input_len` are the **new** ones: the context is their sum.
* `arrival_time` (ms) is the session's, the same in all its rounds. A second layout has none: starts are synthesised.
* A round follows the one before after its answer and `tool_wait_after_ms`. The file does not say how long an answer
  takes: its tokens are written at the published median rate of the corpus, 40.7 per second.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from workloads.traces import dialects, values
from workloads.traces.reading import Format
from workloads.traces.session_rows import by_session, from_first
from workloads.traces.sniff import csv_columns
from workloads.traces.text import refuse_arrivals
from workloads.traces.trace import Entry, TraceError

#: Median decode rate of TraceLab's rounds (published aggregates: median_decode_tok_s).
DECODE_TOKENS_PER_S: Final = 40.7
_COLUMNS: Final = ("session_id", "round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")


def _rounds(path: Path, *, arrivals: bool) -> Iterator[Entry]:
    """Rounds with absolute times in ms where sessions have arrival times, else from the session's start."""
    columns = (*_COLUMNS, "arrival_time") if arrivals else _COLUMNS
    if not arrivals:
        refuse_arrivals(path, columns, "name it arrival_time, as TraceLab does, in ms")
    session, at_ms, arrival_ms, last_round = "", 0.0, 0.0, -1
    for line, cells in dialects.rows(path, columns, keys=dialects.COMMON):
        name = values.name(cells[0], "session_id", path, line)
        round_ = values.token_cell(cells[1], "round_idx", path, line, least=0)
        start_ms = float(values.time_cell(cells[6], "arrival_time", "ms", path, line)) if arrivals else 0.0
        if name != session:
            session, at_ms, arrival_ms, last_round = name, start_ms, start_ms, -1
        if start_ms != arrival_ms:
            raise TraceError(
                path, line, f"arrival_time {start_ms:g} ms where session {name} arrived at {arrival_ms:g} ms"
            )
        if round_ <= last_round:
            raise TraceError(path, line, f"round_idx {round_} comes after {last_round}; sort the rounds of a session")
        last_round = round_
        cached = values.token_cell(cells[2], "prefix_len", path, line, least=0)
        new = values.token_cell(cells[3], "input_len", path, line, least=0)
        output = values.token_cell(cells[4], "output_len", path, line, least=0)
        if not cached + new:
            raise TraceError(path, line, "prefix_len and input_len are both 0; remove or repair the row")
        yield Entry(line, at_ms, cached + new, output, cached, session=name)
        at_ms += 1e3 * output / DECODE_TOKENS_PER_S
        at_ms += values.time_cell(cells[5], "tool_wait_after_ms", "ms", path, line)


def entries(path: Path) -> Iterator[Entry]:
    """Rounds of all sessions in time order; a session holds back what comes after the next session's arrival."""
    waiting: list[tuple[float, int, Entry]] = []
    arrival_ms: float = 0
    for calls in by_session(_rounds(path, arrivals=True), path):
        if calls[0].time < arrival_ms:
            raise TraceError(
                path,
                calls[0].line,
                f"session {calls[0].session} arrives at {calls[0].time:g} ms, after one of {arrival_ms:g} ms; sort the "
                "sessions by arrival_time",
            )
        arrival_ms = calls[0].time
        while waiting and waiting[0][0] <= calls[0].time:
            yield heapq.heappop(waiting)[2]
        for call in calls:
            heapq.heappush(waiting, (call.time, call.line, call))
    while waiting:
        yield heapq.heappop(waiting)[2]


def without_arrivals(path: Path) -> Iterator[Entry]:
    for calls in by_session(_rounds(path, arrivals=False), path):
        yield from from_first(calls)


def _columns(head: bytes) -> frozenset[str]:
    columns = csv_columns(head)
    return columns if columns >= set(_COLUMNS) else frozenset()


FORMAT: Final = Format(
    "tracelab",
    "tracelab replay",
    "ms",
    1e3,
    entries,
    lambda head: "arrival_time" in _columns(head),
    prefixes="recorded",
    sessions=True,
)
WITHOUT_ARRIVALS: Final = Format(
    "tracelab",
    "tracelab sessions",
    "ms",
    1e3,
    without_arrivals,
    lambda head: bool(_columns(head)) and "arrival_time" not in _columns(head),
    prefixes="recorded",
    sessions=True,
    arrival_times=False,
)
