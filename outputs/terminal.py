"""What everything is printed with. No text is ever markup, and no character of it is one that a terminal acts on."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from inputs.errors import printable

#: A pipe or a log has no width: a row of a table stays one line there.
WIDTH_OF_A_PIPE = 1000


def printable_lines(text: str) -> str:
    """`text` as `printable` makes it, but for its line ends: where they are this program's own."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def say(text: object = "", *, err: bool = False) -> None:
    """Print a text of our own, be it of several lines, to standard output or error."""
    print(printable_lines(str(text)), file=sys.stderr if err else sys.stdout)


class Terminal(Console):
    """A console for tables and progress. `width` in columns; by default the terminal's, and ample where there is none.

    Escapes are its own alone: colours and the redrawing of a bar. Whatever a renderable holds comes out printable.
    """

    def __init__(self, *, file: IO[str] | None = None, width: int | None = None, **more: Any) -> None:
        super().__init__(file=file, width=width, markup=False, emoji=False, highlight=False, **more)
        if width is None and not self.is_terminal:
            self.width = WIDTH_OF_A_PIPE

    def say(self, text: object) -> None:
        """Print a text of our own; its lines are never broken, so that a path can be copied whole."""
        self.print(Text(printable_lines(str(text))), soft_wrap=True)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does it; what would act on the terminal, and is not rich's, stands as an escape."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)
