"""Splitwise-sim's request CSV, in seconds; no prefix information.

request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size
0,2,0,0.0,1,1021,44
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from workloads.traces import dialects, values
from workloads.traces.reading import Format
from workloads.traces.sniff import csv_columns
from workloads.traces.trace import Entry

_COLUMNS: Final = ("arrival_timestamp", "prompt_size", "token_size")
_KEYS: Final = {
    **dialects.TABLES,
    "batch_size": dialects.Meaning("makes the row several prompts", "write a row for each of them", (1,)),
    "request_type": dialects.Meaning("is no request to a language model (2)", "remove such rows", (2,)),
}


def entries(path: Path) -> Iterator[Entry]:
    for line, (stamp, prompt, token) in dialects.rows(path, _COLUMNS, keys=_KEYS):
        time = values.time_cell(stamp, "arrival_timestamp", "seconds", path, line)
        input_tokens = values.token_cell(prompt, "prompt_size", path, line)
        yield Entry(line, time, input_tokens, values.token_cell(token, "token_size", path, line, least=0))


FORMAT: Final = Format(
    "splitwise", "splitwise", "s", 1.0, entries, lambda head: csv_columns(head) >= set(_COLUMNS), unit_is_open=True
)
