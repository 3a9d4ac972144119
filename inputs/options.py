"""Options that are numbers, read as files read them: `--seed 010` is refused, neither 8 nor 10."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

from inputs.scalars import UnclearScalar, number, whole_number

N = TypeVar("N", int, float)


def whole(low: int | None = None, high: int | None = None) -> Callable[[str | int], int]:
    """The parser of an option that is a whole number from `low` to `high`."""

    def parsed(value: str | int) -> int:
        found = value if isinstance(value, int) else _read(whole_number, value)  # a default is an int already
        if low is not None and found < low:
            raise typer.BadParameter(f"{value}: give at least {low}")
        if high is not None and found > high:
            raise typer.BadParameter(f"{value}: give at most {high}")
        return found

    return parsed


def finite(value: str | float) -> float:
    """The parser of an option that is a finite number."""
    return value if isinstance(value, int | float) else _read(number, value)


def _read(reader: Callable[[str], N], text: str) -> N:
    try:
        return reader(text)
    except UnclearScalar as error:
        raise typer.BadParameter(str(error)) from None
