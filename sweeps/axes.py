"""The axes of a grid: `key=a,b,c` of the command line, and every combination of their values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

#: One combination: (key, value as text) of each axis, in the axes' order.
Point: TypeAlias = tuple[tuple[str, str], ...]

_OPENING, _CLOSING = "[{(", "]})"


class SweepError(ValueError):
    """A grid that cannot be run; the message says what, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A key of the experiment and the values it takes, each as YAML text. `*` in the key stands for every item of a
    list: `workload.tenants.*.load` is the load of every tenant."""

    key: str
    values: tuple[str, ...]


def parse_axis(text: str) -> Axis:
    """`key=a,b,c`; commas within brackets do not separate. Raises SweepError."""
    key, equals, values = text.partition("=")
    key = key.strip()
    if not key or not equals:
        raise SweepError(f"--over {text}: expected key=a,b,c, such as transfer=pull,layerwise")
    found = tuple(value.strip() for value in _split(values))
    if any(not value for value in found):
        raise SweepError(f"--over {text}: an empty value; write every value out, null for none")
    if repeated := sorted({value for value in found if found.count(value) > 1}):
        raise SweepError(f"--over {text}: {', '.join(repeated)} is given twice; keep one")
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


def _split(text: str) -> Iterable[str]:
    depth, start = 0, 0
    for i, character in enumerate(text):
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    yield text[start:]
