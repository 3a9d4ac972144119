"""Every YAML file and value that Heliograph reads: YAML 1.2's data, keys as text, and the line of each value.

Not read are aliases and anchors (a kilobyte of them becomes gigabytes), merge keys, tags, a key given twice and a
second document; size, depth and the number of values are bounded. Whatever the parser raises becomes one line with its
place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from inputs.errors import InputError, KeyPath, dotted, printable, shown
from inputs.scalars import UnclearScalar, scalar
from inputs.whole_file import read_text

MOST_BYTES: Final = 1 << 20
MOST_DEPTH: Final = 64
MOST_VALUES: Final = 50_000


class YamlError(InputError):
    """Text that is no YAML of ours: the place and path as far as they are known, and `problem`, which says why;
    `is_syntax`: the parser's, and so without a path."""

    def __init__(
        self, where: str, problem: str, at: KeyPath = (), line: int | None = None, *, is_syntax: bool = False
    ) -> None:
        self.problem, self.is_syntax = problem, is_syntax
        place = f"{where}:{line}" if line is not None else where
        super().__init__(": ".join(part for part in (place, dotted(at), problem) if part))


@dataclass(frozen=True, slots=True)
class YamlFile:
    """The data of a file and the line that each of its paths begins in."""

    path: Path
    data: Any
    lines: Mapping[KeyPath, int]

    def place(self, at: KeyPath) -> str:
        """`file:line` of a path, or of the nearest one above it that the file has."""
        for length in range(len(at), -1, -1):
            if at[:length] in self.lines:
                return f"{self.path}:{self.lines[at[:length]]}"
        return str(self.path)


def read(path: Path, words: Callable[[str], Any] = scalar) -> YamlFile:
    """Read a file; `words` makes a value of a bare word (`str` keeps numbers as they are printed). Raises Unreadable
    and YamlError."""
    text = read_text(path, MOST_BYTES)
    build = _Build(str(path), words=words)
    build.run(text, lines=True)
    return YamlFile(path, build.data, build.lines)


def parse(text: str, where: str, at: KeyPath = ()) -> Any:
    """The data of a text that came from `where`, to be laid at a path. Raises YamlError."""
    build = _Build(where, at)
    if len(text) > MOST_BYTES:
        build.refuse(f"longer than {MOST_BYTES >> 20} MiB")
    build.run(text, lines=False)
    return build.data


def dump(value: Any, *, sort_keys: bool = False) -> str:
    """Plain data as YAML that this reader, and one of YAML 1.1, reads back as it is."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=sort_keys, allow_unicode=True, width=120)


def dump_line(value: Any) -> str:
    """Plain data as YAML on one line."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=MOST_BYTES, default_flow_style=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


class _Build:
    """The data of a stream of parser events. Nothing is built twice, and nothing recurses."""

    def __init__(self, where: str, at: KeyPath = (), words: Callable[[str], Any] = scalar) -> None:
        self.where = where
        self._words = words
        self.data: Any = None
        self.lines: dict[KeyPath, int] = {}
        self._at = list(at)
        self._above: list[_Collection] = []
        self._values = self._documents = 0
        self._line: int | None = None

    def refuse(self, problem: str) -> NoReturn:
        raise YamlError(self.where, problem, tuple(self._at), self._line)

    def _no_yaml(self, problem: str, line: int | None) -> NoReturn:
        raise YamlError(self.where, f"not YAML ({problem})", (), line, is_syntax=True)

    def run(self, text: str, *, lines: bool) -> None:
        """Take every event. The lines of values are told where a file has them."""
        try:
            for event in yaml.parse(text, Loader=yaml.SafeLoader):
                mark = event.start_mark if lines else None
                self._line = None if mark is None else mark.line + 1
                self._take(event)
        except yaml.YAMLError as error:
            self._no_yaml(_problem(error), _line(error, text) if lines else None)
        except YamlError:
            raise
        except (ValueError, OverflowError) as error:  # an escape beyond the last character there is
            self._no_yaml(printable(str(error)), self._line)

    def _take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self.refuse("a second document begins here; keep one")
        elif isinstance(event, yaml.AliasEvent):
            self.refuse(f"an alias (*{_name(event)}); aliases are not read, write the value out")
        elif isinstance(event, yaml.NodeEvent):
            if event.anchor is not None:
                self.refuse(f"an anchor (&{_name(event)}); aliases are not read, write the value out where it is used")
            if getattr(event, "tag", None) is not None:
                self.refuse(f"a tag ({shown(getattr(event, 'tag', None))}); tags are not read, remove it")
            if isinstance(event, yaml.ScalarEvent):
                self._scalar(event)
            else:
                self._collection({} if isinstance(event, yaml.MappingStartEvent) else [])
        elif isinstance(event, yaml.CollectionEndEvent):
            self._above.pop()
            if self._above:
                self._at.pop()

    def _collection(self, made: dict[str, Any] | list[Any]) -> None:
        above = self._above[-1] if self._above else None
        if above is not None and above.wants_key:
            self.refuse("a key that is a list or a mapping; keys are text")
        if len(self._above) >= MOST_DEPTH:
            self._at = self._at[:3]
            self.refuse(f"nested more than {MOST_DEPTH} deep")
        self._begin()
        self._put(made)
        self._above.append(_Collection(made))

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        text: str = event.value
        if any("\ud800" <= character <= "\udfff" for character in text):
            self.refuse("half of a surrogate pair, which is no character")
        if self._above and self._above[-1].wants_key:
            self._key(text, plain=event.implicit[0])
            return
        self._begin()
        try:
            value = self._words(text) if event.implicit[0] else text
        except UnclearScalar as error:
            self.refuse(printable(str(error)))
        self._put(value)
        if self._above:
            self._at.pop()

    def _key(self, text: str, *, plain: bool) -> None:
        above = self._above[-1]
        if plain and text == "<<":
            self.refuse("a merge key (<<); they are not read, write the keys out")
        self._at.append(text)
        if text in above.value:
            first = self.lines.get(tuple(self._at))
            self.refuse(f"given twice{f', first in line {first}' if first else ''}; keep one")
        if self._line is not None:
            self.lines[tuple(self._at)] = self._line
        above.key = text

    def _begin(self) -> None:
        """A value begins: its place is what `_at` says until it has ended."""
        self._values += 1
        if self._values > MOST_VALUES:
            self._at = []
            self.refuse(f"more than {MOST_VALUES} values; is it the right file?")
        above = self._above[-1] if self._above else None
        if above is not None and isinstance(above.value, list):
            self._at.append(len(above.value))
        if self._line is not None:
            self.lines.setdefault(tuple(self._at), self._line)

    def _put(self, value: Any) -> None:
        if not self._above:
            self.data = value
            return
        above = self._above[-1]
        if isinstance(above.value, list):
            above.value.append(value)
        else:
            assert above.key is not None
            above.value[above.key] = value
            above.key = None


class _Collection:
    """A list or a mapping that has not ended; of a mapping, the key whose value comes next."""

    __slots__ = ("key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key: str | None = None

    @property
    def wants_key(self) -> bool:
        return isinstance(self.value, dict) and self.key is None


#: The line ends of YAML 1.1 that are neither \n nor \r.
_LINE_ENDS: Final = frozenset("\x85\u2028\u2029")


class _Dumper(yaml.SafeDumper):
    """Quotes what YAML 1.1 or this reader would take for something other than text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.Node:
        try:
            bare = scalar(data) == data and isinstance(scalar(data), str)
        except UnclearScalar:
            bare = False
        style = None if bare else "'"
        if _LINE_ENDS.intersection(data):
            style = '"'  # written as themselves, they are folded into spaces
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def _name(event: yaml.NodeEvent) -> str:
    return printable(str(event.anchor)[:40])


def _problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"character U+{int(error.character):04X}, which no YAML file may hold"
    return printable(str(getattr(error, "problem", None) or error))[:200]


def _line(error: yaml.YAMLError, text: str) -> int | None:
    if isinstance(error, yaml.reader.ReaderError):
        return text.count("\n", 0, error.position) + 1
    mark = getattr(error, "problem_mark", None)
    return None if mark is None else mark.line + 1
