"""What a worker answers for a cell, and how it is read: bytes and plain values, each checked before it is kept.

A worker may be another machine, and what it sends may be wrong. Its figures must be those of its cell and finite, its
files those of a run, below the cell's folder and of bounded size, and its tables what their columns say.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from inputs import json_file
from inputs.errors import printable
from inputs.json_file import JsonError
from results.records.artifacts import ArtifactError, RunDirectory
from results.records.schema import TABLES
from results.records.summary import RunSummary
from sweeps import scratch
from sweeps.axes import SweepError
from sweeps.cell import Cell, CellError, CellResult, run_cell

#: Of a cell's files when they are unpacked: a window of 330 s of the paper has 10 MB.
MOST_BYTES, MOST_FILES = 2 << 30, 1000
_NAME = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._+=-]{0,120}/){0,3}[A-Za-z0-9][A-Za-z0-9._+=-]{0,120}")

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Figures(BaseModel):
    """A cell's part of cell.json: the run's entry of summary.json, and the figures of each tenant."""

    model_config = ConfigDict(extra="forbid", strict=True)

    summary: RunSummary
    tenants: dict[str, dict[str, int | Finite | None]]


def answer(cell: Cell, sweep: str = "") -> dict[str, Any]:
    """Compute a cell, in a worker. Plain values, also where it could not be computed."""
    try:
        result = run_cell(cell, sweep)
    except CellError as error:
        return {"failed": str(error)}
    figures = json.dumps(result.figures, allow_nan=False)
    return {"figures": figures, "files": result.files, "wall_s": result.wall_s, "worker": result.worker}


def read_answer(cell: Cell, said: Any) -> CellResult:
    """What a worker answered. Raises CellError where it failed, or where its answer is none of this cell's."""
    if not isinstance(said, dict):
        raise CellError(f"its worker answered {type(said).__name__}, which is no result")
    if "failed" in said:
        raise CellError(printable(" ".join(str(said["failed"]).split()))[:4000])
    worker, wall_s, files = (said.get(key) for key in ("worker", "wall_s", "files"))
    if not isinstance(worker, str) or len(worker) > 200 or not worker.isprintable():
        raise CellError("its worker gave no name that can be shown")
    try:
        if not isinstance(wall_s, float) or not 0 <= wall_s < 1e9:
            raise SweepError("no time that a cell can have taken")
        if not isinstance(files, bytes) or bool(files) != (cell.keep == "all"):
            raise SweepError("files though none are kept" if files else "no files")
        figures = figures_of(cell, _json(said.get("figures")))
        if files:
            _check_files(cell, files)
    except SweepError as error:
        raise CellError(f"worker {worker} sent what is no result of this cell: {error}") from error
    return CellResult(figures, files, wall_s, worker)


def figures_of(cell: Cell, found: Any) -> dict[str, Any]:
    """The figures of this cell, finite and of the kinds that they must be. Raises SweepError."""
    try:
        figures = Figures.model_validate_json(json.dumps(found, allow_nan=False))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SweepError(f"figures: {printable(where)[:200]}: {first['msg']}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise SweepError(f"figures: {printable(str(error))[:200]}") from error
    summary = figures.summary
    told, asked = (summary.name, summary.seed, summary.substrate), (cell.fabric, cell.seed, cell.substrate)
    if told != asked:
        raise SweepError(f"figures of {printable(str(told))[:200]}, asked were {asked}")
    return figures.model_dump(mode="json", by_alias=True)


def _json(text: Any) -> Any:
    if not isinstance(text, str):
        raise SweepError("figures: no JSON")
    try:
        return json_file.parse(text, "figures")
    except JsonError as error:
        raise SweepError(str(error)[:200]) from None


def files_in(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file of a cell. Raises SweepError for one that would lie outside of its cell, and where
    they are too many, too large or broken."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as found:
            members = found.infolist()
            if len(members) > MOST_FILES or sum(member.file_size for member in members) > MOST_BYTES:
                raise SweepError(f"more than {MOST_FILES} files or {MOST_BYTES} bytes")
            if len({member.filename for member in members}) != len(members):
                raise SweepError("a file of one name twice")
            for member in members:
                if not _NAME.fullmatch(member.filename) or member.filename == "cell.json":
                    raise SweepError(f"a file outside its cell: {printable(member.filename)[:200]}")
                yield member.filename, found.read(member)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError) as error:
        if isinstance(error, SweepError):
            raise
        raise SweepError(f"files that cannot be unpacked: {printable(str(error))[:200]}") from error


def _check_files(cell: Cell, archive: bytes) -> None:
    """Unpack into a folder of ours, and read what a reader of the artifacts would read. Raises SweepError."""
    with scratch.folder() as path:
        try:
            for name, content in files_in(archive):
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_bytes(content)
            run = RunDirectory.open(path)
            if [(each.name, each.seed) for each in run.summary().runs] != [(cell.fabric, cell.seed)]:
                raise SweepError("summary.json of another run")
            for table in TABLES:
                if run.table(cell.fabric, cell.seed, table) is None and table == "requests":
                    raise SweepError("no requests.csv")
        except (ArtifactError, OSError) as error:
            said = str(error).replace(f"{path}/", "")
            raise SweepError(printable(" ".join(said.split()))[:300]) from error
