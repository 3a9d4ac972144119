"""The reference of the command line, from the commands themselves: `python -m commands.reference` rewrites
docs/reference/command-line.md. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "reference" / "command-line.md"
BEGIN, END = "<!-- generated: python -m commands.reference -->", "<!-- end of the generated part -->"


def sections() -> str:
    """A section for each command: what it does, how it is called, its arguments and options."""
    from cli import app

    group: Any = typer.main.get_command(app)
    return "\n".join(line for name, command in group.commands.items() for line in _section(name, command))


def updated(document: str) -> str:
    """A document with its generated part made anew. Raises ValueError where the marks are missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT} has no {BEGIN} ... {END}: put both lines where the commands belong")
    return f"{before}{BEGIN}\n\n{sections()}\n{END}{after}"


def _section(name: str, command: Any) -> Iterator[str]:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in shown if parameter.param_type_name == "argument"]
    places = [_place(argument) for argument in arguments]
    yield from (f"### {name}", "", " ".join((command.help or "").split()), "")
    yield from ("```", " ".join(["./heliograph", name, *places, "[OPTIONS]"]), "```", "")
    rows = [f"| `{_place(argument)}` | {_help(argument)} |  |" for argument in arguments]
    rows += [
        f"| {_names(option)} | {_help(option)} | {_default(option)} |" for option in shown if option not in arguments
    ]
    yield from ("| argument, option | meaning | default |", "|---|---|---|", *rows, "")
    yield from (f"Example: `{command.epilog.removeprefix('Example: ')}`", "")


def _place(argument: Any) -> str:
    word = str(argument.metavar or argument.name).strip("{}[]").upper().replace("_", "-")
    word = f"{word}..." if argument.nargs == -1 else word
    return word if argument.required else f"[{word}]"


def _names(option: Any) -> str:
    """`--seed SEED`; a switch has no value."""
    value = "" if option.is_flag else f" {option.metavar or option.name.upper().replace('_', '-')}"
    return ", ".join(f"`{name}{value}`" for name in option.opts)


def _help(parameter: Any) -> str:
    return " ".join((parameter.help or "").split()).replace("|", "\\|")


def _default(option: Any) -> str:
    value = option.default
    empty = value is None or callable(value) or value in ("", False, (), [])
    return "" if empty else f"`{value}`"


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    print(DOCUMENT)
