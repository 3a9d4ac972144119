"""A user's own trace format or generator: `source: module:Class` of a tenant.

The class is made without arguments and has one method, `rows(path)`, which yields an `OwnRow` for each request in order
of time. What holds for every format holds for it too: the first time is subtracted, long rows are dropped and counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from inputs.errors import printable
from inputs.plugin_file import PluginError, load, names_plugin, start
from workloads.traces.reading import Format
from workloads.traces.trace import Entry, TraceError

__all__ = ["OwnRow", "names_plugin", "own_format"]

MOST_TOKENS = 2**40


class OwnRow(NamedTuple):
    """One request: when it arrives (seconds, in order), the tokens of its prompt, how many of them are a cached prefix,
    its session ("": none), and the tokens of its answer where they are known."""

    time_s: float
    input_tokens: int
    cached_tokens: int = 0
    session: str = ""
    output_tokens: int | None = None


def own_format(source: str) -> Format:
    """The format of a plug-in, `/folder/module.py:Class`. Raises TraceError, in one line, whatever the plug-in does."""
    try:
        reader = start(load(source))
        if not start(lambda: callable(getattr(reader, "rows", None))):
            raise PluginError("it has no method rows(path)")
    except PluginError as error:
        raise TraceError(source.rpartition(":")[0], None, f"source {source!r}: {error}") from error
    title = source.rpartition("/")[2]
    entries = partial(_entries, reader)
    return Format(source, title, "s", 1.0, entries, lambda head: True, prefixes="recorded", sessions=True)


def _entries(reader: Any, path: Path) -> Iterator[Entry]:
    number, last_s = 0, -math.inf
    try:
        rows = start(lambda: iter(reader.rows(path)))
        for number in count(1):
            row = start(partial(next, rows, None))
            if row is None:
                return
            entry = _entry(row, number)
            if entry.time < last_s:
                raise PluginError(f"time_s {entry.time!r} after {last_s!r}: yield rows in order of time")
            last_s = entry.time
            yield entry
    except PluginError as error:
        raise TraceError(path, number or None, f"rows of a plug-in: {error}") from error


def _entry(row: object, number: int) -> Entry:
    """Raises PluginError with the value that is wrong."""
    if not isinstance(row, OwnRow):
        raise PluginError(f"{_shown(row)} is no OwnRow")
    time_s = row.time_s
    if isinstance(time_s, bool) or not isinstance(time_s, int | float) or not math.isfinite(time_s):
        raise PluginError(f"time_s {_shown(time_s)} is no finite number of seconds")
    for name, value, least in (
        ("input_tokens", row.input_tokens, 1),
        ("cached_tokens", row.cached_tokens, 0),
        ("output_tokens", 0 if row.output_tokens is None else row.output_tokens, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_TOKENS:
            raise PluginError(f"{name} {_shown(value)} is no whole number of at least {least}")
    if row.cached_tokens > row.input_tokens:
        raise PluginError(f"cached_tokens {row.cached_tokens} of a prompt of {row.input_tokens}")
    if not isinstance(row.session, str):
        raise PluginError(f"session {_shown(row.session)} is no text")
    return Entry(number, time_s, row.input_tokens, row.output_tokens, row.cached_tokens, session=row.session)


def _shown(value: object) -> str:
    return start(lambda: printable(repr(value))[:60])
