"""TraceLab's rounds: one JSON object per call of an agent session, with the times of its events.

    {"session_id": "claude:...", "round_index": 0, "input_tokens_total": 32272, "prefix_tokens": 27217,
     "newly_append_tokens": 5055, "output_tokens": 931,
     "timing_events": [{"event_type": "user_message", "timestamp": "2026-06-01T05:40:20.151Z"}, ...]}

* prefix + newly appended == total input. * A round arrives when its last input is there: at the last `user_message` or
`tool_result` before the first event of the answer (at the first event where the round records no input).
* Sessions come from many users and stand one after the other in the file; their rounds are brought into time order, 32
  bytes of memory each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from workloads.traces import dialects, values
from workloads.traces.reading import DATES, Format
from workloads.traces.sniff import json_keys
from workloads.traces.text import json_rows
from workloads.traces.trace import Entry, TraceError

_KEYS: Final = (
    "session_id",
    "round_index",
    "input_tokens_total",
    "prefix_tokens",
    "newly_append_tokens",
    "output_tokens",
    "timing_events",
)
_INPUTS: Final = ("user_message", "tool_result")


def entries(path: Path) -> Iterator[Entry]:
    times_ns, sessions, lines = array("q"), array("q"), array("q")
    cached, new, output = array("l"), array("l"), array("l")
    names: dict[str, int] = {}
    for line, record in json_rows(path):
        dialects.refuse(record, dialects.COMMON, path, line)
        found = values.needed(record, _KEYS, "TraceLab round", path, line)
        session = values.name(found[0], "session_id", path, line)
        total = values.tokens(found[2], "input_tokens_total", path, line)
        prefix = values.tokens(found[3], "prefix_tokens", path, line, least=0)
        append = values.tokens(found[4], "newly_append_tokens", path, line, least=0)
        if prefix + append != total:
            raise TraceError(
                path,
                line,
                f"prefix_tokens {prefix} and newly_append_tokens {append} do not add up to input_tokens_total {total}; "
                "remove or repair the row",
            )
        times_ns.append(_arrival_ns(found[6], path, line))
        sessions.append(names.setdefault(session, len(names)))
        lines.append(line)
        cached.append(prefix)
        new.append(append)
        output.append(values.tokens(found[5], "output_tokens", path, line, least=0))
    by_number = list(names)
    for i in np.argsort(np.frombuffer(times_ns, dtype=np.int64), kind="stable") if times_ns else ():
        yield Entry(lines[i], times_ns[i], cached[i] + new[i], output[i], cached[i], session=by_number[sessions[i]])


def _arrival_ns(events: Any, path: Path, line: int) -> int:
    if not isinstance(events, list) or not events:
        raise TraceError(path, line, "timing_events is no list of events, so the round has no time; remove the row")
    arrival_ns: int | None = None
    for event in events:
        if not isinstance(event, dict) or not isinstance(event.get("event_type"), str):
            raise TraceError(path, line, "a timing event is no object with event_type and timestamp; repair the row")
        stamp_ns = values.stamp_ns(event.get("timestamp"), "timestamp", path, line)
        is_input = event["event_type"] in _INPUTS
        if arrival_ns is None or is_input:
            arrival_ns = stamp_ns
        if not is_input:
            break
    assert arrival_ns is not None
    return arrival_ns


FORMAT: Final = Format(
    "tracelab",
    "tracelab rounds",
    DATES,
    1e9,
    entries,
    lambda head: json_keys(head) >= set(_KEYS),
    prefixes="recorded",
    sessions=True,
    # Months of a few dozen users, not a service.
    plausible_rate_per_s=(1e-6, 1_000.0),
)
