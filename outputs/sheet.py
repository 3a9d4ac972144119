"""A table that is never cut: whole where it fits, in two where that helps, else each row as lines of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inputs.errors import printable

#: One line; several lines of our own; or a text with a style.
Cell: TypeAlias = str | tuple[str, ...] | Text
#: The fewest columns of a terminal in which words are still read.
_WORDS_WIDTH = 14
_ANY_WIDTH = 10_000


@dataclass(frozen=True, slots=True)
class Column:
    """`header` may have lines. `kind`: a "figure" stands right and is never broken, a "name" stands left and is never
    broken, and "words" may wrap."""

    header: str
    kind: str = "figure"

    @property
    def label(self) -> str:
        """The header on one line."""
        return " ".join(self.header.split())


@dataclass(frozen=True)
class Sheet:
    """Rows of cells under columns, the first `names` of which say what a row is of. A row of one cell is the heading of
    those below it.

    layouts: ways to lay it out, the best first: of each the columns of every table it takes. None: all in one, or the
    figures in two tables with the names in both. Where none fits, the rows are stacked.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    names: int = 1
    title: str = ""
    layouts: Sequence[Sequence[Sequence[int]]] = field(default=())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Text(printable(self.title), style="italic")
        for layout in self.layouts or self._halves(console, options):
            tables = [self._table(columns) for columns in layout]
            if all(_least_width(table, console, options) <= options.max_width for table in tables):
                yield from tables
                return
        yield from self._stacked(options.max_width)

    def _halves(self, console: Console, options: ConsoleOptions) -> Iterator[Sequence[Sequence[int]]]:
        """All columns in one table, then in two of which the first takes as many as it can."""
        every = range(len(self.columns))
        yield [every]
        names = range(self.names)
        for split in range(len(self.columns) - 1, self.names, -1):
            first, second = [*range(split)], [*names, *range(split, len(self.columns))]
            if _least_width(self._table(first), console, options) <= options.max_width:
                yield [first, second]
                return

    def _table(self, columns: Sequence[int]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for number in columns:
            column = self.columns[number]
            cells = [row[number] for row in self.rows if number < len(row) > 1]
            widest = max(
                map(cell_len, [*column.header.split("\n"), *(line for cell in cells for line in _lines(cell))])
            )
            table.add_column(
                Text(column.header),
                justify="right" if column.kind == "figure" else "left",
                overflow="fold",
                no_wrap=column.kind != "words",
                min_width=min(_WORDS_WIDTH, widest) if column.kind == "words" else widest,
            )
        for row in self.rows:
            if len(row) == 1 < len(self.columns):
                table.add_section()
                table.add_row(_text(row[0], style="bold"))
            else:
                table.add_row(*(_text(row[number]) for number in columns))
        return table

    def _stacked(self, width: int) -> Iterator[Text | Padding]:
        """A row as its names, a line each, and its figures under them with the header beside each."""
        widest = max((len(column.label) for column in self.columns[self.names :]), default=0)
        for row in self.rows:
            if len(row) == 1 < len(self.columns):
                yield _text(row[0], style="bold underline")
                continue
            for depth, cell in enumerate(row[: self.names]):
                if name := _text(cell, style="bold"):
                    yield _indented(max(0, min(2 * depth, width - name.cell_len)), name)
            for column, cell in zip(self.columns[self.names :], row[self.names :], strict=True):
                yield from _labelled(2 * self.names, column.label, widest, cell, width)


def _labelled(indent: int, label: str, widest: int, cell: Cell, width: int) -> Iterator[Padding]:
    lines = Text("\n").join(_text(cell).split("\n"))
    if not lines.plain:
        return
    room = width - indent - widest - 2
    if max(map(cell_len, lines.plain.split("\n"))) <= room:
        head = f"{label:<{widest}}  "
        for number, line in enumerate(lines.split("\n")):
            yield _indented(indent, Text.assemble(head if not number else " " * len(head), line))
    else:
        yield _indented(indent, Text(label))
        yield from (_indented(indent + 2, line) for line in lines.split("\n"))


def _indented(indent: int, text: Text) -> Padding:
    return Padding(text, (0, 0, 0, indent), expand=False)


def _lines(cell: Cell) -> tuple[str, ...]:
    if isinstance(cell, Text):
        return tuple(cell.plain.split("\n"))
    return tuple(map(printable, (cell,) if isinstance(cell, str) else cell))


def _text(cell: Cell, style: str = "") -> Text:
    return cell if isinstance(cell, Text) else Text("\n".join(_lines(cell)), style=style, overflow="fold")


def _least_width(table: Table, console: Console, options: ConsoleOptions) -> int:
    """Columns that a table takes before a figure or a name of it is broken."""
    return console.measure(table, options=options.update_width(_ANY_WIDTH)).minimum
