"""Run the cells of a grid on Dask, and keep each as soon as it is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from inputs.errors import printable
from sweeps import emulated
from sweeps.answer import answer, read_answer
from sweeps.axes import SweepError
from sweeps.cell import Cell, CellError
from sweeps.cluster import EMULATOR
from sweeps.grid import GridDirectory, Outcome
from sweeps.progress import GridProgress

if TYPE_CHECKING:  # Dask is imported once it is settled whose configuration it reads
    from distributed import Client, Future


@dataclass
class Executed:
    """Outcomes in the order of the cells, and why those that failed did."""

    outcomes: list[Outcome] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def unfinished(cells: Sequence[Cell], directory: GridDirectory) -> list[Cell]:
    """The cells that are still to be computed."""
    return [cell for cell in cells if directory.outcome(cell) is None]


def execute(cells: Sequence[Cell], directory: GridDirectory, client: Client | None, progress: GridProgress) -> Executed:
    """Compute what is not finished yet (with no client: nothing), and return everything.

    A worker that dies loses the cell it was at, which another worker computes; what was finished is on disk. A cell
    whose workers die again and again, or that raises, is named in `failures`; the others go on. However this ends, no
    emulated run of it goes on. Raises ArtifactError where a cell cannot be written.
    """
    done = Executed()
    left = unfinished(cells, directory)
    progress.start(len(cells), len(cells) - len(left))
    if client is not None and left:
        _compute(left, directory, client, progress, done)
    for cell in cells:
        if (outcome := directory.outcome(cell)) is not None:
            done.outcomes.append(outcome)
    return done


def _compute(
    left: Sequence[Cell], directory: GridDirectory, client: Client, progress: GridProgress, done: Executed
) -> None:
    from distributed import as_completed

    sweep = uuid4().hex
    futures: dict[Future, Cell] = {}
    try:
        for number, cell in enumerate(left):
            future = client.submit(
                answer,
                cell,
                sweep,
                key=f"cell-{cell.digest}",
                pure=False,
                priority=-number,  # in order: neighbours share their arrivals
                resources={EMULATOR: 1} if cell.substrate == "emulation" else None,
            )
            futures[future] = cell
        for future in as_completed(list(futures), loop=client.loop):
            cell = futures.pop(future)
            try:
                result = read_answer(cell, _said(future))
                directory.keep(cell, result)
                progress.finished(cell, result.wall_s)
            except (CellError, SweepError) as error:
                done.failures[cell.path] = str(error)
                progress.failed(cell, done.failures[cell.path])
            future.release()
    finally:
        client.cancel(list(futures))
        if any(cell.substrate == "emulation" for cell in futures.values()):
            client.run(emulated.end, sweep, on_error="ignore")  # a worker that is gone has taken its run with it


def _said(future: Future) -> object:
    """What the worker answered. Raises CellError where none did, and where its answer is no plain value."""
    error: BaseException | None
    try:
        if future.status == "finished":
            return future.result()
        error = future.exception()
    except Exception as raised:  # of Dask, which reads what somebody else has sent
        error = raised
    raise CellError(printable(" ".join(f"{type(error).__name__}: {error}".split()))[:4000])
