"""Printing: a console of a sane width, notes, JSON, and refusals on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console

WIDTH_OF_A_PIPE = 100


def refused(error: object) -> typer.Exit:
    """Says why on stderr; the caller raises the exit (status 2: the values given cannot be used)."""
    typer.echo(f"refused: {error}", err=True)
    return typer.Exit(2)


def console() -> Console:
    # A pipe has no width; 80 columns would break every cell of the table.
    return Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_PIPE)


def print_notes(out: Console, notes: Sequence[str]) -> None:
    for note in notes:
        out.print(f"- {note}", highlight=False, markup=False)


def print_json(document: dict[str, Any]) -> None:
    """Prints with floats at nine digits: binary noise is no information, and the file stays comparable."""
    typer.echo(json.dumps(_rounded(document), indent=2, allow_nan=False))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 9)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
