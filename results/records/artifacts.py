"""The directory a run leaves behind: created once, written atomically, read back by report and compare.

Every file is written under a temporary name and renamed, so that a reader (or a run that dies) never meets half a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ValidationError

from inputs import json_file, plugin_file, yaml_file
from inputs.errors import InputError, shown
from inputs.plugin_file import PluginError
from outputs.files import make_directory, why, write_whole
from outputs.place import refusal
from results.records.documents import Fidelity, Provenance, first_problem
from results.records.schema import TABLES, Table
from results.records.summary import RunSummary, Summary

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "results" / "runs"
PACKAGES = ("mininet", "ryu", "pandas", "numpy", "plotly", "pydantic", "pyroute2", "scapy", "simpy", "psutil")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")  # a grid may be named after a file `x=1.yaml`


class ArtifactError(InputError):
    """A run directory that cannot be made, written or read; the message says which, why and what to do."""


class Unwritable(ArtifactError):
    """A file that the disk, or whoever may write there, does not let be written."""


def write_bytes(path: Path, content: bytes) -> Path:
    """`write_whole`, which raises Unwritable where it cannot."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise Unwritable(f"cannot write {path}: {why(error)}") from error
    return path


def make(path: Path) -> Path:
    """Make a directory of artifacts, and those above it that are missing. Raises ArtifactError."""
    try:
        make_directory(path, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"cannot make {path}: {why(error)}") from error
    return path


def usable(path: Path) -> Path:
    """`path` without links and relative steps. Raises ArtifactError where no results may lie there: its name is no
    text, which a report could not show, or somebody else could change what root writes."""
    real = Path(os.path.realpath(path))
    if not str(real).isprintable():
        raise ArtifactError(
            f"{real} cannot be used for results: its name has control characters or bytes that are not UTF-8, which no "
            "report could show; choose another --artifact-dir"
        )
    try:
        reason = refusal(path, ours_alone=True)
    except OSError as error:
        reason = why(error)
    if reason:
        raise ArtifactError(f"{path} cannot be used for results: {reason} (--artifact-dir)")
    return real


def write_text(path: Path, text: str) -> Path:
    """``write_bytes`` of UTF-8."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> Path:
    """Write JSON atomically. ArtifactError for a NaN or an infinity: JSON has neither, a figure that is undefined is
    null.
    """
    try:
        text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"cannot write {path}: {error}") from error
    return write_text(path, text)


def write_csv(path: Path, frame: pd.DataFrame, table: Table) -> Path:
    """Write one table, its columns checked against the schema; floats in full, so that parts still add up when read
    back.
    """
    return write_text(path, table.conform(frame).to_csv(index=False, lineterminator="\n"))


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A run's directory, and where things are in it."""

    path: Path

    @classmethod
    def create(
        cls, name: str, *, artifact_dir: Path | None = None, runs: Path = RUNS, now: datetime | None = None
    ) -> RunDirectory:
        """Make ``runs/<UTC time>-<name>``, or use ``artifact_dir``: new, or empty. ArtifactError if it holds anything
        already.
        """
        _check_name(name)
        if artifact_dir is not None:
            path = usable(artifact_dir)
            try:
                make_directory(path, exist_ok=True)
                if held := sorted(entry.name for entry in path.iterdir()):
                    raise ArtifactError(
                        f"{path} is not empty (it holds {', '.join(held[:3])}{', ...' if len(held) > 3 else ''}): "
                        "results are never mixed; name a new directory, or move the old one away"
                    )
            except OSError as error:
                raise ArtifactError(f"cannot use {path} for results: {why(error)} (--artifact-dir)") from error
            return cls(_writable(path))
        stamp = (now or datetime.now(timezone.utc)).astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        for attempt in range(1, 100):
            path = usable(runs / (f"{stamp}-{name}" if attempt == 1 else f"{stamp}-{name}-{attempt}"))
            try:
                make_directory(path)
            except FileExistsError:
                continue
            except OSError as error:
                raise ArtifactError(f"cannot make {path}: {why(error)} (--artifact-dir)") from error
            return cls(_writable(path))
        raise ArtifactError(f"{runs} holds 99 runs of {stamp}-{name} already; choose another place with --artifact-dir")

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run's directory. ArtifactError if there is no ``summary.json`` in it."""
        if not path.is_dir():
            raise ArtifactError(
                f"{path} is no directory; name the directory of a run, such as results/runs/<time>-<name>"
            )
        if not (path / "summary.json").is_file():
            raise ArtifactError(
                f"{path} holds no summary.json: the run did not end, or this is not the directory of a run"
            )
        return cls(path)

    def fabric_path(self, name: str, seed: int) -> Path:
        """``<fabric>/seed<N>``, made if need be."""
        _check_name(name)
        return make(self.path / name / f"seed{seed}")

    def write_table(self, name: str, seed: int, table: str, frame: pd.DataFrame) -> Path:
        """Write ``requests``, ``transfers``, ``circuits`` or ``links`` of one fabric and seed."""
        return write_csv(self.fabric_path(name, seed) / f"{table}.csv", frame, TABLES[table])

    def write_fidelity(self, name: str, seed: int, fidelity: Mapping[str, Any]) -> Path:
        return write_json(self.fabric_path(name, seed) / "fidelity.json", fidelity)

    def write_config(self, config: str) -> Path:
        """Write the resolved experiment, as YAML."""
        return write_text(self.path / "config.yaml", config)

    def write_provenance(self, record: Mapping[str, Any]) -> Path:
        return write_json(self.path / "provenance.json", dict(record))

    def write_summary(self, runs: Iterable[RunSummary], **extra: Any) -> Summary:
        """Write ``summary.json`` and return what was written. Call it after every fabric: it is whole each time."""
        summary = Summary(runs=list(runs), **extra)
        write_json(self.path / "summary.json", summary.as_json())
        return summary

    def summary(self) -> Summary:
        """``summary.json``, checked. ArtifactError with the place where it breaks the schema."""
        path = self.path / "summary.json"
        found = _mapping(path)
        try:
            summary = Summary.model_validate(found)
        except ValidationError as error:
            raise ArtifactError(f"{path}: {first_problem(error)}") from None
        for i, run in enumerate(summary.runs):
            if not _NAME.fullmatch(run.name):
                raise ArtifactError(f"{path}: runs.{i}.name: {shown(run.name)} names no folder of this run")
        return summary

    def table(self, name: str, seed: int, table: str) -> pd.DataFrame | None:
        """One table of one fabric and seed; None where the run wrote none (no circuits on a packet fabric)."""
        path = self.path / name / f"seed{seed}" / f"{table}.csv"
        if not os.path.lexists(path):
            return None
        try:
            return TABLES[table].read(path)
        except ValueError as error:
            raise ArtifactError(str(error)) from error

    def config(self) -> dict[str, Any]:
        """``config.yaml`` as plain data; empty where the file is missing. ArtifactError where it is broken."""
        path = self.path / "config.yaml"
        return _mapping(path) if os.path.lexists(path) else {}

    def provenance(self) -> dict[str, Any]:
        """``provenance.json``, checked; empty where the file is missing. ArtifactError where it is broken."""
        return self._document(self.path / "provenance.json", Provenance)

    def fidelity(self, name: str, seed: int) -> dict[str, Any]:
        """``fidelity.json`` of a fabric and seed, checked; empty where the file is missing. ArtifactError where it is
        broken."""
        return self._document(self.path / name / f"seed{seed}" / "fidelity.json", Fidelity)

    @staticmethod
    def _document(path: Path, shape: type[BaseModel]) -> dict[str, Any]:
        found = _mapping(path) if os.path.lexists(path) else {}
        try:
            shape.model_validate(found)
        except ValidationError as error:
            raise ArtifactError(f"{path}: {first_problem(error)}") from None
        return found


def _mapping(path: Path) -> dict[str, Any]:
    """The keys and values of a JSON or YAML file. Raises ArtifactError."""
    try:
        found = json_file.read(path) if path.suffix == ".json" else yaml_file.read(path).data
    except InputError as error:
        raise ArtifactError(*error.lines) from None
    if not isinstance(found, dict):
        raise ArtifactError(f"{path}: expected keys and values, found {shown(found)}")
    return found


def provenance(
    *,
    argv: Sequence[str],
    seeds: Sequence[int],
    datapath: str,
    traces: Iterable[Path] = (),
    plugins: Mapping[str, str] | None = None,
    sysctls: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What someone needs to make the run again: revision, inputs, machine, versions. ``datapath``: netdev | system |
    none; ``plugins``: `FILE.py:Class` by key of the experiment. Raises ArtifactError where one of those cannot be read.
    """
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "argv": list(argv),
        "seeds": list(seeds),
        **_revision(),
        "traces": [{"path": str(path), "bytes": path.stat().st_size, "sha256": sha256(path)} for path in traces],
        "plugins": [_plugin(key, named) for key, named in (plugins or {}).items()],
        "datapath": datapath,
        "sysctls": dict(sysctls or {}),
        "kernel": platform.release(),
        "machine": {"architecture": platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _plugin(key: str, named: str) -> dict[str, str]:
    path = plugin_file.file_of(named)
    try:
        return {"key": key, "plugin": named, "path": str(path), "sha256": plugin_file.sha256(path)}
    except PluginError as error:
        raise ArtifactError(str(error)) from error


def sha256(path: Path) -> str:
    """Digest of a file, read in pieces. OSError if it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _revision() -> dict[str, Any]:
    """Git revision of this checkout and whether tracked files differ from it; None outside a checkout (a tarball)."""

    def git(*words: str) -> str:
        # run by root on a user's checkout, git would refuse it as "dubious ownership"
        command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {
            "git_revision": git("rev-parse", "HEAD"),
            "git_dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return {"git_revision": None, "git_dirty": None}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ArtifactError(
            f"name {name!r} cannot name a directory: use letters, digits and . _ + - =, beginning with a letter or "
            "digit"
        )


def _writable(path: Path) -> Path:
    if not os.access(path, os.W_OK | os.X_OK):
        raise ArtifactError(f"{path} cannot be written by user {os.geteuid()}; choose another --artifact-dir")
    return path
