"""CSV files with a header, read by one strict reader: a row has as many cells as the header, a column one name.

Commas separate; fields with commas, quotes or line ends stand in double quotes. Nothing is guessed or filled up: what
another separator, a stray quote or a number with a comma in it does to a row is said with its line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from inputs.text_file import CARRIAGE_RETURNS, MAX_LINE_BYTES, At, TextError, lines

#: A row may go over several lines, inside quotes; a quote that is never closed must not fill the memory.
MAX_ROW_CHARS: Final = MAX_LINE_BYTES
MAX_COLUMNS: Final = 4_096
_SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_LONE_RETURN: Final = re.compile(r"\r(?!\n)")
_NUMBER: Final = re.compile(r"[-+]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,3})?", re.ASCII)

# The limit of the csv module (131,072 characters) is the whole process's; rows are bounded by `CsvFile` below.
csv.field_size_limit(MAX_ROW_CHARS)


class CsvFile:
    """One pass over a CSV file: `names` are the header's, stripped; iterate for (line, cells) of each row.

    `line` is where the row begins. Lines without anything in them are passed over. Raises TextError: for a header
    that names a column twice (whatever the case of its letters), a row of more or fewer cells than the header, and
    what is no CSV. `spaces`: those behind a comma belong to the cell, as in tables that a program wrote.
    """

    def __init__(self, path: Path, *, spaces: bool = False) -> None:
        self.path = path
        self._at = At(path)
        self._row_chars = 0
        self._text = ""
        self._reader = csv.reader(self._lines(), strict=True, skipinitialspace=not spaces)
        self._pass = self._rows()
        self.line, header = next(self._pass, (1, []))
        self.names = [name.strip() for name in header]
        if len(header) > MAX_COLUMNS:
            raise TextError(path, self.line, f"{len(header)} columns; a table has at most {MAX_COLUMNS}")
        if len(header) <= 2 and self.names and self.names[0].casefold().startswith("sep="):
            raise TextError(path, self.line, "a line for Excel (sep=) and no header; remove it")
        if problem := _named_twice(self.names):
            raise TextError(path, self.line, problem)

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        width = len(self.names)
        for line, cells in self._pass:
            if len(cells) != width:
                remedy = (
                    "is the row cut?"
                    if len(cells) < width
                    else "a number is written without a comma in it (1250, 100.5), a text with commas in quotes"
                )
                raise TextError(self.path, line, f"{len(cells)} cells where the header has {width}; {remedy}")
            yield line, cells

    def cells(self, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[int, list[str]]]:
        """(line, the cells of `columns` then of `optional`) of each row; an optional column that the file does not have
        gives empty cells. Raises TextError as iterating does, and for a missing column."""
        places = self.places(columns)
        extra = [self.place(column) for column in optional]
        for line, cells in self:
            yield line, [cells[i] for i in places] + ["" if i is None else cells[i] for i in extra]

    def place(self, column: str) -> int | None:
        """Which cell a column is, whatever the case of its letters; None where the file has no such column."""
        return next((i for i, name in enumerate(self.names) if name.casefold() == column.casefold()), None)

    def places(self, columns: Sequence[str]) -> list[int]:
        """Which cells the columns are. Raises TextError that names the missing ones and what the header has."""
        found = [self.place(column) for column in columns]
        if missing := [column for column, place in zip(columns, found, strict=True) if place is None]:
            raise TextError(
                self.path,
                self.line,
                f"no column {', '.join(missing)}; the format has {', '.join(columns)}{self._seen()}",
            )
        return [place for place in found if place is not None]

    def _seen(self) -> str:
        """What the header has instead, for a message."""
        if not self.names:
            return ", the file has no header"
        header = ",".join(self.names)
        shown = repr(header if len(header) <= 80 else header[:77] + "...")
        return f", the header is {shown}" + (f": {other}" if (other := separated_otherwise(header)) else "")

    def _lines(self) -> Iterator[str]:
        for _, text in lines(self.path, self._at):
            self._row_chars += len(text)  # of the row so far: it may go over lines
            if self._row_chars > MAX_ROW_CHARS:
                raise TextError(
                    self.path,
                    self._first,
                    f"a row of over {MAX_ROW_CHARS:,} characters; is a quote opened in it that is never closed?",
                )
            self._text = text
            yield text

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        self._first = 1
        try:
            for cells in self._reader:
                if len(cells) > 1 or (cells and cells[0].strip()):
                    yield self._first, cells
                self._first, self._row_chars = self._reader.line_num + 1, 0
        except csv.Error as error:
            raise TextError(self.path, self._first, f"not a CSV row ({self._cause(error)})") from error

    def _cause(self, error: csv.Error) -> str:
        said = str(error)
        if self._text.lstrip()[:1] in ("{", "["):
            return "JSON where a table is expected"
        if _LONE_RETURN.search(self._text):
            return CARRIAGE_RETURNS
        if "unexpected end" in said:
            return "a quote is opened in it and never closed"
        if "expected after" in said:
            return f'{said}: a quote inside a quoted field is written twice, ""'
        return said


def table(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[int, list[str]]]:
    """`CsvFile.cells` of a file: columns are found by name, whatever their case and order. Raises TextError."""
    yield from CsvFile(path).cells(columns, optional)


def header(start: str) -> list[str]:
    """The names of the columns that a file beginning with `start` has, as `CsvFile` reads them; none where it does not
    begin with a row of a CSV."""
    lines = io.StringIO(start.lstrip(), newline="\n")
    try:
        return [name.strip() for name in next(csv.reader(lines, strict=True, skipinitialspace=True), [])]
    except csv.Error:
        return []


def separated_otherwise(header_text: str) -> str:
    """What separates the names of a header instead of commas, and the remedy; empty where nothing does."""
    first = header_text.lstrip().partition("\n")[0]
    mark, name = max(_SEPARATORS.items(), key=lambda item: first.count(item[0]))
    if _LONE_RETURN.search(header_text):
        return CARRIAGE_RETURNS
    if first.count(mark) <= first.count(","):
        return ""
    return f"it is separated by {name}; write it with commas, and numbers with a decimal point"


def number(text: str) -> float | None:
    """A cell that is a number in the notation of JSON and C (`12`, `12.5`, `1e3`), None where it is none: neither
    `1_000` nor `1,000`, `nan` nor digits of other scripts."""
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def _named_twice(names: Sequence[str]) -> str:
    """Which column the header names twice. A column without a name (the index that pandas writes) cannot be meant."""
    seen: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if not name:
            continue
        before = seen.setdefault(name.casefold(), place)
        if before != place:
            return (
                f"the column {name[:60]!r} is named twice (columns {before} and {place}), so that nobody knows which "
                "is meant; remove or rename one"
            )
    return ""
