"""Making a recorded run again: what it was made of, what differs now, and how near the two came. Pure but for reading.

The experiment, the seeds and the traces must be the recorded ones; the machine, the kernel and the versions may differ,
and are said to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from inputs import plugin_file
from inputs.plugin_file import PluginError
from results.records.artifacts import ArtifactError, RunDirectory, sha256
from results.report.compare import ARRIVAL_COLUMNS
from workloads.request import Request

#: Two valid runs of the same arrivals differ by less than this in a fabric's median TTFT
#: (docs/how-to/reproduce-a-run.md).
MEDIAN_TOLERANCE = 0.05
#: What of provenance.json is about the machine and the versions; the rest is about the run.
_ASPECTS = (
    ("git_revision", "revision of Heliograph"),
    ("git_dirty", "uncommitted changes"),
    ("kernel", "kernel"),
    ("datapath", "datapath"),
    ("machine.cores", "cores"),
    ("machine.architecture", "architecture"),
    ("python", "Python"),
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished run that can be made again: `config` is its resolved experiment file."""

    directory: RunDirectory
    config: Path
    provenance: Mapping[str, Any]

    @property
    def seeds(self) -> list[int]:
        return [int(seed) for seed in self.provenance["seeds"]]


def recorded(path: Path) -> Recorded:
    """What `path` says of its run. ArtifactError where it does not say enough to make it again."""
    directory = RunDirectory.open(path)
    config, provenance = path / "config.yaml", directory.provenance()
    if not config.is_file():
        raise ArtifactError(f"{path} holds no config.yaml: the run cannot be made again without its experiment")
    absent = [key for key in ("seeds", "traces", "datapath", "kernel", "packages") if key not in provenance]
    if absent:
        raise ArtifactError(
            f"{path / 'provenance.json'} does not say {', '.join(absent)}: nothing to compare this machine with"
        )
    return Recorded(directory, config, provenance)


def other_traces(run: Recorded, traces: Sequence[Path]) -> list[str]:
    """A line for each trace that is not, byte for byte, the one the run replayed; `traces` in the tenants' order."""
    expected = run.provenance["traces"]
    if len(traces) != len(expected):
        return [f"the run replayed {len(expected)} trace files, its experiment now names {len(traces)}"]
    found = []
    for path, record in zip(traces, expected, strict=True):
        try:
            digest = sha256(path)
        except OSError as error:
            found.append(f"{path}: {error.strerror or error}; its SHA-256 was {record['sha256']}")
            continue
        if digest != record["sha256"]:
            found.append(f"{path}: its SHA-256 is {digest}, and the run replayed {record['sha256']}")
    return found


def other_plugins(record: Mapping[str, Any], plugins: Mapping[str, str]) -> list[str]:
    """A line for each plug-in that is not, byte for byte and by its class, the one that ran. `record`: the run's
    provenance (one from before plug-ins were recorded says nothing); `plugins`: by key of its experiment, as now."""
    if "plugins" not in record:
        return []
    expected = {entry["key"]: entry for entry in record["plugins"]}
    found = [
        f"{key}: the run had {expected[key]['plugin'] if key in expected else 'no plug-in'}, its experiment now names "
        f"{plugins.get(key, 'none')}"
        for key in sorted(expected.keys() ^ plugins.keys())
    ]
    for key in sorted(expected.keys() & plugins.keys()):
        then, now, path = expected[key], plugins[key], plugin_file.file_of(plugins[key])
        if then["plugin"].rpartition(":")[2] != now.rpartition(":")[2]:
            found.append(f"{key}: the run had {then['plugin']}, its experiment now names {now}")
        try:
            digest = plugin_file.sha256(path)
        except PluginError as error:
            found.append(f"{key}: {error}; its SHA-256 was {then['sha256']}")
            continue
        if digest != then["sha256"]:
            found.append(f"{key}: the SHA-256 of {path} is {digest}, and the run had {then['sha256']}")
    return found


def other_arrivals(run: Recorded, arrivals: Mapping[int, Iterable[Request]]) -> list[str]:
    """A line for each fabric and seed whose recorded requests are not the ones that this version would send."""
    found = []
    for entry in run.directory.summary().runs:
        table = run.directory.table(entry.name, entry.seed, "requests")
        if table is None or entry.seed not in arrivals:
            found.append(f"{entry.name}, seed {entry.seed}: no requests.csv, or a seed that is not in config.yaml")
            continue
        rows = [[getattr(request, key) for key in ARRIVAL_COLUMNS] for request in arrivals[entry.seed]]
        now = pd.DataFrame(rows, columns=list(ARRIVAL_COLUMNS)).sort_values("id").reset_index(drop=True)
        then = table[list(ARRIVAL_COLUMNS)].sort_values("id").reset_index(drop=True)
        unequal = len(then) if len(now) != len(then) else int((now != then).any(axis=1).sum())
        if unequal:
            found.append(
                f"{entry.name}, seed {entry.seed}: {unequal} of {len(then)} requests are others than were recorded"
            )
    return found


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two provenance records, in words, machine first; empty where nothing does."""
    found = [
        f"{name}: {_at(then, key)} then, {_at(now, key)} now"
        for key, name in _ASPECTS
        if _at(then, key) != _at(now, key)
    ]
    packages = {*then.get("packages", {}), *now.get("packages", {})}
    for package in sorted(packages):
        was, is_now = then.get("packages", {}).get(package), now.get("packages", {}).get(package)
        if was != is_now:
            found.append(f"{package}: {was} then, {is_now} now")
    sysctls = {**then.get("sysctls", {})}
    for name, value in now.get("sysctls", {}).items():
        if sysctls.pop(name, None) != value:
            found.append(f"sysctl {name}: {then.get('sysctls', {}).get(name)} then, {value} now")
    return [*found, *(f"sysctl {name}: {value} then, not set now" for name, value in sysctls.items())]


def nearness(first: RunDirectory, second: RunDirectory) -> list[str]:
    """For each fabric and seed of both: how many requests went to the same instances, and how far the medians are."""
    of_second = {(run.name, run.seed): run for run in second.summary().runs}
    found = []
    for run in first.summary().runs:
        other = of_second.get((run.name, run.seed))
        tables = first.table(run.name, run.seed, "requests"), second.table(run.name, run.seed, "requests")
        if other is None or tables[0] is None or tables[1] is None:
            continue
        both = tables[0].merge(tables[1], on="id", suffixes=("", "_again"))
        same = {key: int((both[key] == both[f"{key}_again"]).sum()) for key in ("prefill", "decode")}
        line = f"{run.name}, seed {run.seed}: same prefill for {same['prefill']} and same decode for {same['decode']} "
        line += f"of {len(both)} requests"
        a_s, b_s = run.ttft_s.p50, other.ttft_s.p50
        if a_s and b_s is not None:
            apart = b_s / a_s - 1
            verdict = "within" if abs(apart) <= MEDIAN_TOLERANCE else "beyond"
            line += f"; median TTFT {a_s:.3f} s and {b_s:.3f} s, {apart:+.1%}, {verdict} {MEDIAN_TOLERANCE:.0%}"
        found.append(line)
    return found


def _at(record: Mapping[str, Any], key: str) -> Any:
    value: Any = record
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
