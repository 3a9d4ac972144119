"""An experiment file as data that knows its lines, and the overrides laid over it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from experiments.schema.errors import Issue, SpecError, SpecPath, closest, dotted


class _Loader(yaml.SafeLoader):
    """YAML 1.1 with the floats of YAML 1.2: PyYAML reads 1e-4 as a string."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass
class Source:
    """The data of a spec, the line of each of its paths, and the `--set` text of each overridden path."""

    path: Path
    data: dict[str, Any]
    lines: dict[SpecPath, int]
    overrides: dict[SpecPath, str] = field(default_factory=dict)

    def error(self, issues: Sequence[Issue]) -> SpecError:
        """The issues as one error, each with the place it was written at."""
        return SpecError(
            f"{self._place(issue.path)}: {dotted(issue.path) or 'the file'}: {issue.text}" for issue in issues
        )

    def overridden(self, path: SpecPath) -> bool:
        """Whether the value at `path` comes from an override, of itself or of something it is part of."""
        return any(path[: len(prefix)] == prefix for prefix in self.overrides)

    def override(self, text: str) -> None:
        """Lay `path.to.key=value` over the data; the value is YAML. Raises SpecError where the path leads nowhere."""
        key, separator, value_text = text.partition("=")
        if not separator or not key.strip():
            raise SpecError([f"--set {text}: no assignment; write path.to.key=value, as in workload.window_s=30"])
        try:
            value = yaml.load(value_text, _Loader)
        except yaml.YAMLError as error:
            raise SpecError([f"--set {text}: the value is not YAML ({_problem(error)}); quote it"]) from error
        path: list[str | int] = []
        target: Any = self.data
        parts = key.strip().split(".")
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            step: str | int = part
            if isinstance(target, list):
                if not part.isdecimal() or int(part) >= len(target):
                    raise SpecError(
                        [
                            f"--set {text}: {dotted(tuple(path))} is a list of {len(target)}; {part!r} is no index "
                            f"(0 to {len(target) - 1})"
                        ]
                    )
                step = int(part)
            elif not isinstance(target, dict):
                raise SpecError([f"--set {text}: {dotted(tuple(path))} is {target!r}, which has no key {part!r}"])
            path.append(step)
            if last:
                target[step] = value
            elif isinstance(target, dict) and target.get(part) is None:
                target[part] = {}
                target = target[part]
            else:
                target = target[step]
        # What an earlier override put below this path is gone with it.
        done = tuple(path)
        self.overrides = {old: said for old, said in self.overrides.items() if old[: len(done)] != done}
        self.overrides[done] = text
        # and so are the lines of what the file had there
        self.lines = {old: line for old, line in self.lines.items() if old[: len(done)] != done}

    def _place(self, path: SpecPath) -> str:
        for length in range(len(path), -1, -1):
            if path[:length] in self.overrides:
                return f"--set {self.overrides[path[:length]]}"
            if path[:length] in self.lines:
                return f"{self.path}:{self.lines[path[:length]]}"
        return str(self.path)


def read(path: str | Path) -> Source:
    """Read a spec file. Raises SpecError where it cannot be read, is not YAML, repeats a key or is no mapping."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = closest(path.name, (other.name for other in path.parent.glob("*.yaml"))) if path.parent.is_dir() else ""
        raise SpecError([f"{path}: no such experiment file{near}"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError([f"{path}: cannot be read ({error})"]) from error
    try:
        loader = _Loader(text)
    except yaml.YAMLError as error:  # a character that no YAML file may hold
        raise SpecError([f"{path}: not YAML: {error}"]) from error
    try:
        node = loader.get_single_node()
        lines: dict[SpecPath, int] = {}
        if node is not None:
            _walk(path, node, (), lines, ())
        data = loader.construct_document(node) if node is not None else None
    except yaml.YAMLError as error:
        raise SpecError([f"{path}{_line(error)}: not YAML: {_problem(error)}"]) from error
    finally:
        loader.dispose()
    if not isinstance(data, dict):
        raise SpecError(
            [f"{path}: an experiment is a mapping of keys (name, cluster, model, ...), this is {data!r:.60}"]
        )
    return Source(path, data, lines)


def _walk(path: Path, node: yaml.Node, at: SpecPath, lines: dict[SpecPath, int], above: tuple[int, ...]) -> None:
    """Note the line of each key and item; refuse a repeated key, which YAML would let the last one win."""
    lines.setdefault(at, node.start_mark.line + 1)
    if id(node) in above:
        raise SpecError(
            [f"{path}:{node.start_mark.line + 1}: {dotted(at)}: an alias that contains itself; write it out"]
        )
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            _walk(path, item, (*at, i), lines, (*above, id(node)))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*at, str(key.value))
            line = key.start_mark.line + 1
            if below in lines and key.value != "<<":
                raise SpecError(
                    [f"{path}:{line}: {dotted(below)}: given twice, first in line {lines[below]}; keep one"]
                )
            lines[below] = line
            _walk(path, value, below, lines, (*above, id(node)))


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error)


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark is not None else ""
