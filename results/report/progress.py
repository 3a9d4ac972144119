"""How far a run is: a live bar on a terminal, a plain line every five seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from outputs.terminal import Terminal

PLAIN_LINE_EVERY_S = 5.0


class ProgressView:
    """A context manager fed by ``update``; it draws nothing by itself, so a stalled run shows as a bar that stands
    still.

    ``clock`` gives wall-clock seconds (monotonic); ``console`` is where to draw.
    """

    def __init__(
        self, title: str, *, console: Terminal | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.title = title
        self._console = console or Terminal()
        self._clock = clock
        self._next_line_s = float("-inf")
        self._line: str | None = None
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> ProgressView:
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[counts]}", markup=False),
            )
            self._bar = Progress(*columns, console=self._console, auto_refresh=False, transient=True)
            self._task = self._bar.add_task(self.title, total=None, counts="")
            self._bar.start()
        return self

    def step(self, name: str) -> None:
        """Say which step of the run begins."""
        if self._bar is not None:
            self._bar.update(self._task, total=None, counts=name, refresh=True)
            return
        self._line = f"{self.title}: {name}"
        self._print_line()

    def update(
        self,
        sent: int,
        done: int,
        failed: int,
        transfers_in_flight: int,
        circuits_in_flight: int,
        elapsed_s: float,
        total_s: float,
    ) -> None:
        """Show this state. ``elapsed_s`` of ``total_s`` is run-clock time; it may pass the total while a run drains."""
        counts = (
            f"{elapsed_s:.0f}/{total_s:.0f} s  sent {sent}  done {done}  failed {failed}  "
            f"transfers {transfers_in_flight}  circuits {circuits_in_flight}"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=min(elapsed_s, total_s), total=total_s, counts=counts, refresh=True)
            return
        self._line = f"{self.title}: {counts}"
        now_s = self._clock()
        if now_s >= self._next_line_s:
            self._print_line()
            self._next_line_s = now_s + PLAIN_LINE_EVERY_S

    def _print_line(self) -> None:
        if self._line is not None:
            self._console.say(self._line)
            self._console.file.flush()
            self._line = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        else:
            self._print_line()  # the last state is always said, however short ago the last line was
