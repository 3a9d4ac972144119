"""One cell of a trace at a time: counts of tokens, times, block ids. Every refusal has file, line, value, remedy."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from inputs.csv_file import number
from inputs.errors import shown
from workloads.traces.trace import TraceError

# Above any context and any clock; a larger number is a broken row, and sums of such numbers stay finite.
_MAX_TOKENS: Final = 10**9
_MAX_TIME: Final = 10**19
#: From here on a float is no longer every whole number: 9007199254740993.0 would be read as ...992.
_FLOATS_ARE_WHOLE_BELOW: Final = 2**53
_STAMP: Final = re.compile(
    r"\s*(\d{4}-\d\d-\d\d[T ]\d\d:\d\d):([0-5]\d)(?:\.(\d{1,9}))?(Z|[-+]\d\d:?\d\d)?\s*", re.ASCII
)


def tokens(value: Any, name: str, path: str | Path, line: int | None, *, least: int = 1) -> int:
    """A JSON value that is a whole number of tokens (`12`, `12.0` or `1.2e1`), at least `least`."""
    return _token_count(_whole(value), value, name, path, line, least)


def _whole(value: Any) -> int | None:
    """The whole number that a JSON value is, None where it is none. Programs that hold a column with gaps as floats
    write 52 as 52.0."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer() and abs(value) < _FLOATS_ARE_WHOLE_BELOW:
        return int(value)
    return None


def token_cell(text: str, name: str, path: str | Path, line: int | None, *, least: int = 1) -> int:
    """The text of a CSV cell that is a whole number of tokens (`12`, `12.0` or `1.2e1`), at least `least`."""
    if len(text) < 10 and text.isascii() and text.isdigit() and int(text) >= least:  # all but a few cells of a trace
        return int(text)
    return _token_count(_whole(number(text)), text, name, path, line, least)


def _token_count(count: int | None, value: Any, name: str, path: str | Path, line: int | None, least: int) -> int:
    if count is None or not least <= count <= _MAX_TOKENS:
        raise TraceError(
            path,
            line,
            f"{name} {shown(value)} is no whole number of at least {least} token; remove or repair the row",
        )
    return count


def time(value: Any, name: str, unit: str, path: str | Path, line: int | None) -> int | float:
    """A JSON value that is a finite time of at least 0 in the format's unit."""
    found = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return _time(found, value, name, unit, path, line)


def time_cell(text: str, name: str, unit: str, path: str | Path, line: int | None) -> float:
    """The text of a CSV cell that is a finite time of at least 0 in the format's unit."""
    value = number(text)
    if value is None and text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity"):
        value = math.nan
    return float(_time(value, text, name, unit, path, line))


def _time(
    found: int | float | None, value: Any, name: str, unit: str, path: str | Path, line: int | None
) -> int | float:
    if found is None:
        raise TraceError(path, line, f"{name} {shown(value)} is no number of {unit}; remove or repair the row")
    if not 0 <= found <= _MAX_TIME:
        raise TraceError(
            path,
            line,
            f"{name} {shown(value)} {unit} is not finite and at least 0; remove or repair the row",
        )
    return found


def stamp_ns(value: Any, name: str, path: str | Path, line: int | None) -> int:
    """Nanoseconds since 1970 of an ISO date and time with up to 9 fractional digits, exactly.

    Without an offset the time is taken as UTC (only differences matter).
    """
    match = _STAMP.fullmatch(value) if isinstance(value, str) and len(value) < 80 else None
    minute_s = _minute_s(match[1], match[4]) if match else None
    if match is None or minute_s is None:
        raise TraceError(
            path,
            line,
            f"{name} {shown(value)} is no date and time such as 2023-11-16 18:17:03.9799600; repair the row",
        )
    return (minute_s + int(match[2])) * 10**9 + int((match[3] or "").ljust(9, "0"))


@lru_cache(maxsize=256)
def _minute_s(minute: str, offset: str | None) -> int | None:
    """Seconds from 1970 to a minute written as `2023-11-16 18:17`, None where there is no such minute. Rows of a trace
    share their minute with those before them."""
    try:
        whole = datetime.strptime(minute.replace("T", " "), "%Y-%m-%d %H:%M").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    seconds = (whole - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(seconds=1)
    if offset and offset != "Z":
        digits = offset[1:].replace(":", "")
        ahead_s = 60 * (60 * int(digits[:2]) + int(digits[2:]))
        seconds += -ahead_s if offset[0] == "+" else ahead_s
    return seconds if seconds >= 0 else None


def blocks(
    value: Any, input_tokens: int, block_tokens: int, path: str | Path, line: int | None, *, partial: bool = True
) -> list[int | str]:
    """The opaque ids of a prompt's blocks. With `partial`, the last block may be partial and has an id too: there are
    ceil(input / block) of them; without, only full blocks have one."""
    if not isinstance(value, list) or not {int, str}.issuperset(map(type, value)):  # a bool is an int, but not here
        raise TraceError(path, line, "hash_ids is no list of integers or strings (a float would have lost digits)")
    count = -(-input_tokens // block_tokens) if partial else input_tokens // block_tokens
    if count != len(value):
        raise TraceError(
            path,
            line,
            f"{len(value)} hash_ids for input_length {input_tokens}, which has {count} blocks of {block_tokens} "
            "tokens; is this a trace with another block size?",
        )
    return value


def needed(record: dict[str, Any], keys: tuple[str, ...], what: str, path: str | Path, line: int | None) -> list[Any]:
    """The values of the keys that a row of the format must have."""
    if missing := [key for key in keys if key not in record]:
        raise TraceError(path, line, f"no {', '.join(missing)}; a {what} has {', '.join(keys)}")
    return [record[key] for key in keys]


def name(value: Any, key: str, path: str | Path, line: int | None) -> str:
    """The name of a session: text or a whole number, as written."""
    whole = _whole(value)
    if whole is not None and abs(whole) < 10**18:
        return str(whole)
    if isinstance(value, str) and 0 < len(value.strip()) <= 200:
        return value.strip()
    raise TraceError(path, line, f"{key} {shown(value)} is no name of a session; remove or repair the row")
