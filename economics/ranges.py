"""Physical ranges: a value outside its range is refused, never clipped."""

from __future__ import annotations

import math

from inputs.errors import InputError, shown


class OutOfRange(InputError):
    """A value outside its physical range; the message names it, the range and the remedy."""


def in_range(
    name: str,
    value: float,
    low: float,
    high: float = math.inf,
    *,
    unit: str = "",
    why: str = "",
) -> float:
    """`value` when it is a number with `low <= value <= high`; raises `OutOfRange` otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
        raise OutOfRange(f"{name} = {shown(value)} is not a finite number; give a value in {unit or 'plain numbers'}")
    if not low <= value <= high:
        bound = f"from {low:g} to {high:g}" if math.isfinite(high) else f"at least {low:g}"
        reason = f" ({why})" if why else ""
        raise OutOfRange(
            f"{name} = {value:g}{_spaced(unit)} is out of range: it must be {bound}{_spaced(unit)}{reason}"
        )
    return value


def whole_in_range(name: str, value: int, low: int, high: float = math.inf, *, unit: str = "", why: str = "") -> int:
    """Like `in_range`, for a count."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise OutOfRange(f"{name} = {shown(value)} is not a whole number")
    in_range(name, value, low, high, unit=unit, why=why)
    return value


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _spaced(unit: str) -> str:
    return f" {unit}" if unit else ""
