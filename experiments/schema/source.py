"""An experiment file as data that knows its lines, and the overrides laid over it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.schema.errors import Issue, SpecError, closest
from inputs import yaml_file
from inputs.errors import InputError, KeyPath, dotted, shown
from inputs.yaml_file import YamlError


@dataclass
class Source:
    """The data of a spec, the line of each of its paths, and what laid each overridden path (`--set ...`)."""

    path: Path
    data: dict[str, Any]
    lines: Mapping[KeyPath, int]
    overrides: dict[KeyPath, str] = field(default_factory=dict)

    def error(self, issues: Sequence[Issue]) -> SpecError:
        """The issues as one error, each with the place it was written at."""
        return SpecError(
            f"{self._place(issue.path)}: {dotted(issue.path) or 'the file'}: {issue.text}" for issue in issues
        )

    def overridden(self, path: KeyPath) -> bool:
        """Whether the value at `path` comes from an override, of itself or of something it is part of."""
        return any(path[: len(prefix)] == prefix for prefix in self.overrides)

    def override(self, text: str, option: str = "--set") -> None:
        """Lay `path.to.key=value` over the data; the value is YAML, given by an `option`. Raises SpecError where the
        path leads nowhere."""
        key, separator, value_text = text.partition("=")
        if not separator or not key.strip():
            raise SpecError([f"{option} {text}: no assignment; write path.to.key=value, as in workload.window_s=30"])
        self.lay(key.strip(), value_of(value_text, f"{option} {text}", key.strip()), f"{option} {text}")

    def lay(self, key: str, value: Any, said: str) -> None:
        """Lay a value at `path.to.key`; `said` names the option that gave it. Raises SpecError where the path leads
        nowhere."""
        path: list[str | int] = []
        target: Any = self.data
        parts = key.split(".")
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            step: str | int = part
            if isinstance(target, list):
                index = int(part) if part.isascii() and part.isdecimal() and len(part) < 10 else len(target)
                if index >= len(target):
                    raise SpecError(
                        [
                            f"{said}: {dotted(tuple(path))} is a list of {len(target)}; {shown(part)} is no index "
                            f"(0 to {len(target) - 1})"
                        ]
                    )
                step = index
            elif not isinstance(target, dict):
                raise SpecError([f"{said}: {dotted(tuple(path))} is {shown(target)}, which has no key {shown(part)}"])
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
        self.overrides = {old: by for old, by in self.overrides.items() if old[: len(done)] != done}
        self.overrides[done] = said
        # and so are the lines of what the file had there
        self.lines = {old: line for old, line in self.lines.items() if old[: len(done)] != done}

    def _place(self, path: KeyPath) -> str:
        for length in range(len(path), -1, -1):
            if path[:length] in self.overrides:
                return self.overrides[path[:length]]
            if path[:length] in self.lines:
                return f"{self.path}:{self.lines[path[:length]]}"
        return str(self.path)


def value_of(text: str, said: str, key: str) -> Any:
    """The value that an option gives for a key, read as a file is. Raises SpecError."""
    try:
        return yaml_file.parse(text, said, tuple(key.split(".")))
    except YamlError as error:
        if error.is_syntax:
            raise SpecError([f"{said}: the value is {error.problem}; quote it"]) from None
        raise SpecError(error.lines) from None


def read(path: str | Path) -> Source:
    """Read a spec file. Raises SpecError where it cannot be read, is not YAML, repeats a key or is no mapping."""
    path = Path(path)
    if not os.path.lexists(path):
        folder = path.parent
        near = closest(path.name, (each.name for each in folder.glob("*.yaml"))) if os.path.isdir(folder) else ""
        raise SpecError([f"{path}: no such experiment file{near}"])
    try:
        found = yaml_file.read(path)
    except InputError as error:
        raise SpecError(error.lines) from None
    if not isinstance(found.data, dict):
        raise SpecError(
            [f"{path}: an experiment is a mapping of keys (name, cluster, model, ...), this is {shown(found.data)}"]
        )
    return Source(path, found.data, found.lines)
