"""What a cell reads beside its configuration: traces and a timing file, by SHA-256, and plug-ins, which it carries.

They are part of a cell's digest, so that a grid never mixes figures of two versions of a file. Traces must lie on each
worker's machine, which compares them; a plug-in's source goes with the cell, as the experiment does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from experiments.schema.spec import PLUGIN_KEYS, Experiment
from experiments.schema.words import is_timing_file
from inputs import plugin_file
from sweeps.axes import SweepError

#: (path of a file, SHA-256 of its content), sorted.
Inputs: TypeAlias = tuple[tuple[str, str], ...]
#: (path below a cell's folder, source) of each plug-in.
Carried: TypeAlias = tuple[tuple[str, bytes], ...]


def carry(experiment: Experiment) -> tuple[Experiment, Carried]:
    """The experiment with its plug-ins named relative to its own file, and their sources to put there. Raises
    PluginError where one cannot be read."""
    sources: dict[str, bytes] = {}

    def carried(at: str, keys: Sequence[str]) -> dict[str, str]:
        renamed: dict[str, str] = {}
        for key in keys:
            if named := experiment.plugins.get(f"{at}.{key}"):
                path = plugin_file.file_of(named)
                text = plugin_file.source(path)
                place = f"plugin-{hashlib.sha256(text).hexdigest()}/{path.name}"
                sources[place] = text
                renamed[key] = f"{place}:{named.rpartition(':')[2]}"
        return renamed

    fabrics = [
        each.model_copy(update=carried(f"fabrics.{i}", PLUGIN_KEYS)) for i, each in enumerate(experiment.fabrics)
    ]
    tenants = [
        each.model_copy(update=carried(f"workload.tenants.{i}", ("source",)))
        for i, each in enumerate(experiment.workload.tenants)
    ]
    workload = experiment.workload.model_copy(update={"tenants": tenants})
    prefill = experiment.prefill.model_copy(update=carried("prefill", ("choice",)))
    changed = {"fabrics": fabrics, "workload": workload, "prefill": prefill}
    return experiment.model_copy(update=changed), tuple(sorted(sources.items()))


def unpack(carried: Carried, folder: Path) -> None:
    """Put plug-ins beside an experiment file, in folders that are ours alone, whatever the umask."""
    for place, text in carried:
        path = folder / place
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(text)
        path.chmod(0o600)


def files_of(experiment: Experiment) -> Inputs:
    """The files that an experiment reads, which its arrivals depend on. Raises SweepError where one cannot be read."""
    paths = {tenant.path for tenant in experiment.workload.tenants if tenant.path is not None}
    if is_timing_file(experiment.prefill.timing):
        paths.add(experiment.prefill.timing)
    return tuple(sorted((path, _file_sha256(path)) for path in paths))


def differing(asked: Inputs, found: Inputs) -> list[str]:
    """The files that are not the same on both sides."""
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
