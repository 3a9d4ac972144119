"""Keys with which other programs change what a row means. A reader that does not know one reads another workload, and
nobody would see it: so each reader names those of its format's dialects, and refuses a row that uses one.

The keys are those of AIPerf and Dynamo (Mooncake rows), kv-cache-tester (AgentX), Vidur, splitwise-sim and Azure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from inputs.csv_file import number
from inputs.errors import shown
from workloads.traces.sniff import csv_columns
from workloads.traces.text import head, table
from workloads.traces.trace import TraceError


class Meaning(NamedTuple):
    """What a key does to its row, the remedy, and the values with which it does nothing (`null` and `""` never do)."""

    does: str
    remedy: str
    harmless: tuple[Any, ...] = ()


_CLOSED_LOOP: Final = "give every row its arrival as a time of its own and remove the key"
_LENGTHS: Final = "write its length and its block ids and remove the key"
_DELAY: Final = Meaning("lets the request wait for the answer before it", _CLOSED_LOOP)

#: What rows of any format may have.
COMMON: Final[Mapping[str, Meaning]] = {
    "delay": _DELAY,
    "delay_ms": _DELAY,
    "tool_wait_ms": Meaning("lets the request wait for a tool after the answer before it", _CLOSED_LOOP, (0,)),
    "wait_for": Meaning("lets the request wait for the answers to others", _CLOSED_LOOP, ([], "[]")),
    "prefix_reset": Meaning("starts a prefix anew", "give that request a session of its own", (False, "false")),
    "messages": Meaning("is the prompt itself", _LENGTHS),
    "text_input": Meaning("is the prompt itself", _LENGTHS),
    "payload": Meaning("is the prompt itself", _LENGTHS),
    "message_mode": Meaning("says which part of the prompt the row holds", _LENGTHS),
    "context_mode": Meaning("says which part of the prompt the row holds", "write whole prompts and remove the key"),
}
#: What tables without sessions may have beside it.
TABLES: Final[Mapping[str, Meaning]] = {
    **COMMON,
    "session_id": Meaning(
        "joins rows to sessions, and whether a row of one is the whole prompt or what is new in it is not said",
        "remove the column where every row is a whole prompt, or write the trace as one of another format",
    ),
    "block_hash_ids": Meaning(
        "says which prefix is cached, which this format has no reader for", "write the trace in the mooncake format"
    ),
    "hash_ids": Meaning(
        "says which prefix is cached, which this format has no reader for", "write the trace in the mooncake format"
    ),
}


def block_size(tokens: int) -> dict[str, Meaning]:
    """The keys that give the blocks another size than the format's."""
    meaning = Meaning(
        f"gives the blocks another size than the format's {tokens} tokens", f"hash blocks of {tokens} tokens", (tokens,)
    )
    return {"block_size": meaning, "trace_block_size": meaning, "hash_block_size": meaning}


def refuse(record: Mapping[str, Any], keys: Mapping[str, Meaning], path: str | Path, line: int | None) -> None:
    """Raises TraceError for the first key of the row that changes what it means."""
    if record.keys().isdisjoint(keys):
        return
    for key, meaning in keys.items():
        if key in record:
            _check(key, record[key], meaning, path, line)


def rows(
    path: Path, columns: Sequence[str], optional: Sequence[str] = (), keys: Mapping[str, Meaning] = TABLES
) -> Iterator[tuple[int, list[str]]]:
    """`table` of a trace, of which no row uses one of the keys. Raises TraceError."""
    wanted = len(columns) + len(optional)
    header = csv_columns(head(path))
    present = [(key, meaning) for key, meaning in keys.items() if key.casefold() in header]
    for line, cells in table(path, columns, (*optional, *(key for key, _ in present))):
        for (key, meaning), cell in zip(present, cells[wanted:], strict=True):
            _check(key, cell.strip(), meaning, path, line)
        yield line, cells[:wanted] if present else cells


def _check(key: str, value: Any, meaning: Meaning, path: str | Path, line: int | None) -> None:
    as_number = number(value) if isinstance(value, str) else None
    if value is None or value == "" or value in meaning.harmless or as_number in meaning.harmless:
        return
    raise TraceError(path, line, f"{key} {shown(value)} {meaning.does}; {meaning.remedy}")
