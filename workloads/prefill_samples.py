"""Measured prefills, read from a CSV: new tokens, cached tokens and a time, whose column is named by its unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from inputs.csv_file import CsvFile, number
from inputs.errors import shown
from inputs.text_file import TextError

TOKENS: Final = ("new", "cached")
#: Column of the time -> its milliseconds.
UNITS_MS: Final = {"ms": 1.0, "s": 1e3, "us": 1e-3}
#: The header of a CSV of measured prefills.
COLUMNS: Final = (*TOKENS, "ms")
#: Longer than any context; a count beyond it is a typing error.
MOST_TOKENS: Final = 100_000_000
#: ms of a new token: a million tokens a second is beyond any accelerator and model, ten are no service.
PLAUSIBLE_MS_PER_TOKEN: Final = (1e-3, 100.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured prefill: `new_tokens` computed behind `cached_tokens` in `ms`."""

    new_tokens: int
    cached_tokens: int
    ms: float


def read_samples(path: Path) -> list[Sample]:
    """The rows of a CSV with the columns `new`, `cached` and one of `ms`, `s` and `us`, in any order (others are
    ignored).

    Raises TextError with file and line for a file that cannot be read, a missing column, or a value that is no count
    of tokens or no time.
    """
    file = CsvFile(path)
    units = [unit for unit in UNITS_MS if file.place(unit) is not None]
    if len(units) > 1:
        raise TextError(path, file.line, f"the times stand in the columns {' and '.join(units)}; keep one")
    unit = units[0] if units else "ms"
    new, cached, time = file.places([*TOKENS, unit])
    found = []
    for line, cells in file:
        value = _value(path, line, unit, cells[time])
        if not value > 0:
            raise TextError(path, line, f"{unit} is {shown(cells[time])}; a prefill takes more than 0")
        found.append(
            Sample(
                _count(path, line, "new", cells[new], least=1),
                _count(path, line, "cached", cells[cached], least=0),
                value * UNITS_MS[unit],
            )
        )
    return found


def unit_doubt(samples: Sequence[Sample]) -> str | None:
    """Why the times cannot be in the unit that their column names; None where they can."""
    # where a prefill is long, its fixed part counts least
    longest = sorted(samples, key=lambda sample: sample.new_tokens)[len(samples) // 2 :]
    if not longest:
        return None
    ms = median(sample.ms / sample.new_tokens for sample in longest)
    low, high = PLAUSIBLE_MS_PER_TOKEN
    if low <= ms <= high:
        return None
    unit = "s" if ms < low else "us"
    how = "more than any machine computes" if ms < low else "less than any service"
    return (
        f"{ms:.3g} ms for a new token are {1e3 / ms:,.3g} tokens per s, {how}; are the times in {unit}? Name their "
        f"column {unit}"
    )


def _value(path: Path, line: int, name: str, text: str) -> float:
    value = number(text)
    if value is None or abs(value) == float("inf"):
        raise TextError(path, line, f"{name} is {shown(text)}; it must be a finite number, such as 1250 or 100.5")
    return value


def _count(path: Path, line: int, name: str, text: str, *, least: int) -> int:
    value = _value(path, line, name, text)
    if value != int(value) or not least <= value <= MOST_TOKENS:
        raise TextError(path, line, f"{name} is {shown(text)}; it must be a whole number of tokens, at least {least}")
    return int(value)
