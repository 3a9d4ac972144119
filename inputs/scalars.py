"""How a bare word is read as a value: the core schema of YAML 1.2, for files, `--set`, `--over` and every option.

What YAML 1.1 and 1.2 read as different numbers, or only one of them as a number, is refused with both ways out: `010`
is 8 or 10, `1:30` is 90 or text, `1_000` is 1000 or text. Words such as `yes` and `off`, and dates, are text.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from inputs.errors import shown

NULLS: Final = ("", "~", "null", "Null", "NULL")
BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

# A number of more characters is no quantity, and takes long to convert.
_LONGEST_NUMBER: Final = 100
_WHOLE: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_REAL: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# Numbers to some readers only.
_LEADING_ZERO: Final = re.compile(r"[-+]?0[0-9]+")
_BASED_ELSEWHERE: Final = re.compile(r"[-+]?0(?:[bB][01_]+|[oO][0-7_]+|[xX][0-9a-fA-F_]+)")
_SEXAGESIMAL: Final = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_UNDERSCORED: Final = re.compile(r"[-+]?(?:[0-9]|\.[0-9])[0-9_.eE+-]*")


class UnclearScalar(ValueError):
    """A bare word that is a number to one reader and something else to another, or a number that nothing can hold."""


def scalar(text: str) -> Any:
    """None, a boolean, an integer, a float or the text itself. Raises UnclearScalar."""
    if text in NULLS:
        return None
    if text in BOOLEANS:
        return BOOLEANS[text]
    if len(text) > _LONGEST_NUMBER:
        if _REAL.fullmatch(text) or _BASED_ELSEWHERE.fullmatch(text) or _UNDERSCORED.fullmatch(text):
            raise UnclearScalar(f"{shown(text)}: a number of {len(text)} characters; write it shorter, or quote it")
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if found := _NOT_FINITE.fullmatch(text):
        return math.nan if found[3] else -math.inf if found[1] == "-" else math.inf
    _refuse_unclear(text)
    return _real(text) if _REAL.fullmatch(text) else text


def boolean_meant(value: Any) -> str | None:
    """`true` or `false` where a text is a boolean of YAML 1.1, None where it is not."""
    word = value.lower() if isinstance(value, str) else ""
    return "true" if word in ("yes", "on", "y") else "false" if word in ("no", "off", "n") else None


def whole_number(text: str) -> int:
    """An option's value that is a whole number. Raises UnclearScalar."""
    value = scalar(text.strip())
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnclearScalar(f"{shown(text)} is no whole number")
    return value


def number(text: str) -> float:
    """An option's value that is a finite number. Raises UnclearScalar."""
    value = scalar(text.strip())
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UnclearScalar(f"{shown(text)} is no finite number")
    return value


def _real(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise UnclearScalar(f"{text}: larger than any number a computer holds; write a smaller one")
    if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise UnclearScalar(f"{text}: smaller than any number a computer holds; write 0, or a larger one")
    return value


def _refuse_unclear(text: str) -> None:
    """Raises UnclearScalar for a number that not everybody reads as the same one."""
    sign, bare = (text[0], text[1:]) if text[:1] in "+-" else ("", text)
    sign = sign.strip("+")
    if _LEADING_ZERO.fullmatch(text):
        decimal = bare.lstrip("0") or "0"
        octal = f", 0o{decimal} for octal" if not sign and set(decimal) <= set("01234567") and decimal != "0" else ""
        raise UnclearScalar(
            f"{text}: a leading zero makes it octal to some; write {sign}{decimal}{octal}, {_text(text)}"
        )
    if _BASED_ELSEWHERE.fullmatch(text):
        digits = bare[2:].replace("_", "")
        value = (
            f"write {sign}{int(digits, {'b': 2, 'o': 8, 'x': 16}[bare[1].lower()])}, " if digits else "write a number, "
        )
        raise UnclearScalar(f"{text}: a number to some readers and text to others; {value}{_text(text)}")
    if _SEXAGESIMAL.fullmatch(text):
        raise UnclearScalar(
            f"{text}: base 60 to some readers ({sign}{_sexagesimal(bare)}) and text to others; "
            f"write {sign}{_sexagesimal(bare)}, {_text(text)}"
        )
    plain = text.replace("_", "")
    if plain != text and _UNDERSCORED.fullmatch(text) and _REAL.fullmatch(plain):
        raise UnclearScalar(f"{text}: a number to some readers and text to others; write {plain}, {_text(text)}")


def _text(text: str) -> str:
    return f"or '{text}' in quotes for text"


def _sexagesimal(bare: str) -> str:
    """The value in decimal, exactly as base 60 gives it."""
    whole, point, fraction = bare.replace("_", "").partition(".")
    value = 0
    for digits in whole.split(":"):
        value = value * 60 + int(digits)
    return f"{value}{point if fraction else ''}{fraction}"
