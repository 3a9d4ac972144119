"""Vidur's request CSV, in seconds; no prefix information.

    arrived_at,num_prefill_tokens,num_decode_tokens
    0.042,1021,44

Vidur also has traces of lengths alone, without `arrived_at`: each of their rows is a session of one call, whose
arrival is synthesised. A column of another name that looks like arrivals is refused by name, for its unit is not
known and drawn arrivals would replace it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from workloads.traces import dialects, values
from workloads.traces.reading import Format
from workloads.traces.sniff import csv_columns
from workloads.traces.text import refuse_arrivals
from workloads.traces.trace import Entry

_LENGTHS: Final = ("num_prefill_tokens", "num_decode_tokens")
_COLUMNS: Final = ("arrived_at", *_LENGTHS)


def entries(path: Path) -> Iterator[Entry]:
    for line, (stamp, prefill, decode) in dialects.rows(path, _COLUMNS):
        time = values.time_cell(stamp, "arrived_at", "seconds", path, line)
        input_tokens = values.token_cell(prefill, "num_prefill_tokens", path, line)
        yield Entry(line, time, input_tokens, values.token_cell(decode, "num_decode_tokens", path, line, least=0))


def lengths(path: Path) -> Iterator[Entry]:
    refuse_arrivals(path, _LENGTHS, "name it arrived_at, as Vidur does, in seconds")
    for line, (prefill, decode) in dialects.rows(path, _LENGTHS):
        input_tokens = values.token_cell(prefill, "num_prefill_tokens", path, line)
        output_tokens = values.token_cell(decode, "num_decode_tokens", path, line, least=0)
        yield Entry(line, 0, input_tokens, output_tokens, session=f"row{line}")


FORMAT: Final = Format(
    "vidur", "vidur", "s", 1.0, entries, lambda head: csv_columns(head) >= set(_COLUMNS), unit_is_open=True
)
LENGTHS: Final = Format(
    "vidur",
    "vidur lengths",
    "s",
    1.0,
    lengths,
    lambda head: csv_columns(head) >= set(_LENGTHS) and "arrived_at" not in csv_columns(head),
    arrival_times=False,
)
