"""How far a grid is, and when it will be done: a bar on a terminal, a line a cell elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from outputs.terminal import Terminal
from sweeps.cell import Cell


class GridProgress:
    """A context manager told of every cell. The estimate is the cells left over the rate so far, so it holds for cells
    of about one length. `clock` gives wall-clock seconds."""

    def __init__(self, title: str, *, console: Terminal, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._console, self._clock = title, console, clock
        self._total = self._done = self._before = self._failed = 0
        self._began_s = clock()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> GridProgress:
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[counts]}", markup=False),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(self._title, total=None, counts="starting workers")
            self._bar.start()
        return self

    def start(self, cells: int, finished_before: int) -> None:
        """So many cells, some of which an earlier call finished."""
        self._total, self._done, self._before = cells, finished_before, finished_before
        self._began_s = self._clock()
        already = f", {finished_before} of them finished already" if finished_before else ""
        self._say(f"{self._title}: {cells} cells{already}")
        self._show()

    def finished(self, cell: Cell, wall_s: float) -> None:
        """A cell is there; it took a worker `wall_s`."""
        self._done += 1
        if self._bar is None:
            self._say(f"{self._counts()}  {cell.path} in {wall_s:.1f} s")
        self._show()

    def failed(self, cell: Cell, reason: str) -> None:
        """A cell will not be there."""
        self._failed += 1
        self._say(f"failed: {cell.path}: {reason}")
        self._show()

    @property
    def left_s(self) -> float | None:
        """Seconds until the last cell at the rate so far; None before the first."""
        computed = self._done - self._before + self._failed
        if not computed:
            return None
        left = self._total - self._done - self._failed
        return left * (self._clock() - self._began_s) / computed

    def _counts(self) -> str:
        left_s = self.left_s
        when = "" if left_s is None else f"  about {duration(left_s)} left"
        return f"{self._done}/{self._total}{f', {self._failed} failed' if self._failed else ''}{when}"

    def _show(self) -> None:
        if self._bar is not None:
            done = self._done + self._failed
            self._bar.update(self._task, completed=done, total=self._total, counts=self._counts())

    def _say(self, line: str) -> None:
        self._console.say(line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes."""
    whole = round(seconds)
    return (
        f"{whole // 3600} h {whole % 3600 // 60:02d} min" if whole >= 3600 else f"{whole // 60} min {whole % 60:02d} s"
    )
