"""What `cost` and `link-budget` share on the terminal: notes, JSON, and refusals on stderr."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer
from rich.text import Text

from inputs.errors import printable
from outputs.terminal import Terminal, say


def refused(error: object) -> typer.Exit:
    """Says why on stderr; the caller raises the exit (status 2: the values given cannot be used)."""
    say(f"refused: {error}", err=True)
    return typer.Exit(2)


def print_notes(out: Terminal, notes: Sequence[str]) -> None:
    for note in notes:
        out.print(Text(printable(f"- {note}")))


def print_json(document: dict[str, Any]) -> None:
    """Prints with floats at nine digits: binary noise is no information, and the file stays comparable."""
    say(json.dumps(_rounded(document), indent=2, allow_nan=False))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 9)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
