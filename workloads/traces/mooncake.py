"""Mooncake: JSON lines with the hashes of the prompt's blocks.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353, ...]}

* `timestamp` is in **milliseconds**, not decreasing.
* `hash_ids` has one opaque id per block of 512 tokens, chained, so that equal ids mean equal prefixes; the last block
  is partial, hence ceil(input_length / 512) == len(hash_ids).
* A row's cached tokens are its contiguous leading run of ids that an earlier row had: a block behind a miss is no
  hit. The cache never evicts, and at least one token is always computed.
* A row with a `session_id` is a turn of that session: `mooncake_sessions` says what it holds of its prompt. What came
  before in the session is cached in a turn that is a delta.
* A turn that waits for the answer before it (`delay`, `wait_for`) and prompts given as text are refused by name.

A row that breaks one of these rules stops the reader with its line: a trace that was cut or converted wrongly would
replay as a different workload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from workloads.tenants import CONTEXT_LIMIT_TOKENS
from workloads.traces import dialects, values
from workloads.traces.mooncake_sessions import Rows, Sessions
from workloads.traces.reading import Format
from workloads.traces.reading import read as read_format
from workloads.traces.sniff import json_keys
from workloads.traces.text import json_rows
from workloads.traces.trace import Entry, Trace

BLOCK_TOKENS: Final = 512
_KEYS: Final = ("timestamp", "input_length", "hash_ids")
_LATER: Final = {
    key: meaning
    for key, meaning in {**dialects.COMMON, **dialects.block_size(BLOCK_TOKENS)}.items()
    if key != "context_mode"
}
# The first turn of a session waits for no answer.
_FIRST: Final = {**_LATER, **{key: _LATER[key]._replace(harmless=(0,)) for key in ("delay", "delay_ms")}}


def entries(path: Path, rows: Rows | None = None) -> Iterator[Entry]:
    """The requests of a file; `rows`: what those of a session hold, None where the file tells."""
    sessions = Sessions(path, BLOCK_TOKENS, rows)
    for line, record in json_rows(path):
        session = record.get("session_id")
        name = "" if session is None else values.name(session, "session_id", path, line)
        dialects.refuse(record, _FIRST if not name or sessions.is_first(name) else _LATER, path, line)
        timestamp, length, hash_ids = values.needed(record, _KEYS, "Mooncake row", path, line)
        time = values.time(timestamp, "timestamp", "milliseconds", path, line)
        input_tokens = values.tokens(length, "input_length", path, line)
        ids = values.blocks(hash_ids, input_tokens, BLOCK_TOKENS, path, line)
        output = record.get("output_length")
        output_tokens = None if output is None else values.tokens(output, "output_length", path, line, least=0)
        before = 0
        if name:
            before = sessions.before(name, input_tokens, output_tokens, ids, record.get("context_mode"), line)
        if before:
            yield Entry(line, time, before + input_tokens, output_tokens, before, session=name, delta=True)
        else:
            yield Entry(line, time, input_tokens, output_tokens, 0, ids, BLOCK_TOKENS, name)


def _matches(head: bytes) -> bool:
    keys = json_keys(head)
    return keys >= set(_KEYS) and "chat_id" not in keys


FORMAT: Final = Format(
    "mooncake", "mooncake", "ms", 1e3, entries, _matches, prefixes="blocks", sessions=True, unit_is_open=True
)
DELTAS: Final = replace(
    FORMAT, name="mooncake-delta", entries=partial(entries, rows="deltas"), matches=lambda head: False
)
WHOLE: Final = replace(
    FORMAT, name="mooncake-whole", entries=partial(entries, rows="whole prompts"), matches=lambda head: False
)


def read(path: str | Path, *, max_context_tokens: int = CONTEXT_LIMIT_TOKENS) -> Trace:
    """The whole trace in memory. Raises TraceError with file and line for anything outside the format."""
    return read_format(path, FORMAT, max_context_tokens=max_context_tokens)
