"""What a cell reads beside its configuration: traces, a timing file and users' own rules, by their SHA-256.

They are part of a cell's digest, so that a grid never mixes figures of two versions of a file, and each worker compares
them with its own.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from experiments.schema.models import is_timing_file
from experiments.schema.spec import Experiment
from sweeps.axes import SweepError

#: (path of a file or name of a module, SHA-256 of its content), sorted.
Inputs: TypeAlias = tuple[tuple[str, str], ...]


def inputs_of(experiment: Experiment) -> Inputs:
    """Every file and module that the experiment names. Raises SweepError where one cannot be read."""
    rules = [
        value
        for fabric in experiment.fabrics
        for value in (getattr(fabric, "decode_choice", None), getattr(fabric, "commit", None))
        if value is not None and ":" in value
    ]
    modules = {value.partition(":")[0] for value in rules}
    return tuple(sorted([*files_of(experiment), *((name, _module_sha256(name)) for name in modules)]))


def files_of(experiment: Experiment) -> Inputs:
    """The files among them, which arrivals depend on. Raises SweepError where one cannot be read."""
    paths = {tenant.path for tenant in experiment.workload.tenants if tenant.path is not None}
    if is_timing_file(experiment.prefill.timing):
        paths.add(experiment.prefill.timing)
    return tuple(sorted((path, _file_sha256(path)) for path in paths))


def differing(asked: Inputs, found: Inputs) -> list[str]:
    """The files and modules that are not the same on both sides."""
    return sorted({name for name, _ in set(asked) ^ set(found)})


def all_inputs(each: Iterable[Inputs]) -> dict[str, str]:
    """The inputs of a whole grid."""
    return dict(sorted({pair for inputs in each for pair in inputs}))


def _file_sha256(path: str) -> str:
    try:
        state = Path(path).stat()
        return _content_sha256(path, state.st_mtime_ns, state.st_size, state.st_ino)
    except OSError as error:
        raise SweepError(f"cannot read {path}: {error.strerror or error}") from error


@lru_cache(maxsize=256)
def _content_sha256(path: str, mtime_ns: int, size: int, inode: int) -> str:
    """Of a file in this state: traces are large, and many cells share one."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _module_sha256(name: str) -> str:
    """Of a module as this process imported it: once, for an edited file is not imported again. Where the module is
    part of a package, every module of the package counts."""
    try:
        path = importlib.import_module(name).__file__
    except Exception as error:  # whatever a user's module does while it is imported
        raise SweepError(f"cannot import {name}: {type(error).__name__}: {error}") from error
    if path is None:
        raise SweepError(f"{name} is no module with a source file")
    first = importlib.import_module(name.partition(".")[0]).__file__
    whole = first is not None and Path(first).name == "__init__.py"
    digest = hashlib.sha256()
    for each in sorted(Path(first or path).parent.rglob("*.py")) if whole else [Path(path)]:
        digest.update(each.name.encode() + b"\0")
        digest.update(each.read_bytes())
    return digest.hexdigest()
