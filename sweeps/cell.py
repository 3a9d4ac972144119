"""One cell of a grid: one fabric and one seed of one experiment, and how a worker computes it.

A cell carries all it needs as text and names nothing of the machine that asked for it but the paths of its traces; its
result comes back as bytes. So a worker may be on another machine, and may die at any time.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
import tempfile
import time
import zipfile
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from experiments.schema.spec import Experiment, SpecError, load
from inputs import yaml_file
from inputs.plugin_fault import PluginFault
from results.metrics.tenants import by_tenant
from results.records.artifacts import RunDirectory
from simulation.constants import Constants
from simulation.experiment_run import summary_of, write_tables
from simulation.twin import Twin
from sweeps import emulated
from sweeps.axes import Point
from sweeps.inputs import Carried, Inputs, differing, files_of, unpack
from sweeps.source import ROOT, source_digest
from workloads.arrivals import Arrivals
from workloads.traces.trace import TraceError

Substrate = Literal["simulation", "emulation"]
Keep = Literal["all", "figures"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._+=-]+")


def plain(words: str) -> str:
    """What a directory may be called, of what a user has written."""
    return _UNSAFE.sub("_", words)[:80]


class CellError(Exception):
    """A cell that could not be computed; the message says why."""


@dataclass(frozen=True, slots=True)
class Cell:
    """`config` is the experiment as YAML with this fabric and this seed alone; `keep` says what comes back: every
    artifact, or only the figures. `source` is the digest of the code that asked, `inputs` the files that the experiment
    names, as they were then; `plugins` are the sources of those that it names beside itself."""

    point: Point
    fabric: str
    seed: int
    config: str
    substrate: Substrate = "simulation"
    keep: Keep = "all"
    constants: Constants = field(default_factory=Constants)
    source: str = ""
    inputs: Inputs = ()
    plugins: Carried = ()

    @property
    def path(self) -> str:
        """Where its artifacts lie below the grid's directory, unique by `digest`."""
        words = [f"{key.rsplit('.', 1)[-1]}={value}" for key, value in self.point]
        where = plain("_".join(words)) or "all"
        return f"{where}/{self.fabric}-seed{self.seed}-{self.digest[:8]}"

    @property
    def reads(self) -> Inputs:
        """Every file that it reads, by path or a plug-in's name, with its SHA-256."""
        own = ((Path(place).name, hashlib.sha256(text).hexdigest()) for place, text in self.plugins)
        return (*self.inputs, *own)

    @property
    def digest(self) -> str:
        """What decides the result: the experiment, what it reads, the substrate and its constants."""
        text = json.dumps([self.config, self.inputs, self.substrate, asdict(self.constants)])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CellResult:
    """`figures` is the cell's part of cell.json; `files` a zip archive of its artifacts."""

    figures: dict[str, Any]
    files: bytes
    wall_s: float
    worker: str


def run_cell(cell: Cell, sweep: str = "") -> CellResult:
    """Compute a cell, in a worker, for a `sweep` that may end it (sweeps/emulated.py). Raises CellError."""
    if cell.source and cell.source != source_digest(cell.substrate):
        raise CellError(
            f"worker {os.uname().nodename} ({ROOT}) runs another version of the code ({source_digest(cell.substrate)}) "
            f"than the sweep ({cell.source}): bring its checkout to the same revision and start it again"
        )
    began = time.perf_counter()
    try:
        return _computed(cell, sweep, began)
    except (SpecError, TraceError, ValueError, PluginFault, emulated.SweepEnded) as error:
        raise CellError(str(error)) from None  # its own kind may not survive the way back


def _computed(cell: Cell, sweep: str, began: float) -> CellResult:
    with tempfile.TemporaryDirectory(prefix="heliograph-cell-", dir=_scratch()) as temporary:
        path = Path(temporary)
        (path / "cell.yaml").write_text(cell.config, encoding="utf-8")
        unpack(cell.plugins, path)
        experiment = load(path / "cell.yaml")
        if others := differing(cell.inputs, files_of(experiment)):
            raise CellError(
                f"worker {os.uname().nodename}: {', '.join(others)} is not what it was when the sweep began: the same "
                "content must lie there on every machine until the sweep is done"
            )
        if cell.substrate == "simulation":
            figures = _simulate(cell, experiment, path)
        else:
            figures = _emulate(cell, experiment, path, sweep)
        if cell.keep == "all":  # its own file again: a worker's folders are gone after it
            RunDirectory(path / "out").write_config(cell.config)
            unpack(cell.plugins, path / "out")
        files = _archive(path / "out") if cell.keep == "all" else b""
    return CellResult(figures, files, time.perf_counter() - began, f"{os.uname().nodename}:{os.getpid()}")


def _scratch() -> str | None:
    """The worker's own folder, which goes when the worker does, however it ends; the system's outside of a worker."""
    from distributed import get_worker  # which takes its time: not to list the cells of a grid

    try:
        return str(get_worker().local_directory)
    except ValueError:
        return None


def _simulate(cell: Cell, experiment: Experiment, path: Path) -> dict[str, Any]:
    [fabric] = experiment.fabrics
    requests = _arrivals(of_arrivals(experiment), cell.seed, files_of(experiment)).requests
    done = Twin(experiment, fabric, cell.seed, requests, cell.constants).run()
    summary = summary_of(experiment, fabric, cell.seed, done)
    if cell.keep == "all":
        directory = RunDirectory.create(experiment.name, artifact_dir=path / "out")
        write_tables(directory, fabric.name, cell.seed, done, cell.constants)
        directory.write_summary([summary])
    return {"summary": summary.model_dump(mode="json"), "tenants": _tenants(experiment, done.frames.requests)}


def of_arrivals(experiment: Experiment) -> str:
    """The parts of an experiment that its arrivals depend on, as YAML: cells that differ in other parts share them."""
    data = experiment.model_dump(mode="json", exclude_none=True, exclude={"slo", "scale", "transfer", "seeds"})
    return yaml_file.dump(data | {"name": "arrivals", "fabrics": [{"name": "ceiling", "kind": "none"}]}, sort_keys=True)


@lru_cache(maxsize=16)  # a window of 128 GPUs holds 5 MB
def _arrivals(config: str, seed: int, files: Inputs) -> Arrivals:
    """`files` are what the traces were when they were read: a worker of a cluster outlives many a sweep."""
    return Experiment.model_validate(yaml_file.parse(config, "a cell")).arrivals(seed)


def _emulate(cell: Cell, experiment: Experiment, path: Path, sweep: str) -> dict[str, Any]:
    """A run of the command line in a process of its own."""
    command = [
        sys.executable,
        "-E",  # a worker of a cluster was started by hand, in whatever environment
        "-s",
        str(ROOT / "cli.py"),
        "run",
        str(path / "cell.yaml"),
        "--artifact-dir",
        str(path / "out"),
    ]
    done = emulated.run(command, sweep, ROOT)
    if done.returncode not in (0, 3):  # 3: the run is whole and says itself that it is invalid
        said = (done.stderr.strip() or done.stdout.strip() or "nothing said").splitlines()[-5:]
        raise CellError(f"the run ended with exit status {done.returncode}: " + " / ".join(said))
    directory = RunDirectory.open(path / "out")
    [summary] = directory.summary().runs
    requests = directory.table(cell.fabric, cell.seed, "requests")
    assert requests is not None
    return {"summary": summary.model_dump(mode="json"), "tenants": _tenants(experiment, requests)}


def _tenants(experiment: Experiment, requests: Any) -> dict[str, Any]:
    return by_tenant(
        requests,
        prefill_duration_s=experiment.timing.duration_s,
        ttft_multiple=experiment.slo.ttft_multiple,
        decodes={name: owned.decodes for name, owned in experiment.owned_instances().items()},
    )


def _archive(path: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in sorted(each for each in path.rglob("*") if each.is_file()):
            archive.write(file, file.relative_to(path).as_posix())
    return buffer.getvalue()
