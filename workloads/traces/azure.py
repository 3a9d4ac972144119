"""Azure LLM inference traces of 2023 (code, conv) and of 2024 (a week): one row per request, no prefix information.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:17:03.9799600,4808,10
    2024-05-10 00:00:00.009930+00:00,2162,5

The time has up to seven fractional digits (2023), or an offset from UTC (2024); it is parsed to the nanosecond. The
prompt is all new: cached tokens are 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from workloads.traces import dialects, values
from workloads.traces.reading import DATES, Format
from workloads.traces.sniff import csv_columns
from workloads.traces.trace import Entry, TraceError

_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_LOCAL: Final = re.compile(r"[^+Z]*:[^-+Z]*")
#: By how much times go back where clocks are set back an hour, and requests come some minutes apart.
_REPEATED_NS: Final = (20 * 60 * 10**9, 60 * 60 * 10**9)
_KEYS: Final = {
    **dialects.TABLES,
    # The multimodal trace of 2025.
    "NumImages": dialects.Meaning(
        "adds images to the prompt, whose tokens the row does not count",
        "remove such rows, or add the tokens of the images to ContextTokens and remove the column",
        (0,),
    ),
}


def entries(path: Path) -> Iterator[Entry]:
    previous = 0
    for line, (stamp, context, generated) in dialects.rows(path, _COLUMNS, keys=_KEYS):
        time = values.stamp_ns(stamp, "TIMESTAMP", path, line)
        if _LOCAL.fullmatch(stamp.strip()) and _REPEATED_NS[0] <= previous - time <= _REPEATED_NS[1]:
            raise TraceError(
                path,
                line,
                f"TIMESTAMP {stamp.strip()[:60]} goes back {(previous - time) / 60e9:.0f} min, and the times have no "
                "offset from UTC: where clocks were set back, an hour is there twice. Sorting would mix the two; write "
                "the times in UTC or with their offset (2024-11-03 01:00:00-04:00)",
            )
        previous = time
        input_tokens = values.token_cell(context, "ContextTokens", path, line)
        yield Entry(line, time, input_tokens, values.token_cell(generated, "GeneratedTokens", path, line, least=0))


FORMAT: Final = Format(
    "azure", "azure", DATES, 1e9, entries, lambda head: csv_columns(head) >= {name.lower() for name in _COLUMNS}
)
