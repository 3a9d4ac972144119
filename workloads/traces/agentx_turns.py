"""AgentX (Claude Code sessions of kv-cache-tester), the turns table: one row per call, sub-agents in the session.

    trace,seq,agent,agent_t0_s,t_s,type,...,in_tokens,out_tokens,cached_tokens,new_tokens,...

* `t_s` is in **seconds** from the start of the session, or of the sub-agent named in `agent`, which started at
  `agent_t0_s` of the session. There are no arrival times of sessions.
* `cached_tokens` is the longest common prefix within the session; cached + new == in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from workloads.traces import dialects, values
from workloads.traces.reading import Format
from workloads.traces.session_rows import by_session, from_first
from workloads.traces.sniff import csv_columns
from workloads.traces.text import refuse_arrivals
from workloads.traces.trace import Entry, TraceError

_COLUMNS: Final = ("trace", "t_s", "in_tokens", "out_tokens", "cached_tokens", "new_tokens")


def _rows(path: Path) -> Iterator[Entry]:
    refuse_arrivals(path, (*_COLUMNS, "agent_t0_s"), "AgentX has none, so convert the file to a format that has")
    for line, (trace, stamp, in_, out, cached, new, start) in dialects.rows(
        path, _COLUMNS, ("agent_t0_s",), dialects.COMMON
    ):
        time = values.time_cell(stamp, "t_s", "seconds", path, line)
        if start.strip():
            time += values.time_cell(start, "agent_t0_s", "seconds", path, line)
        input_tokens = values.token_cell(in_, "in_tokens", path, line)
        cached_tokens = values.token_cell(cached, "cached_tokens", path, line, least=0)
        new_tokens = values.token_cell(new, "new_tokens", path, line, least=0)
        if cached_tokens + new_tokens != input_tokens:
            raise TraceError(
                path,
                line,
                f"cached_tokens {cached_tokens} and new_tokens {new_tokens} do not add up to in_tokens {input_tokens}; "
                "remove or repair the row",
            )
        output_tokens = values.token_cell(out, "out_tokens", path, line, least=0)
        yield Entry(
            line, time, input_tokens, output_tokens, cached_tokens, session=values.name(trace, "trace", path, line)
        )


def entries(path: Path) -> Iterator[Entry]:
    for calls in by_session(_rows(path), path):
        yield from from_first(calls)


FORMAT: Final = Format(
    "agentx",
    "agentx turns",
    "s",
    1.0,
    entries,
    lambda head: csv_columns(head) >= set(_COLUMNS),
    prefixes="recorded",
    sessions=True,
    arrival_times=False,
)
