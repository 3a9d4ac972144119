"""One cell of a grid: one fabric and one seed of one experiment, and how a worker computes it.

A cell carries all it needs as text and names nothing of the machine that asked for it but the paths of its traces; its
result comes back as bytes. So a worker may be on another machine, and may die at any time.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml

from experiments.spec import Experiment, SpecError, load
from results.artifacts import RunDirectory
from results.tenants import by_tenant
from simulation.constants import Constants
from simulation.experiment_run import summary_of, write_tables
from simulation.twin import Twin
from sweeps.axes import Point
from sweeps.source import ROOT, source_digest
from workloads.arrivals import Arrivals
from workloads.traces.trace import TraceError

Substrate = Literal["simulation", "emulation"]
Keep = Literal["all", "figures"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._+=-]+")
_PR_SET_PDEATHSIG = 1


class CellError(Exception):
    """A cell that could not be computed; the message says why."""


@dataclass(frozen=True, slots=True)
class Cell:
    """`config` is the experiment as YAML with this fabric and this seed alone; `keep` says what comes back: every
    artifact, or only the figures. `source` is the digest of the code that asked."""

    point: Point
    fabric: str
    seed: int
    config: str
    substrate: Substrate = "simulation"
    keep: Keep = "all"
    constants: Constants = field(default_factory=Constants)
    source: str = ""

    @property
    def path(self) -> str:
        """Where its artifacts lie below the grid's directory, unique by `digest`."""
        words = [f"{key.rsplit('.', 1)[-1]}={value}" for key, value in self.point]
        where = _UNSAFE.sub("_", "_".join(words))[:80] or "all"
        return f"{where}/{self.fabric}-seed{self.seed}-{self.digest[:8]}"

    @property
    def digest(self) -> str:
        """What decides the result: the experiment, the substrate and its constants."""
        text = json.dumps([self.config, self.substrate, asdict(self.constants)])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CellResult:
    """`figures` is the cell's part of cell.json; `files` a zip archive of its artifacts."""

    figures: dict[str, Any]
    files: bytes
    wall_s: float
    worker: str


def run_cell(cell: Cell) -> CellResult:
    """Compute a cell, in a worker. Raises CellError."""
    if cell.source and cell.source != source_digest(cell.substrate):
        raise CellError(
            f"worker {os.uname().nodename} ({ROOT}) runs another version of the code ({source_digest(cell.substrate)}) "
            f"than the sweep ({cell.source}): bring its checkout to the same revision and start it again"
        )
    began = time.perf_counter()
    try:
        return _computed(cell, began)
    except (SpecError, TraceError, ValueError) as error:
        raise CellError(str(error)) from None  # its own kind may not survive the way back


def _computed(cell: Cell, began: float) -> CellResult:
    with tempfile.TemporaryDirectory(prefix="heliograph-cell-") as temporary:
        path = Path(temporary)
        (path / "cell.yaml").write_text(cell.config, encoding="utf-8")
        figures = _simulate(cell, path) if cell.substrate == "simulation" else _emulate(cell, path)
        files = _archive(path / "out") if cell.keep == "all" else b""
    return CellResult(figures, files, time.perf_counter() - began, f"{os.uname().nodename}:{os.getpid()}")


def _simulate(cell: Cell, path: Path) -> dict[str, Any]:
    experiment = load(path / "cell.yaml")
    [fabric] = experiment.fabrics
    result = Twin(
        experiment, fabric, cell.seed, _arrivals(_of_arrivals(experiment), cell.seed).requests, cell.constants
    )
    done = result.run()
    summary = summary_of(experiment, fabric, cell.seed, done)
    if cell.keep == "all":
        directory = RunDirectory.create(experiment.name, artifact_dir=path / "out")
        write_tables(directory, fabric.name, cell.seed, done, cell.constants)
        directory.write_config(yaml.safe_load(cell.config))
        directory.write_summary([summary])
    return {"summary": summary.model_dump(mode="json"), "tenants": _tenants(experiment, done.frames.requests)}


def _of_arrivals(experiment: Experiment) -> str:
    """The parts of an experiment that its arrivals depend on, as YAML: cells that differ in other parts share them."""
    data = experiment.model_dump(mode="json", exclude_none=True, exclude={"slo", "scale", "transfer"})
    return yaml.safe_dump(data | {"name": "arrivals", "fabrics": [{"name": "ceiling", "kind": "none"}]}, sort_keys=True)


@lru_cache(maxsize=16)  # a window of 128 GPUs holds 5 MB
def _arrivals(config: str, seed: int) -> Arrivals:
    return Experiment.model_validate(yaml.safe_load(config)).arrivals(seed)


def _emulate(cell: Cell, path: Path) -> dict[str, Any]:
    """A run of the command line in a process of its own: it tears its network down however it ends, also when this
    worker dies first."""
    command = [
        sys.executable,
        str(ROOT / "cli.py"),
        "run",
        str(path / "cell.yaml"),
        "--artifact-dir",
        str(path / "out"),
    ]
    libc = ctypes.CDLL(None, use_errno=True)

    def in_the_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # which local workers are kept from

    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=in_the_child,
    )
    if done.returncode not in (0, 3):  # 3: the run is whole and says itself that it is invalid
        said = (done.stderr.strip() or done.stdout.strip() or "nothing said").splitlines()[-5:]
        raise CellError(f"the run ended with exit status {done.returncode}: " + " / ".join(said))
    directory = RunDirectory.open(path / "out")
    [summary] = directory.summary().runs
    requests = directory.table(cell.fabric, cell.seed, "requests")
    assert requests is not None
    figures = _tenants(load(path / "cell.yaml"), requests)
    return {"summary": summary.model_dump(mode="json"), "tenants": figures}


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
