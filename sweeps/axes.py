"""The axes of a grid: `key=a,b,c` of the command line, and every combination of their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from inputs import yaml_file
from inputs.errors import InputError
from inputs.yaml_file import YamlError

#: One combination: (key, value as text) of each axis, in the axes' order.
Point: TypeAlias = tuple[tuple[str, str], ...]

_OPENING, _CLOSING = "[{(", "]})"


class SweepError(InputError):
    """A grid that cannot be run; the message says what, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A key of the experiment and the values it takes, each as the YAML that any spelling of it becomes: `0.50` is 0.5,
    `5.0` is 5. `*` in the key stands for every item of a list: `workload.tenants.*.load` is the load of every tenant.
    """

    key: str
    values: tuple[str, ...]


def parse_axis(text: str) -> Axis:
    """`key=a,b,c`; commas within brackets or quotes do not separate. Raises SweepError."""
    key, equals, values = text.partition("=")
    key = key.strip()
    if not key or not equals:
        raise SweepError(f"--over {text}: expected key=a,b,c, such as transfer=pull,layerwise")
    written = [value.strip() for value in _split(text, values)]
    if any(not value for value in written):
        raise SweepError(f"--over {text}: an empty value; write every value out, null for none")
    found = tuple(_canonical(text, key, value) for value in written)
    if repeated := sorted({value for value in found if found.count(value) > 1}):
        spelt = ", ".join(each for each, value in zip(written, found, strict=True) if value == repeated[0])
        raise SweepError(f"--over {text}: {repeated[0]} is given twice ({spelt}); keep one")
    if key == "seeds" or key.startswith("seeds."):
        raise SweepError(f"--over {text}: each seed is a cell of its own already; give them with --set seeds=[1,2,3]")
    if key == "fabrics" or key == "name":
        raise SweepError(f"--over {text}: every fabric of the file is a cell of its own; put them all into the file")
    return Axis(key, found)


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """Every `--over`. Raises SweepError for an axis given twice too."""
    axes = [parse_axis(text) for text in texts]
    keys = [axis.key for axis in axes]
    if repeated := sorted({key for key in keys if keys.count(key) > 1}):
        raise SweepError(f"--over {repeated[0]} is given twice: put all its values into one, {repeated[0]}=a,b,c")
    return axes


def points(axes: Sequence[Axis]) -> list[Point]:
    """Every combination, the last axis fastest; one empty point where there is no axis."""
    return [
        tuple(zip((axis.key for axis in axes), values, strict=True))
        for values in itertools.product(*(axis.values for axis in axes))
    ]


def overrides(point: Point, data: Any) -> list[str]:
    """The point as overrides of the experiment with this plain data. Raises SweepError where `*` meets no list."""
    return [f"{key}={value}" for pattern, value in point for key in expand(pattern, data)]


def expand(pattern: str, data: Any) -> list[str]:
    """The keys that a pattern with `*` stands for."""
    keys: list[tuple[list[str], Any]] = [([], data)]
    for part in pattern.split("."):
        below: list[tuple[list[str], Any]] = []
        for path, node in keys:
            if part != "*":
                child = node.get(part) if isinstance(node, dict) else _item(node, part)
                below.append(([*path, part], child))
            elif isinstance(node, list) and node:
                below += [([*path, str(i)], item) for i, item in enumerate(node)]
            else:
                raise SweepError(
                    f"--over {pattern}: '*' stands for the items of a list, and {'.'.join(path) or 'the file'} is none "
                    "in this experiment"
                )
        keys = below
    return [".".join(path) for path, _ in keys]


def _item(node: Any, part: str) -> Any:
    return node[int(part)] if isinstance(node, list) and part.isdigit() and int(part) < len(node) else None


def _canonical(over: str, key: str, text: str) -> str:
    """What every spelling of a value becomes; read again, it is that value."""
    try:
        value = yaml_file.parse(text, f"--over {over}", (key,))
    except YamlError as error:
        said = f"--over {over}: {text} is {error.problem}; quote it" if error.is_syntax else str(error)
        raise SweepError(said) from None
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return repr(value) if isinstance(value, float) and math.isfinite(value) else yaml_file.dump_line(value)


def _split(over: str, text: str) -> Iterator[str]:
    depth, start, quote = 0, 0, ""
    begins = True  # a quote is one where a value or an item begins; in it's it is a letter
    escaped = False
    for i, character in enumerate(text):
        if quote:
            if escaped or (quote == '"' and character == "\\"):
                escaped = not escaped
            elif character == quote:  # doubled inside single quotes: closed, and opened again by the next one
                quote, begins = "", quote == "'" and text[i + 1 : i + 2] == "'"
        elif character in "'\"" and begins:
            quote = character
        elif character in _OPENING:
            depth, begins = depth + 1, True
        elif character in _CLOSING:
            depth, begins = depth - 1, False
        elif character == "," and depth == 0:
            yield text[start:i]
            start, begins = i + 1, True
        elif not character.isspace():
            begins = character in ",:"
    if quote:
        raise SweepError(f"--over {over}: a quote is opened and never closed; close it, or leave it out")
    yield text[start:]
