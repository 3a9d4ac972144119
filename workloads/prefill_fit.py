"""A prefill timing model from measured prefills: rows of (new tokens, cached tokens, milliseconds) to t0, a, b, floor.

The model is that of `workloads.prefill`: T_ms = max(floor, t0 + a*n + b*n*(c + n/2)). It is linear in t0, a and b, so
that those are least squares with rows weighted by 1 / T: every row's *relative* error counts alike, a prefill of 20 ms
as much as one of 2 s. Coefficients below zero make no sense; of the fits with some coefficients at zero the best with
none below it is taken. The floor is found by trying: rows at or below a candidate say nothing about the line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from workloads.prefill import PrefillTiming

#: The header of a CSV of measured prefills.
COLUMNS = ("new", "cached", "ms")
MIN_ROWS = 4
#: Rows up to this far above a floor count as lying on it: measurements scatter.
FLOOR_SCATTER = 1.02
MOST_FLOORS = 40
#: Longer than any context; a count beyond it is a typing error.
MOST_TOKENS = 100_000_000

Array = NDArray[np.float64]


class FitError(ValueError):
    """A file of measured prefills that cannot be read or fitted: says the file, the line, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured prefill: `new_tokens` computed behind `cached_tokens` in `ms`."""

    new_tokens: int
    cached_tokens: int
    ms: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model and how far it is from the rows: relative errors as shares (0.05 is 5 %), and the worst row."""

    timing: PrefillTiming
    rows: int
    median_error: float
    p95_error: float
    max_error: float
    worst: Sample


def read_samples(path: Path) -> list[Sample]:
    """The rows of a CSV with the columns `new`, `cached` and `ms` in any order (others are ignored).

    Raises FitError with file and line for a file that cannot be read, a missing column, or a value that is no count of
    tokens or no time.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(_rows(path, file))
    except FileNotFoundError:
        raise FitError(f"{path}: no such file; give a CSV with the columns {', '.join(COLUMNS)}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FitError(f"{path}: cannot be read as CSV ({error})") from error


def fit(samples: Sequence[Sample], *, chunk_tokens: int = 2048, where: str = "the rows") -> Fit:
    """The model nearest to the rows; look at its errors before using it.

    `where` begins the message of a FitError: fewer than 4 rows, or rows in which the new tokens never change.
    """
    if len(samples) < MIN_ROWS:
        raise FitError(f"{where}: {len(samples)} measured prefills; a fit of t0, a, b and the floor takes {MIN_ROWS}")
    if len({sample.new_tokens for sample in samples}) < 2:
        raise FitError(
            f"{where}: every row has {samples[0].new_tokens} new tokens; measure at least two different counts"
        )
    terms, measured_ms = _terms(samples)
    best: tuple[float, Array, float] | None = None
    for floor_ms in _floors(measured_ms):
        above = measured_ms > floor_ms * FLOOR_SCATTER
        if np.count_nonzero(above) < 3:
            continue
        coefficients = _non_negative(terms[above], measured_ms[above])
        off = np.maximum(floor_ms, terms @ coefficients) / measured_ms - 1
        loss = float(off @ off)
        if best is None or loss < best[0] * (1 - 1e-9):
            best = loss, coefficients, floor_ms
    assert best is not None  # without a floor every row is above it
    _, (t0_ms, a, b), floor_ms = best
    timing = PrefillTiming(float(t0_ms), float(a), float(b), float(floor_ms), chunk_tokens)
    return _judge(timing, samples)


def errors(timing: PrefillTiming, samples: Iterable[Sample]) -> Array:
    """Relative error of each row, |model / measured - 1|."""
    return np.array(
        [abs(timing.duration_s(sample.new_tokens, sample.cached_tokens) * 1e3 / sample.ms - 1) for sample in samples]
    )


def timing_yaml(found: Fit, *, tp: int, source: str) -> str:
    """The text of a timing file that `prefill.timing` takes, its errors in a comment."""
    timing = found.timing
    return (
        f"# Fitted to {found.rows} prefills of {source}: relative error median {found.median_error:.2%}, "
        f"p95 {found.p95_error:.2%}, maximum {found.max_error:.2%}.\n"
        "# T_ms = max(floor_ms, t0_ms + a_ms_per_token*n + b_ms_per_token2*n*(c + n/2)); n new, c cached tokens\n"
        f"t0_ms: {_number(timing.t0_ms)}\n"
        f"a_ms_per_token: {_number(timing.a_ms_per_token)}\n"
        f"b_ms_per_token2: {_number(timing.b_ms_per_token2)}\n"
        f"floor_ms: {_number(timing.floor_ms)}\n"
        f"chunk_tokens: {timing.chunk_tokens}\n"
        f"tp: {tp}\n"
    )


def _rows(path: Path, file: TextIO) -> Iterator[Sample]:
    reader = csv.DictReader(file, skipinitialspace=True)
    names = [name.strip().lower() for name in reader.fieldnames or []]
    if missing := [name for name in COLUMNS if names.count(name) != 1]:
        raise FitError(
            f"{path}:1: the header {','.join(names)[:80]!r} needs the column {missing[0]!r} once; "
            f"the first line must name the columns {', '.join(COLUMNS)}"
        )
    reader.fieldnames = names
    for row in reader:
        at = f"{path}:{reader.line_num}"
        ms = _value(at, "ms", row["ms"])
        if not ms > 0:
            raise FitError(f"{at}: ms is {row['ms']!r}; a prefill takes more than 0 milliseconds")
        yield Sample(_count(at, "new", row["new"], least=1), _count(at, "cached", row["cached"], least=0), ms)


def _value(at: str, name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FitError(f"{at}: {name} is {text!r}; it must be a finite number")
    return value


def _count(at: str, name: str, text: str | None, *, least: int) -> int:
    value = _value(at, name, text)
    if value != int(value) or not least <= value <= MOST_TOKENS:
        raise FitError(f"{at}: {name} is {text!r}; it must be a whole number of tokens, at least {least}")
    return int(value)


def _terms(samples: Sequence[Sample]) -> tuple[Array, Array]:
    """What t0, a and b are multiplied with, one row for each sample; and the measured times."""
    new = np.array([sample.new_tokens for sample in samples], dtype=float)
    cached = np.array([sample.cached_tokens for sample in samples], dtype=float)
    terms = np.column_stack([np.ones_like(new), new, new * (cached + new / 2)])
    return terms, np.array([sample.ms for sample in samples])


def _floors(measured_ms: Array) -> Array:
    """Candidates for the floor: none, and times of the quickest half."""
    quickest = np.unique(measured_ms)[: max(1, len(measured_ms) // 2)]
    step = max(1, len(quickest) // MOST_FLOORS)
    return np.concatenate([[0.0], quickest[::step]])


def _non_negative(terms: Array, measured_ms: Array) -> Array:
    """The coefficients with the smallest relative squares, none below 0 and a (the time of a token) above it."""
    weighted, ones = terms / measured_ms[:, None], np.ones_like(measured_ms)
    scale = np.linalg.norm(weighted, axis=0)
    best: tuple[float, Array] | None = None
    for used in (subset for size in (3, 2, 1) for subset in combinations(range(3), size) if 1 in subset):
        columns = list(used)
        solution, *_ = np.linalg.lstsq(weighted[:, columns] / scale[columns], ones, rcond=None)
        found = np.zeros(3)
        found[columns] = solution / scale[columns]
        if (found < 0).any() or found[1] <= 0:
            continue
        off = weighted @ found - 1
        if best is None or off @ off < best[0]:
            best = float(off @ off), found
    assert best is not None  # a alone is a mean of positive numbers
    return best[1]


def _judge(timing: PrefillTiming, samples: Sequence[Sample]) -> Fit:
    off = errors(timing, samples)
    median, p95 = np.percentile(off, [50, 95])
    return Fit(timing, len(samples), float(median), float(p95), float(off.max()), samples[int(off.argmax())])


def _number(value: float) -> str:
    """YAML's notation of a float: 1.0e-06 is one, 1e-06 is text to YAML 1.1."""
    text = f"{value:.6g}"
    mantissa, separator, exponent = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}{separator}{exponent}"
