"""What every trace reader works with: entries as written, rows in seconds and tokens, and a report of what was read
and what was dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from inputs.text_file import TextError


class TraceError(TextError):
    """A trace that cannot be replayed as it is. The message gives file:line, the value and the remedy."""


class Entry(NamedTuple):
    """One request as its format's parser gives it.

    `time` is in the format's unit as written (an integer where a float would lose digits), from the session's start
    where the format knows no arrival times. The cached prefix is either given (`cached_tokens`) or follows from
    `blocks`, one opaque id per block of `block_tokens` tokens of the prompt. `failed` says why a row is never replayed.
    `delta`: the row holds only what is new in a turn; `input_tokens` is its whole prompt all the same.
    """

    line: int
    time: int | float
    input_tokens: int
    output_tokens: int | None = None
    cached_tokens: int = 0
    blocks: list[int | str] | None = None
    block_tokens: int = 0
    session: str = ""
    failed: str = ""
    delta: bool = False


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace. `time_s` counts from the trace's first row, or from the session's first call where the
    format knows no arrival times; `line` is its line in the file (its number in the session where a file is one
    session)."""

    time_s: float
    new_tokens: int
    cached_tokens: int
    session: str
    line: int
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What a reader found. `origin` is the first timestamp as written, which was subtracted; `unit` is the
    timestamps' unit; `tick_s` the resolution in which times were recorded; `gap_s` the typical distance of two distinct
    times; `tied_rows` the rows that share their time
    with another. `sessions` counts the sessions (None: no row names one); `delta_turns` the rows that hold only what is
    new in a turn of one. Without `has_arrival_times`, times count from the start of a session and `span_s` is the
    longest session. `complete` is false where reading stopped as soon as a slice was found."""

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
    sessions: int | None = None
    has_arrival_times: bool = True
    prefixes: str = "blocks"
    complete: bool = True
    origin_written: str = ""
    delta_turns: int = 0
    gap_s: float = 0.0

    @property
    def mean_rate_per_s(self) -> float | None:
        """Rows read per second of the trace; None where all rows share one time or none has an arrival time."""
        return self.rows_read / self.span_s if self.span_s > 0 and self.has_arrival_times else None

    def lines(self) -> list[str]:
        """The report as lines of text."""
        rate = self.mean_rate_per_s
        head = f"{self.path}: {self.format}, times in {self.unit}, {self.rows_read} rows"
        in_sessions = "" if self.sessions is None else f" in {self.sessions} sessions"
        if self.has_arrival_times:
            text = [
                f"{head}{in_sessions} over {self.span_s:.3f} s" + (f" ({rate:.3g} per s)" if rate is not None else ""),
                f"first timestamp {self.origin_written or self.origin} subtracted; {self.distinct_times} distinct "
                f"times, {self.tied_rows} rows share theirs with another",
            ]
        else:
            text = [f"{head}{in_sessions} without arrival times; the longest session lasts {self.span_s:.3f} s"]
        if self.delta_turns:
            text.append(
                f"{self.delta_turns} rows hold what is new in a turn: their prompt is all that came before in the "
                "session, answers with it, and then the row"
            )
        if not self.complete:
            text.append("read as far as the slice needs; `./heliograph trace` reads the whole file")
        hit = f"{100 * self.token_hit_rate:.1f} % of the input tokens are a cached prefix"
        text.append(
            {
                "blocks": f"{hit} (cache without eviction)",
                "recorded": f"{hit} (as recorded)",
                "none": "no prefix information: every token is new",
            }[self.prefixes]
        )
        text += [f"dropped {count} rows: {reason}" for reason, count in self.dropped.items()]
        return text + [f"warning: {warning}" for warning in self.warnings]


@dataclass(frozen=True, slots=True)
class Trace:
    """The rows of a trace in time order, and the report on them."""

    rows: list[TraceRow] = field(repr=False)
    report: TraceReport
