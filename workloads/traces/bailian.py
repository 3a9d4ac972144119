"""Bailian: chat turns of a model service, JSON lines with block hashes.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,
     "type": "text", "turn": 2, "hash_ids": [1089, 1090, ...]}

* `timestamp` is in **seconds**, not decreasing.
* `input_length` is cumulative: the whole prompt of the turn, with the turns before it. It is the context, not the new
  tokens.
* `hash_ids` has one id per block of **16** tokens; the last block is partial.
* A turn belongs to the session of its parent; a turn without one (-1) starts a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from workloads.traces import dialects, values
from workloads.traces.reading import Format
from workloads.traces.sniff import json_keys
from workloads.traces.text import json_rows
from workloads.traces.trace import Entry

BLOCK_TOKENS: Final = 16
_KEYS: Final = ("chat_id", "timestamp", "input_length", "hash_ids")
_DIALECTS: Final = {
    **dialects.COMMON,
    **dialects.block_size(BLOCK_TOKENS),
    "context_mode": dialects.COMMON["context_mode"]._replace(harmless=("message_array_with_responses",)),
}


def entries(path: Path) -> Iterator[Entry]:
    session_of: dict[str, str] = {}
    for line, record in json_rows(path):
        dialects.refuse(record, _DIALECTS, path, line)
        chat, stamp, length, hash_ids = values.needed(record, _KEYS, "Bailian row", path, line)
        time = values.time(stamp, "timestamp", "seconds", path, line)
        input_tokens = values.tokens(length, "input_length", path, line)
        ids = values.blocks(hash_ids, input_tokens, BLOCK_TOKENS, path, line)
        output = record.get("output_length")
        output_tokens = None if output is None else values.tokens(output, "output_length", path, line, least=0)
        chat_id = values.name(chat, "chat_id", path, line)
        parent = record.get("parent_chat_id")
        parent_id = "-1" if parent is None else values.name(parent, "parent_chat_id", path, line)
        # A parent before the trace's start still names the session.
        session = chat_id if parent_id == "-1" else session_of.get(parent_id, parent_id)
        session_of[chat_id] = session
        yield Entry(line, time, input_tokens, output_tokens, blocks=ids, block_tokens=BLOCK_TOKENS, session=session)


FORMAT: Final = Format(
    "bailian",
    "bailian",
    "s",
    1.0,
    entries,
    lambda head: json_keys(head) >= set(_KEYS),
    prefixes="blocks",
    sessions=True,
    unit_is_open=True,
)
