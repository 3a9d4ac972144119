"""What every trace reader returns: rows in seconds and tokens, and a report of what was read and what was dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


class TraceError(ValueError):
    """A trace that cannot be replayed as it is. The message gives file:line, the value and the remedy."""

    def __init__(self, path: str | Path, line: int | None, message: str) -> None:
        self.path = Path(path)
        self.line = line
        super().__init__(f"{path}:{line}: {message}" if line is not None else f"{path}: {message}")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace. `time_s` counts from the trace's first row; `line` is its line in the file."""

    time_s: float
    new_tokens: int
    cached_tokens: int
    session: str
    line: int


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What a reader found. `origin` is the first timestamp as written, which was subtracted; `unit` is the
    timestamps' unit; `tick_s` the typical distance of two distinct times; `tied_rows` the rows that share their time
    with another."""

    path: str
    format: str
    unit: str
    origin: float
    span_s: float
    rows_read: int
    rows_kept: int
    dropped: dict[str, int]
    distinct_times: int
    tick_s: float
    tied_rows: int
    token_hit_rate: float
    warnings: tuple[str, ...] = ()

    @property
    def mean_rate_per_s(self) -> float | None:
        """Rows read per second of the trace; None where all rows share one time."""
        return self.rows_read / self.span_s if self.span_s > 0 else None

    def lines(self) -> list[str]:
        """The report as lines of text."""
        rate = self.mean_rate_per_s
        text = [
            f"{self.path}: {self.format}, times in {self.unit}, {self.rows_read} rows over {self.span_s:.3f} s"
            + (f" ({rate:.3g} per s)" if rate is not None else ""),
            f"first timestamp {self.origin:g} subtracted; {self.distinct_times} distinct times, {self.tied_rows} rows "
            "share theirs with another",
            f"{100 * self.token_hit_rate:.1f} % of the input tokens are a cached prefix (cache without eviction)",
        ]
        text += [f"dropped {count} rows: {reason}" for reason, count in self.dropped.items()]
        return text + [f"warning: {warning}" for warning in self.warnings]


@dataclass(frozen=True, slots=True)
class Trace:
    """The rows of a trace in time order, and the report on them."""

    rows: list[TraceRow] = field(repr=False)
    report: TraceReport
