"""A grid on disk: which cells it has, which are finished, and what they said.

`sweep.json` says what the grid is; `cells/<point>/<fabric>-seed<N>-<digest>/` holds the artifacts of one cell, and its
`cell.json`, written last, says that the cell is finished. So a grid that was interrupted anywhere goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.schema import plugins
from experiments.schema.source import read
from experiments.schema.spec import Experiment, load
from inputs import json_file
from inputs.errors import InputError
from results.records.artifacts import RunDirectory, make, usable, write_bytes, write_json
from simulation.constants import Constants
from sweeps.answer import figures_of, files_in
from sweeps.axes import Axis, Point, SweepError, overrides, points
from sweeps.cell import Cell, CellResult, Keep, Substrate
from sweeps.inputs import carry, files_of
from sweeps.source import source_digest


def cells_of(
    path: Path,
    axes: Sequence[Axis],
    *,
    sets: Sequence[str] = (),
    seed: int | None = None,
    substrate: Substrate = "simulation",
    keep: Keep = "all",
    constants: Constants | None = None,
    refusals: Callable[[Experiment], list[str]] = plugins.refusals,
) -> list[Cell]:
    """Every cell of a file's grid: each point of the axes, each of its seeds, each of its fabrics, in that order (cells
    of one point and seed share their arrivals). `refusals` says what a point cannot be. Raises SpecError and
    SweepError."""
    source = source_digest(substrate)
    cells: list[Cell] = []
    data = read(path).data
    points_by_content: dict[str, Point] = {}
    for point in points(axes):
        experiment = load(path, sets, seed, over=overrides(point, data))
        if refused := refusals(experiment):
            where = f"{path} with {', '.join(f'{key}={value}' for key, value in point)}" if point else str(path)
            raise SweepError(*(f"{where}: {line}" for line in refused))
        expanded = experiment.expanded()
        if (same := points_by_content.setdefault(expanded.model_dump_json(), point)) is not point:
            raise SweepError(
                f"--over: {_spelt(same, point)} and {_spelt(point, same)} are the same experiment; keep one"
            )
        for each_seed in expanded.seeds:
            for fabric in expanded.fabrics:
                alone = expanded.model_copy(update={"fabrics": [fabric], "seeds": [each_seed]})
                carried, plugins = carry(alone)
                cells.append(
                    Cell(
                        point,
                        fabric.name,
                        each_seed,
                        carried.dump(),
                        substrate,
                        keep,
                        constants or Constants(),
                        source,
                        files_of(alone),
                        plugins,
                    )
                )
    return cells


def _spelt(point: Point, other: Point) -> str:
    """What a point has that another has not."""
    return ", ".join(f"{key}={value}" for (key, value), pair in zip(point, other, strict=True) if (key, value) != pair)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished cell: where it is in the grid, and its figures (`summary` as in summary.json, `tenants`)."""

    point: Point
    fabric: str
    seed: int
    summary: dict[str, Any]
    tenants: dict[str, dict[str, Any]]
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GridDirectory:
    """A grid's directory."""

    path: Path

    @classmethod
    def create_or_resume(cls, name: str, definition: dict[str, Any], artifact_dir: Path | None) -> GridDirectory:
        """A new directory, or that of the same grid, which goes on. Raises ArtifactError and, where `artifact_dir`
        holds another grid or one that another version of the code began, SweepError."""
        if artifact_dir is None or not (artifact_dir / "sweep.json").is_file():
            directory = cls(RunDirectory.create(name, artifact_dir=artifact_dir).path)
            write_json(directory.path / "sweep.json", definition)
            return directory
        directory = cls(usable(artifact_dir))
        try:
            found = json_file.read_mapping(directory.path / "sweep.json")
        except InputError as error:
            raise SweepError(f"{error}; name a new --artifact-dir") from None
        differs = sorted(key for key in {*found, *definition} if found.get(key) != definition.get(key))
        if differs == ["source"]:
            raise SweepError(
                f"{directory.path} was begun by another version of the code ({found.get('source')}, this is "
                f"{definition['source']}): figures of two versions are never mixed; name a new --artifact-dir, or "
                "check the old revision out"
            )
        if differs:
            raise SweepError(
                f"{directory.path} holds another grid (it differs in {', '.join(differs)}): name a new --artifact-dir, "
                "or give the options it was begun with to go on"
            )
        return directory

    def outcome(self, cell: Cell) -> Outcome | None:
        """What a cell said, if it is finished."""
        try:
            found = json_file.read_mapping(self._of(cell) / "cell.json")
            if found.get("digest") != cell.digest:
                return None
            figures = figures_of(cell, {key: found.get(key) for key in ("summary", "tenants")})
            wall_s = float(found["wall_s"])
        except (KeyError, TypeError, ValueError):  # not there, torn or edited: it is computed again
            return None
        return Outcome(cell.point, cell.fabric, cell.seed, figures["summary"], figures["tenants"], wall_s)

    def keep(self, cell: Cell, result: CellResult) -> Outcome:
        """Write a cell down; `cell.json` comes last. Raises ArtifactError, SweepError where it would lie outside."""
        path = self._of(cell)
        make(path)
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise SweepError(f"{path} leads outside of {self.path}: a link lies there; remove it")
        if result.files:
            for name, content in files_in(result.files):
                make((path / name).parent)
                write_bytes(path / name, content)
        about: dict[str, Any] = {
            "schema": 1,
            "digest": cell.digest,
            "point": dict(cell.point),
            "fabric": cell.fabric,
            "seed": cell.seed,
            "substrate": cell.substrate,
            "worker": result.worker,
            "wall_s": round(result.wall_s, 3),
        }
        write_json(path / "cell.json", about | result.figures)
        figures = result.figures
        return Outcome(cell.point, cell.fabric, cell.seed, figures["summary"], figures["tenants"], about["wall_s"])

    def _of(self, cell: Cell) -> Path:
        return self.path / "cells" / cell.path
