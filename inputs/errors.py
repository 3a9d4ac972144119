"""What is said of input that cannot be used: what, where, which value and the remedy, in one printable line."""

from __future__ import annotations

from typing import Any, TypeAlias

#: Where a value is in a file: keys and list indices, such as ("workload", "tenants", 0, "load").
KeyPath: TypeAlias = tuple[str | int, ...]

_LONGEST_VALUE, _LONGEST_KEY = 60, 60


class InputError(ValueError):
    """Input that cannot be used, each `lines` of it one printable line: `file:line: path: value: what; remedy`.

    Every error about something that a user wrote derives from it; a command that meets one ends with exit status 2.
    """

    def __init__(self, *lines: str) -> None:
        self.lines = tuple(printable(line) for line in lines)
        super().__init__("\n".join(self.lines))


def printable(text: str) -> str:
    """`text` on one line: line ends, control characters, direction marks and bytes of foreign file names escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def shown(value: Any) -> str:
    """A value as an error quotes it: cut short where it is long, whatever it is."""
    try:
        text = printable(repr(value))
    except (ValueError, RecursionError):  # an integer of more digits than Python prints
        return "(too long to print)"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def dotted(path: KeyPath) -> str:
    """A path as `--set` takes it."""
    return ".".join(_part(str(part)) for part in path)


def _part(text: str) -> str:
    return printable(text if len(text) <= _LONGEST_KEY else text[: _LONGEST_KEY - 3] + "...")


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte of a file name that is not UTF-8, as Python carries it
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
