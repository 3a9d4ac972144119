"""Rows of one session that stand together in a file, gathered and brought into time order (sub-agents interleave)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from workloads.traces.prefixes import SessionNames
from workloads.traces.trace import Entry, TraceError

# No session of a public corpus has a hundredth of it; a file that is one session of millions of rows is no trace.
MAX_CALLS = 500_000


def by_session(rows: Iterable[Entry], path: str | Path) -> Iterator[list[Entry]]:
    """The entries of each session in time order. Raises TraceError where a session's rows do not stand together."""
    names = SessionNames()
    calls: list[Entry] = []
    for entry in rows:
        if calls and entry.session != calls[0].session:
            yield sorted(calls, key=lambda call: call.time)
            calls = []
        if not calls and not names.add(entry.session):
            raise TraceError(
                path, entry.line, f"session {entry.session} appears again after others; sort the rows by session"
            )
        if len(calls) == MAX_CALLS:
            raise TraceError(
                path, entry.line, f"session {entry.session} has over {MAX_CALLS} calls; is it one session?"
            )
        calls.append(entry)
    if calls:
        yield sorted(calls, key=lambda call: call.time)


def from_first(calls: list[Entry]) -> Iterator[Entry]:
    """The calls with their times counted from the session's first one."""
    for call in calls:
        yield call._replace(time=call.time - calls[0].time)
