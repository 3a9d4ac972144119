"""One pass over a trace: the rules that hold for every format, applied to what its parser yields.

* The first time is subtracted; times are in order (or, between sessions, brought into order); rows that failed or are
  longer than the context are dropped and counted, and do not enter the prefix cache.
* At least one token of a prompt is computed, however much of it is cached.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, Literal

from workloads.tenants import CONTEXT_LIMIT_TOKENS, TimeUnit
from workloads.traces import units
from workloads.traces.prefixes import PrefixCache, SessionNames
from workloads.traces.resolution import resolution
from workloads.traces.trace import Entry, Trace, TraceError, TraceReport, TraceRow

# A wrong unit moves the rate by 1,000; no public trace of one service is within that of these bounds.
_PLAUSIBLE_RATE_PER_S: Final = (0.01, 1_000.0)
#: The unit of formats that write dates; their entries' times are nanoseconds since 1970.
DATES: Final = "dates"
_GAPS_KEPT: Final = 65_536


@dataclass(frozen=True)
class Format:
    """One trace format. `entries` yields what a file holds and raises TraceError; `matches` recognises a file by its
    first bytes. `units_per_s`: of its times. `prefixes`: the cached prefix follows from block ids, is recorded, or is
    unknown. Without `arrival_times`, an entry's time counts from the start of its session, a session's entries stand
    together and in order, and its blocks are its own. `unit_is_open`: neither a column's name nor its values say what
    the times are in, so that another unit may be given."""

    name: str
    title: str
    unit: str
    units_per_s: float
    entries: Callable[[Path], Iterator[Entry]]
    matches: Callable[[bytes], bool]
    prefixes: Literal["blocks", "recorded", "none"] = "none"
    sessions: bool = False
    arrival_times: bool = True
    plausible_rate_per_s: tuple[float, float] = _PLAUSIBLE_RATE_PER_S
    unit_is_open: bool = False

    @property
    def units_per_written(self) -> float:
        """Units of an entry's time in the unit that is written: dates are written in seconds."""
        return self.units_per_s if self.unit == DATES else 1.0

    def written(self, time: int | float) -> str:
        """A time with its unit, or as the date it was."""
        if self.unit != DATES:
            return f"{time!r} {self.unit}"  # the shortest digits that are this time: 61.114, not 61.113999999999997
        seconds, nanoseconds = divmod(int(time), 10**9)
        return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}.{nanoseconds:09d}"


class TraceReading:
    """Iterate once for the rows that would be replayed; `report()` covers what was read until then."""

    def __init__(
        self,
        path: str | Path,
        form: Format,
        *,
        max_context_tokens: int = CONTEXT_LIMIT_TOKENS,
        time_unit: TimeUnit | None = None,
    ) -> None:
        """Raises TraceError for a `time_unit` where the format leaves none open; None: the format's, if it may be."""
        self.path, self.format, self.max_context_tokens = str(path), form, max_context_tokens
        self.unit_given = time_unit is not None
        if time_unit is not None:
            if form.unit_is_open:
                self.format = replace(form, unit=time_unit, units_per_s=units.PER_S[time_unit])
            else:
                raise TraceError(
                    path, None, f"time_unit {time_unit}: a {form.title} trace says itself what its times are; remove it"
                )
        self.complete = False
        self._origin: int | float = 0
        self._rows_read = self._rows_kept = self._tied = self._group = self._distinct = 0
        self._cached = self._context = self._deltas = 0
        self._span_s = 0.0
        self._dropped: Counter[str] = Counter()
        self._gaps_s, self._times, self._timed_rows = array("d"), array("d"), 0
        self._sessions = SessionNames()

    def __iter__(self) -> Iterator[TraceRow]:
        """Raises TraceError with file and line for anything outside the format, and for a trace without rows."""
        form, cache, session = self.format, PrefixCache(), ""
        for entry in form.entries(Path(self.path)):
            if not form.arrival_times and entry.session != session:
                cache, session = PrefixCache(), entry.session
            self._tally(entry)
            if entry.failed:
                self._dropped[entry.failed] += 1
                continue
            if entry.input_tokens > self.max_context_tokens:
                self._dropped[f"longer than {self.max_context_tokens} tokens"] += 1
                continue
            cached = entry.cached_tokens
            if entry.blocks is not None:
                hits = cache.leading_hits(entry.blocks)
                cache.add(entry.blocks[hits:])
                cached = hits * entry.block_tokens
            cached = min(cached, entry.input_tokens - 1)
            self._rows_kept += 1
            self._cached += cached
            self._context += entry.input_tokens
            time_s = (entry.time - self._origin) / form.units_per_s
            yield TraceRow(time_s, entry.input_tokens - cached, cached, entry.session, entry.line, entry.output_tokens)
        self.complete = True
        if not self._rows_read:
            raise TraceError(self.path, None, "the trace has no rows")
        self.refuse_unit()
        if not self._rows_kept:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self._dropped.items())
            raise TraceError(self.path, None, f"all {self._rows_read} rows are dropped ({reasons}); nothing to replay")

    def refuse_unit(self) -> None:
        """Raises TraceError where the times that were read can only be in another unit, and nobody said which."""
        if (
            not self.unit_given
            and self.format.arrival_times
            and (why := units.misread(self._timing(), self.format.unit))
        ):
            raise TraceError(self.path, None, why)

    def _timing(self) -> units.Timing:
        gap_s = statistics.median(self._gaps_s) if self._gaps_s else 0.0
        rows_per_time = self._rows_read / max(self._distinct, 1)
        return units.Timing(self._rows_read, self._span_s, gap_s, self._tick_s(), rows_per_time)

    def _tick_s(self) -> float:
        form = self.format
        return resolution(self._times, self._timed_rows) * form.units_per_written / form.units_per_s

    def _tally(self, entry: Entry) -> None:
        form = self.format
        self._rows_read += 1
        self._deltas += entry.delta
        if form.sessions and entry.session:
            self._sessions.add(entry.session)
        if not form.arrival_times:
            self._span_s = max(self._span_s, entry.time / form.units_per_s)
            return
        if self._rows_read == 1:
            self._origin = entry.time
            self._previous, self._distinct, self._group = entry.time, 1, 1
            self._times.append(0.0)
            self._timed_rows = 1
            return
        if entry.time < self._previous:
            raise TraceError(
                self.path,
                entry.line,
                f"timestamp {form.written(entry.time)} comes after {form.written(self._previous)} of the row before; "
                "sort the trace by time",
            )
        if entry.time > self._previous:
            if len(self._gaps_s) < _GAPS_KEPT:
                self._gaps_s.append((entry.time - self._previous) / form.units_per_s)
                self._times.append((entry.time - self._origin) / form.units_per_written)
                self._timed_rows = self._rows_read
            self._distinct += 1
            self._tied += self._group if self._group > 1 else 0
            self._group = 0
        self._group += 1
        self._previous = entry.time
        self._span_s = (entry.time - self._origin) / form.units_per_s

    def report(self) -> TraceReport:
        """What was read so far."""
        form = self.format
        return TraceReport(
            path=self.path,
            format=form.title,
            unit=form.unit,
            origin=float(self._origin),
            origin_written=form.written(self._origin),
            span_s=self._span_s,
            rows_read=self._rows_read,
            rows_kept=self._rows_kept,
            dropped=dict(self._dropped),
            distinct_times=self._distinct,
            tick_s=self._tick_s(),
            gap_s=statistics.median(self._gaps_s) if self._gaps_s else 0.0,
            tied_rows=self._tied + (self._group if self._group > 1 else 0),
            token_hit_rate=self._cached / self._context if self._context else math.nan,
            warnings=self._rate_warnings(),
            sessions=self._sessions.count if form.sessions and self._sessions.count else None,
            has_arrival_times=form.arrival_times,
            prefixes=form.prefixes,
            complete=self.complete,
            delta_turns=self._deltas,
        )

    def _rate_warnings(self) -> tuple[str, ...]:
        if self._span_s <= 0 or not self.format.arrival_times or self._rows_read < 2:
            return ()
        if not self.unit_given and (why := units.ambiguous(self._timing(), self.format.unit)):
            return (why,)
        low, high = self.format.plausible_rate_per_s
        rate = self._rows_read / self._span_s
        if low <= rate <= high:
            return ()
        return (
            f"{rate:.3g} requests per s over {self._span_s:.3g} s is implausible; are the timestamps really in "
            f"{self.format.unit}?",
        )


def read(path: str | Path, form: Format, *, max_context_tokens: int = CONTEXT_LIMIT_TOKENS) -> Trace:
    """The whole trace in memory. Raises TraceError."""
    reading = TraceReading(path, form, max_context_tokens=max_context_tokens)
    rows = list(reading)
    return Trace(rows, reading.report())
