"""The rows of a trace: JSON lines and tables, as `inputs` reads them. What is wrong with a file is a TraceError."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from inputs import csv_file, text_file
from inputs.text_file import TextError
from workloads.traces.trace import TraceError


@contextmanager
def as_trace() -> Iterator[None]:
    """What a reader of files says, said of a trace."""
    try:
        yield
    except TraceError:
        raise
    except TextError as error:
        raise TraceError(error.path, error.line, error.problem) from error


def head(path: Path, size: int = 2**20) -> bytes:
    """The first bytes of the content, unpacked. Raises TraceError."""
    with as_trace():
        return text_file.head(path, size)


class _Refused(ValueError):
    """What JSON does not have, or what it has twice."""


def _no_constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is no JSON number; remove or repair the row")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _Refused(f"the key {twice[:60]!r} is given twice; keep one")
    return found


# One decoder for all rows, whose numbers C reads: a trace has a thousand million of them.
_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_object)


def parse_json(text: str, path: str | Path, line: int | None) -> Any:
    """One JSON value, without NaN and infinities, which JSON does not have, and without a key given twice. Raises
    TraceError."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        if "\r" in text.strip():
            message = f"not JSON lines: {text_file.CARRIAGE_RETURNS}"
        else:
            message = (
                f"not JSON ({error.msg} at column {error.colno}); the row is malformed or the file is of another format"
            )
    except _Refused as error:
        message = str(error)
    except (ValueError, RecursionError) as error:
        # An integer of thousands of digits, or brackets nested as deep.
        message = f"no row of a trace ({error}); the row is malformed or the file is of another format"
    raise TraceError(path, line, message)


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line of a JSON lines file that is not blank. Raises TraceError."""
    with as_trace():
        for line, text in text_file.lines(path):
            if not text.strip():
                continue
            record = parse_json(text, path, line)
            if not isinstance(record, dict):
                raise TraceError(path, line, f"a {type(record).__name__} where the format has an object per line")
            yield line, record


def table(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[int, list[str]]]:
    """`csv_file.table` of a trace. Raises TraceError."""
    with as_trace():
        yield from csv_file.table(path, columns, optional)


def refuse_arrivals(path: Path, columns: Sequence[str], remedy: str) -> None:
    """Raises TraceError where a table of a layout that knows no arrivals has a column, beside those that are read, that
    looks like them: drawn ones would replace it. `remedy`: what to do with a trace that has arrivals."""
    used = {column.casefold() for column in columns}
    with as_trace():
        file = csv_file.CsvFile(path)
    if found := [name for name in file.names if name.casefold() not in used and _ARRIVAL.search(name)]:
        raise TraceError(
            path,
            file.line,
            f"the column {found[0]!r} looks like arrival times, which would be replaced by drawn ones: {remedy}, or "
            "remove it to have them drawn",
        )


#: Names of a column that says when a request came, in the traces and tools of the field.
_ARRIVAL: Final = re.compile(
    r"arriv|time_?stamp|requested?[ _]at$"
    r"|(start|submit|submission|send|sent|issue|created?|enqueued?)[ _]?(time|at|ts)([ _](s|ms|us|ns))?$"
    r"|^(time|times|date|datetime|ts|at|start|started)([ _](s|ms|us|ns|sec|seconds))?$",
    re.IGNORECASE,
)
