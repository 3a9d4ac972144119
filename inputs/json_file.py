"""Every JSON file and line that Heliograph reads: artifacts, grids, logs. Whatever is wrong becomes one line.

Refused are NaN and infinities (JSON has neither), numbers that nothing can hold, a key given twice, half a surrogate
pair, and more than `MOST_BYTES` or `MOST_DEPTH`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, Final, NoReturn

from inputs.errors import InputError, shown
from inputs.whole_file import read_text

MOST_BYTES: Final = 64 << 20
MOST_DEPTH: Final = 64
_LONGEST_NUMBER: Final = 100


class JsonError(InputError):
    """Text that is no JSON of ours: where, what is wrong."""

    def __init__(self, where: str, problem: str, line: int | None = None) -> None:
        self.problem, self.line = problem, line
        super().__init__(f"{where}:{line}: {problem}" if line is not None else f"{where}: {problem}")


def read(path: Path) -> Any:
    """The value that a file holds. Raises Unreadable and JsonError."""
    return parse(read_text(path, MOST_BYTES), str(path))


def read_mapping(path: Path) -> dict[str, Any]:
    """The object that a file holds. Raises Unreadable and JsonError."""
    found = read(path)
    if not isinstance(found, dict):
        raise JsonError(str(path), f"expected keys and values, found {shown(found)}")
    return found


def parse(text: str, where: str, first_line: int = 1) -> Any:
    """The value of a text that came from `where`, beginning in line `first_line`. Raises JsonError."""
    try:
        value = json.loads(
            text,
            parse_constant=_no_constant,
            parse_float=_float,
            parse_int=_int,
            object_pairs_hook=_object,
        )
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise JsonError(where, f"not JSON ({error.msg} at column {error.colno})", line) from None
    except RecursionError:
        raise JsonError(where, f"nested more than {MOST_DEPTH} deep") from None
    except _Refused as error:
        raise JsonError(where, str(error)) from None
    _check(value, where, surrogates="\\ud" in text.lower())
    return value


class _Refused(ValueError):
    pass


def _no_constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is no JSON number; what is undefined is null")


def _float(text: str) -> float:
    value = float(text) if len(text) <= 10 * _LONGEST_NUMBER else math.inf
    if math.isinf(value):
        raise _Refused(f"{shown(text)}: larger than any number a computer holds")
    return value


def _int(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise _Refused(f"{shown(text)}: a number of {len(text)} digits")
    return int(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _Refused(f"key {shown(twice)} is given twice; keep one")
    return found


def _check(value: Any, where: str, *, surrogates: bool) -> None:
    """Refuse what is nested too deep or, where the text could hold them, strings that cannot be written again."""
    level, depth = [value], 0
    while level:
        if depth >= MOST_DEPTH and any(isinstance(each, dict | list) for each in level):
            raise JsonError(where, f"nested more than {MOST_DEPTH} deep")
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
                texts: list[Any] = list(each)
            elif isinstance(each, list):
                below += each
                texts = []
            else:
                texts = [each]
            if surrogates and any(isinstance(text, str) and not _whole(text) for text in texts):
                raise JsonError(where, "half of a surrogate pair, which is no character")
        level, depth = below, depth + 1


def _whole(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
