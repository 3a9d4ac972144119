"""Reader of the Mooncake trace format: JSON lines, plain or gzip, with the hashes of the prompt's blocks.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353, ...]}

* `timestamp` is in **milliseconds**, not decreasing; the first one is subtracted. * `hash_ids` has one opaque id per
block of 512 tokens, chained, so that equal ids mean equal prefixes; the last block is
  partial, hence ceil(input_length / 512) == len(hash_ids).
* A row's cached tokens are its contiguous leading run of ids that an earlier row had: a block behind a miss is no
hit. The
  cache never evicts, and at least one token is always computed.

A row that breaks one of these rules stops the reader with its line: a trace that was cut or converted wrongly would
replay as a different workload. Rows longer than the model's context are dropped and counted, and do not enter the
cache.
"""

from __future__ import annotations

import gzip
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from workloads.tenants import CONTEXT_LIMIT_TOKENS
from workloads.traces.trace import Trace, TraceError, TraceReport, TraceRow

BLOCK_TOKENS: Final = 512
_GZIP_MAGIC: Final = b"\x1f\x8b"
# A wrong unit moves the rate by 1,000; no public trace of one service is within that of these bounds.
_PLAUSIBLE_RATE_PER_S: Final = (0.01, 1_000.0)


def read(path: str | Path, *, max_context_tokens: int = CONTEXT_LIMIT_TOKENS) -> Trace:
    """Read a Mooncake trace. Raises TraceError with file and line for anything outside the format."""
    seen: set[int | str] = set()
    rows: list[TraceRow] = []
    origin = previous = math.nan
    rows_read = tied_rows = cached_sum = context_sum = group = 0
    too_long = 0
    gaps_s: list[float] = []
    for line, record in _records(Path(path)):
        timestamp, input_tokens, hash_ids = _checked(record, path, line)
        if rows_read == 0:
            origin = previous = timestamp
        if timestamp < previous:
            raise TraceError(
                path,
                line,
                f"timestamp {timestamp:g} ms comes after {previous:g} ms of the row before; sort the trace by time",
            )
        if timestamp > previous:
            gaps_s.append((timestamp - previous) / 1e3)
            tied_rows += group if group > 1 else 0
            group = 0
        group += 1
        rows_read += 1
        previous = timestamp
        if input_tokens > max_context_tokens:
            too_long += 1
            continue
        cached_tokens = min(_leading_hits(hash_ids, seen) * BLOCK_TOKENS, input_tokens - 1)
        seen.update(hash_ids)
        cached_sum += cached_tokens
        context_sum += input_tokens
        time_s = (timestamp - origin) / 1e3
        rows.append(TraceRow(time_s, input_tokens - cached_tokens, cached_tokens, "", line))
    if not rows_read:
        raise TraceError(path, None, "the trace has no rows")
    if not rows:
        raise TraceError(
            path, None, f"all {rows_read} rows are longer than {max_context_tokens} tokens; nothing to replay"
        )
    span_s = (previous - origin) / 1e3
    report = TraceReport(
        path=str(path),
        format="mooncake",
        unit="ms",
        origin=origin,
        span_s=span_s,
        rows_read=rows_read,
        rows_kept=len(rows),
        dropped={f"longer than {max_context_tokens} tokens": too_long} if too_long else {},
        distinct_times=len(gaps_s) + 1,
        tick_s=statistics.median(gaps_s) if gaps_s else 0.0,
        tied_rows=tied_rows + (group if group > 1 else 0),
        token_hit_rate=cached_sum / context_sum,
        warnings=_rate_warnings(rows_read, span_s),
    )
    return Trace(rows, report)


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, parsed JSON) of each line that is not blank."""

    def refuse_constant(name: str) -> NoReturn:
        raise TraceError(path, line, f"{name} is no JSON number; remove or repair the row")

    line = 0
    try:
        with path.open("rb") as probe:
            compressed = probe.read(2) == _GZIP_MAGIC
        with gzip.open(path, "rt", encoding="utf-8") if compressed else path.open(encoding="utf-8") as file:
            for line, text in enumerate(file, 1):
                if text.strip():
                    yield line, json.loads(text, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise TraceError(
            path, line, f"not JSON ({error.msg} at column {error.colno}); the format is JSON lines"
        ) from error
    except FileNotFoundError:
        raise TraceError(path, None, "no such file; give the trace's path") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(path, line or None, f"cannot be read ({error}); is the file complete?") from error


def _checked(record: Any, path: str | Path, line: int) -> tuple[float, int, list[int | str]]:
    """(timestamp in ms, input tokens, hash ids) of a row that follows the format."""
    if not isinstance(record, dict):
        raise TraceError(path, line, f"a {type(record).__name__} where the format has an object per line")
    missing = [key for key in ("timestamp", "input_length", "hash_ids") if key not in record]
    if missing:
        raise TraceError(
            path, line, f"no {', '.join(missing)}; a Mooncake row has timestamp, input_length and hash_ids"
        )
    timestamp, input_tokens, hash_ids = record["timestamp"], record["input_length"], record["hash_ids"]
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float):
        raise TraceError(path, line, f"timestamp {timestamp!r} is no number of milliseconds")
    if not math.isfinite(timestamp) or timestamp < 0:
        raise TraceError(
            path, line, f"timestamp {timestamp!r} ms is not finite and at least 0; remove or repair the row"
        )
    if isinstance(input_tokens, bool) or not isinstance(input_tokens, int) or input_tokens < 1:
        raise TraceError(path, line, f"input_length {input_tokens!r} is no whole number of at least 1 token")
    if not isinstance(hash_ids, list) or any(isinstance(i, bool) or not isinstance(i, int | str) for i in hash_ids):
        raise TraceError(path, line, "hash_ids is no list of integers or strings (a float would have lost digits)")
    blocks = -(-input_tokens // BLOCK_TOKENS)
    if blocks != len(hash_ids):
        raise TraceError(
            path,
            line,
            f"{len(hash_ids)} hash_ids for input_length {input_tokens}, which has {blocks} blocks of {BLOCK_TOKENS} "
            "tokens; is this a trace with another block size?",
        )
    return float(timestamp), input_tokens, hash_ids


def _leading_hits(hash_ids: list[int | str], seen: set[int | str]) -> int:
    for hits, hash_id in enumerate(hash_ids):
        if hash_id not in seen:
            return hits
    return len(hash_ids)


def _rate_warnings(rows: int, span_s: float) -> tuple[str, ...]:
    if span_s <= 0:
        return ()
    low, high = _PLAUSIBLE_RATE_PER_S
    rate = rows / span_s
    if low <= rate <= high:
        return ()
    return (f"{rate:.3g} requests per s over {span_s:.3g} s is implausible; are the timestamps really in ms?",)
