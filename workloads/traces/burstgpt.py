"""BurstGPT: requests of a campus service to hosted models, in seconds.

    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
    5,ChatGPT,472,18,490,Conversation log

The second release adds `Session ID` and `Elapsed time`. A row without response tokens is a request that failed, one
without request tokens has no prompt: both are counted and dropped, never replayed. There is no prefix information:
cached tokens are 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from workloads.traces import dialects, values
from workloads.traces.reading import Format
from workloads.traces.sniff import csv_columns
from workloads.traces.trace import Entry

_COLUMNS: Final = ("Timestamp", "Request tokens", "Response tokens")


def entries(path: Path) -> Iterator[Entry]:
    for line, (stamp, request, response, session) in dialects.rows(path, _COLUMNS, ("Session ID",)):
        time = values.time_cell(stamp, "Timestamp", "seconds", path, line)
        output_tokens = values.token_cell(response, "Response tokens", path, line, least=0)
        input_tokens = values.token_cell(request, "Request tokens", path, line, least=0)
        failed = "" if input_tokens else "without a prompt (0 request tokens)"
        if not output_tokens:
            failed = "failed (0 response tokens)"
        yield Entry(line, time, input_tokens, output_tokens, session=session.strip()[:200], failed=failed)


FORMAT: Final = Format(
    "burstgpt",
    "burstgpt",
    "s",
    1.0,
    entries,
    lambda head: csv_columns(head) >= {name.lower() for name in _COLUMNS},
    sessions=True,
    unit_is_open=True,
)
