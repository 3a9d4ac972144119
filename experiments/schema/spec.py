"""The experiment spec: what is run, in real units. `load()` is the way in; it raises one kind of error, `SpecError`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from experiments.schema.checks import cross_checks
from experiments.schema.errors import Issue, SpecError, issues
from experiments.schema.models import (
    DECODE_CHOICES,
    ClusterSpec,
    Eps,
    Fabric,
    Model,
    Name,
    NoFabric,
    Ocs,
    Prefill,
    Scale,
    Slo,
    SpecModel,
    Tenant,
    Workload,
)
from experiments.schema.sessions import refuse_where_none_has
from experiments.schema.source import Source, read
from experiments.schema.timing import read_timing
from experiments.schema.topology import leaf_spine, user_graph
from experiments.schema.words import is_timing_file
from inputs import yaml_file
from inputs.errors import KeyPath
from inputs.plugin_file import PluginError, find, names_plugin
from topologies.graph import RouterGraph
from topologies.shape import ClusterShape, KvPaths
from workloads import arrivals as arrivals_module
from workloads.arrivals import Arrivals
from workloads.kv import KvModel, kv_model
from workloads.prefill import TIMINGS, PrefillTiming
from workloads.request import Request
from workloads.tenants import OwnedInstances, TenantSpec, owned_instances

__all__ = ["DECODE_CHOICES", "Eps", "Experiment", "Fabric", "NoFabric", "Ocs", "SpecError", "load"]


#: Keys of a fabric that may name a user's own class.
PLUGIN_KEYS = ("topology", "decode_choice", "commit")


class Experiment(SpecModel):
    """One experiment: every fabric sees the same arrivals, for every seed."""

    name: Name = Field(description="the experiment's name")
    cluster: ClusterSpec = Field(description="instances and links")
    model: Model = Field(description="what is served")
    prefill: Prefill = Field(default_factory=Prefill, description="prefill timing")
    scale: Scale = Field(default_factory=Scale, description="real to emulated")
    transfer: Literal["layerwise", "pull"] = Field("layerwise", description="when KV moves")
    workload: Workload = Field(description="what is asked")
    fabrics: list[Annotated[Fabric, Field(discriminator="kind")]] = Field(
        min_length=1, description="what carries the KV"
    )
    slo: Slo = Field(default_factory=Slo, description="service level")
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field(
        [1], min_length=1, description="one run per fabric and seed"
    )

    by_path: ClassVar[Mapping[tuple[str, ...], type[BaseModel]]]

    @model_validator(mode="after")
    def _cross_checked(self) -> Experiment:
        if found := cross_checks(self):
            text = "; ".join(f"{'.'.join(map(str, issue.path))}: {issue.text}" for issue in found)
            raise PydanticCustomError("cross_check", "{text}", {"text": text, "issues": found})
        return self

    @property
    def kv_goodput_bytes_per_s(self) -> float:
        """Goodput of one GPU's KV link in real bytes per second: link_gbps * link_efficiency / 8."""
        return self.cluster.link_gbps * 1e9 * self.cluster.link_efficiency / 8

    @property
    def kv(self) -> KvModel:
        """The model's KV sizes."""
        model = self.model
        return kv_model(model.name, kv_dtype=model.kv_dtype, tp=model.tp, bytes_per_token=model.bytes_per_token)

    @cached_property
    def timing(self) -> PrefillTiming:
        """The prefill timing model with this experiment's chunk size. Raises SpecError where its file has become
        unreadable since the experiment was loaded."""
        name = self.prefill.timing
        timing = read_timing(Path(name)).timing() if is_timing_file(name) else TIMINGS[name]
        chunk_tokens = self.prefill.chunk_tokens
        return timing if chunk_tokens is None else replace(timing, chunk_tokens=chunk_tokens)

    @property
    def plugins(self) -> dict[str, str]:
        """Every plug-in (`/folder/module.py:Class`) by the key that names it, such as fabrics.1.decode_choice."""
        named = {
            f"fabrics.{i}.{key}": getattr(fabric, key, None)
            for i, fabric in enumerate(self.fabrics)
            for key in PLUGIN_KEYS
        }
        named["prefill.choice"] = self.prefill.choice
        named |= {f"workload.tenants.{i}.source": tenant.source for i, tenant in enumerate(self.workload.tenants)}
        return {key: value for key, value in named.items() if value is not None and names_plugin(value)}

    @property
    def gpus_per_node(self) -> int:
        return self.cluster.gpus_per_node or self.cluster.gpus_per_instance

    @property
    def tenants(self) -> list[TenantSpec]:
        return [tenant.tenant_spec() for tenant in self.workload.tenants]

    def uplinks(self, fabric: Fabric) -> int:
        """Uplinks of each rack of a leaf-spine; 0 for a topology of one's own and for the other kinds."""
        if not isinstance(fabric, Eps) or fabric.topology is not None:
            return 0
        if fabric.uplinks is not None:
            return fabric.uplinks
        assert fabric.oversubscription is not None  # a cross-check: one of the two is given
        return round(self.cluster.instances_per_rack * self.cluster.gpus_per_instance / fabric.oversubscription)

    def expanded(self) -> Experiment:
        """The experiment with a fabric for each hash seed; a file's errors are told before, by its own numbering."""
        fabrics = [
            each for fabric in self.fabrics for each in (fabric.by_hash_seed() if isinstance(fabric, Eps) else [fabric])
        ]
        return self if len(fabrics) == len(self.fabrics) else self.model_copy(update={"fabrics": fabrics})

    @property
    def shape(self) -> ClusterShape:
        """How many instances there are, and how they sit in racks. Raises ValueError on a shape that cannot be."""
        cluster = self.cluster
        return _shape(
            prefill_instances=cluster.prefill_instances,
            decode_instances=cluster.decode_instances,
            gpus_per_instance=cluster.gpus_per_instance,
            instances_per_rack=cluster.instances_per_rack,
            racks=cluster.racks,
            gpus_per_node=self.gpus_per_node,
        )

    def kv_graph(self, fabric: Fabric) -> RouterGraph | None:
        """The routers of a packet fabric and their links; None for the other kinds. Raises ValueError where the shape
        or a user's topology cannot be."""
        if not isinstance(fabric, Eps):
            return None
        if fabric.topology is not None:
            return user_graph(fabric.topology, self.shape)
        return leaf_spine(self.shape, self.uplinks(fabric), fabric.routing != "ecmp")

    def kv_paths(self, fabric: Fabric) -> KvPaths | None:
        """The paths of a packet fabric's KV; None for the other kinds."""
        graph = self.kv_graph(fabric)
        return None if graph is None else KvPaths(self.shape, graph)

    def reachable(self) -> dict[str, list[str]]:
        """Prefill -> the decode instances of its tenant at its GPU positions; the spec's checks leave none without."""
        return {
            prefill: [decode for decode in self.shape.reachable[prefill] if decode in owned.decodes]
            for owned in self.owned_instances().values()
            for prefill in owned.prefills
        }

    def owned_instances(self) -> dict[str, OwnedInstances]:
        """The instances of each tenant by name."""
        cluster = self.cluster
        per_node = self.gpus_per_node // cluster.gpus_per_instance
        return owned_instances(
            self.tenants,
            prefill_instances=cluster.prefill_instances,
            decode_instances=cluster.decode_instances,
            spread=(cluster.instances_per_rack, per_node) if self.workload.placement == "spread" else None,
        )

    def arrivals(self, seed: int) -> Arrivals:
        """The requests of one seed, the same for every fabric, and what each tenant offers. Raises SpecError for a rule
        that has nothing to act on in them, and as `workloads.arrivals`."""
        found = arrivals_module.arrivals(
            self.tenants,
            prefill_instances=self.cluster.prefill_instances,
            timing=self.timing,
            window_s=self.workload.window_s,
            warmup_s=self.workload.warmup_s,
            seed=seed,
            median_error=self.prefill.median_error,
            error_on=self.prefill.error_on,
        )
        if not any(report.in_sessions for report in found.reports):
            refuse_where_none_has(self.fabrics)
        return found

    def requests(self, seed: int) -> list[Request]:
        """The requests of one seed, sorted by arrival."""
        return self.arrivals(seed).requests

    def dump(self) -> str:
        """The resolved experiment as YAML: every default written out, paths absolute. Loading it gives the same
        experiment."""
        data = self.model_dump(mode="json", exclude_none=True)
        return yaml_file.dump(data)


@lru_cache(maxsize=64)
def _shape(**shape: Any) -> ClusterShape:
    """Made once: what follows from a shape is asked for many times."""
    return ClusterShape(**shape)


Experiment.by_path = {
    (): Experiment,
    ("cluster",): ClusterSpec,
    ("model",): Model,
    ("prefill",): Prefill,
    ("scale",): Scale,
    ("workload",): Workload,
    ("workload", "tenants"): Tenant,
    ("fabrics", "eps"): Eps,
    ("fabrics", "ocs"): Ocs,
    ("fabrics", "none"): NoFabric,
    ("slo",): Slo,
}


def load(
    path: str | Path, overrides: Sequence[str] = (), seed: int | None = None, *, over: Sequence[str] = ()
) -> Experiment:
    """Read, override, resolve and check an experiment.

    `overrides` are `path.to.key=value` (values are YAML, list items by index), and so is `over`, a point of a grid,
    which is laid over them; `seed` replaces `seeds`. A trace's `path` and a timing file are relative to the file's
    folder, or to the current directory where they come from an override; a plug-in becomes `/folder/module.py:Class`.
    Raises SpecError.
    """
    source = read(path)
    for override in overrides:
        source.override(override)
    for each in over:
        source.override(each, "--over")
    if seed is not None:
        source.lay("seeds", [seed], f"--seed {seed}")
    _resolve_paths(source)
    not_found = _find_plugins(source)
    try:
        experiment = Experiment.model_validate(source.data).expanded()
    except ValidationError as error:
        raise source.error(issues(error, Experiment.by_path, frozenset(("eps", "ocs", "none")))) from None
    if not_found:
        raise source.error(not_found)
    return experiment


def _resolve_paths(source: Source) -> None:
    """Make the paths in a spec absolute: of traces, and of a timing file."""

    def resolved(value: str, at: KeyPath) -> str:
        folder = Path.cwd() if source.overridden(at) else source.path.resolve().parent
        return os.path.abspath(folder / os.path.expanduser(value))

    workload, prefill = source.data.get("workload"), source.data.get("prefill")
    tenants = workload.get("tenants") if isinstance(workload, dict) else None
    for i, tenant in enumerate(tenants if isinstance(tenants, list) else []):
        if isinstance(tenant, dict) and isinstance(tenant.get("path"), str) and tenant["path"]:
            tenant["path"] = resolved(tenant["path"], ("workload", "tenants", i, "path"))
    if isinstance(prefill, dict) and isinstance(prefill.get("timing"), str) and is_timing_file(prefill["timing"]):
        prefill["timing"] = resolved(prefill["timing"], ("prefill", "timing"))


def _find_plugins(source: Source) -> list[Issue]:
    """Name the file of every plug-in of a spec; an issue for each that is nowhere."""
    beside = source.path.resolve().parent
    found: list[Issue] = []
    for item, at in _plugin_places(source.data):
        key = str(at[-1])
        value = item.get(key)
        if not isinstance(value, str) or not names_plugin(value):
            continue
        is_path, here = value.rpartition(":")[0].endswith(".py"), source.overridden(at)
        try:
            item[key] = find(value, _here() if is_path and here else [beside, *_here()])
        except PluginError as error:
            found.append(Issue(at, f"{value!r}: {error}"))
    return found


def _plugin_places(data: dict[str, Any]) -> Iterator[tuple[dict[str, Any], KeyPath]]:
    """Every mapping of a spec that may name a plug-in, with the path of the key that does."""
    workload, fabrics, prefill = data.get("workload"), data.get("fabrics"), data.get("prefill")
    tenants = workload.get("tenants") if isinstance(workload, dict) else None
    for i, fabric in enumerate(fabrics if isinstance(fabrics, list) else []):
        if isinstance(fabric, dict):
            yield from ((fabric, ("fabrics", i, key)) for key in PLUGIN_KEYS)
    for i, tenant in enumerate(tenants if isinstance(tenants, list) else []):
        if isinstance(tenant, dict):
            yield tenant, ("workload", "tenants", i, "source")
    if isinstance(prefill, dict):
        yield prefill, ("prefill", "choice")


def _here() -> list[Path]:
    try:
        return [Path.cwd()]
    except FileNotFoundError:  # it was removed under us: nothing lies there
        return []
