"""A prefill timing model from measured prefills: rows of (new tokens, cached tokens, milliseconds) to t0, a, b, floor.

The model is that of `workloads.prefill`: T_ms = max(floor, t0 + a*n + b*n*(c + n/2)). It is linear in t0, a and b, so
that those are least squares with rows weighted by 1 / T: every row's *relative* error counts alike, a prefill of 20 ms
as much as one of 2 s. Coefficients below zero make no sense; of the fits with some coefficients at zero the best with
none below it is taken. The floor is found by trying: rows at or below a candidate say nothing about the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from inputs.errors import InputError, printable
from workloads.prefill import PrefillTiming
from workloads.prefill_samples import Sample

MIN_ROWS = 4
#: Rows up to this far above a floor count as lying on it: measurements scatter.
FLOOR_SCATTER = 1.02
MOST_FLOORS = 40
#: Beyond these relative errors a model says nothing of the prefills it was fitted to.
MOST_MEDIAN_ERROR, MOST_P95_ERROR = 0.10, 0.50
#: A row is no measurement of the same thing where the model is so many times below or above it.
MOST_FACTOR = 10.0

Array = NDArray[np.float64]


class FitError(InputError):
    """Measured prefills that cannot be fitted: says the file, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model and how far it is from the rows: relative errors as shares (0.05 is 5 %), and the worst row."""

    timing: PrefillTiming
    rows: int
    median_error: float
    p95_error: float
    max_error: float
    worst: Sample


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


def misfit(found: Fit, samples: Sequence[Sample]) -> str | None:
    """Which bound on the errors a model is beyond, so that it says nothing of the rows, and the row that is farthest
    from what the others say; None where it is within all bounds."""
    model_ms = np.array([1e3 * found.timing.duration_s(each.new_tokens, each.cached_tokens) for each in samples])
    factors = model_ms / [each.ms for each in samples]
    # one row of a thousandth draws the whole model down: it is known by the others' factor
    odd = samples[int(np.abs(np.log(factors / np.median(factors))).argmax())]
    row = f"the row farthest from the others has new {odd.new_tokens}, cached {odd.cached_tokens} and {odd.ms:g} ms"
    if found.median_error > MOST_MEDIAN_ERROR:
        return f"the model is {found.median_error:.2%} off at the median, over {MOST_MEDIAN_ERROR:.0%}; {row}"
    if found.p95_error > MOST_P95_ERROR:
        return f"the model is {found.p95_error:.2%} off at the 95th percentile, over {MOST_P95_ERROR:.0%}; {row}"
    if max(factors.max(), 1 / factors.min()) > MOST_FACTOR:
        return f"the model is over {MOST_FACTOR:g} times off in a row; {row}"
    return None


def errors(timing: PrefillTiming, samples: Iterable[Sample]) -> Array:
    """Relative error of each row, |model / measured - 1|."""
    return np.array(
        [abs(timing.duration_s(sample.new_tokens, sample.cached_tokens) * 1e3 / sample.ms - 1) for sample in samples]
    )


def timing_yaml(found: Fit, *, tp: int, source: str) -> str:
    """The text of a timing file that `prefill.timing` takes, its errors in a comment."""
    timing = found.timing
    return (
        f"# Fitted to {found.rows} prefills of {printable(source)}: relative error median {found.median_error:.2%}, "
        f"p95 {found.p95_error:.2%}, maximum {found.max_error:.2%}.\n"
        "# T_ms = max(floor_ms, t0_ms + a_ms_per_token*n + b_ms_per_token2*n*(c + n/2)); n new, c cached tokens\n"
        f"t0_ms: {_number(timing.t0_ms)}\n"
        f"a_ms_per_token: {_number(timing.a_ms_per_token)}\n"
        f"b_ms_per_token2: {_number(timing.b_ms_per_token2)}\n"
        f"floor_ms: {_number(timing.floor_ms)}\n"
        f"chunk_tokens: {timing.chunk_tokens}\n"
        f"tp: {tp}\n"
    )


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
