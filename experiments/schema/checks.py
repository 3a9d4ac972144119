"""What no single key can tell: whether the keys of an experiment fit together."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.schema.errors import Issue, SpecError
from experiments.schema.timing import read_timing
from experiments.schema.words import is_timing_file
from inputs.errors import KeyPath
from inputs.regular_file import no_file
from workloads.arrivals import SYNTHETIC, WITHOUT_SESSIONS
from workloads.kv import kv_model

if TYPE_CHECKING:
    from experiments.schema.models import Eps, Fabric, Ocs, Tenant
    from experiments.schema.spec import Experiment

#: What the files and folders of a run and of a grid are called, beside the folders of fabrics.
FILE_ENDINGS = (".json", ".jsonl", ".yaml", ".html", ".csv", ".log", ".out", ".tmp", ".pcap", ".py")
RUN_FOLDERS = ("cells", "logs")
#: Requests of one tenant if every prefill were the shortest possible; those of real workloads take 50 times as long.
MOST_REQUESTS = 20_000_000


def cross_checks(experiment: Experiment) -> list[Issue]:
    """Every misfit between keys, each with the path of the key to change."""
    return [
        *_cluster(experiment),
        *_prefill(experiment),
        *_tenants(experiment),
        *_fabrics(experiment),
        *_seeds(experiment),
    ]


def _cluster(experiment: Experiment) -> Iterator[Issue]:
    cluster, tp = experiment.cluster, experiment.model.tp
    gpus = cluster.gpus_per_instance
    if gpus > tp or tp % gpus:
        divisors = ", ".join(str(i) for i in range(1, tp + 1) if tp % i == 0)
        yield Issue(
            ("cluster", "gpus_per_instance"),
            f"{gpus} emulated GPUs cannot stand for model.tp = {tp} ranks; it must divide tp (allowed: {divisors})",
        )
    if cluster.gpus_per_node not in (None, gpus, 2 * gpus):
        yield Issue(
            ("cluster", "gpus_per_node"),
            f"{cluster.gpus_per_node} with gpus_per_instance {gpus} (allowed: {gpus}, one instance a node, or "
            f"{2 * gpus}, two)",
        )
    if cluster.gpus_per_node == 2 * gpus:
        for key in ("prefill_instances", "decode_instances"):
            if getattr(cluster, key) % 2:
                yield Issue(
                    ("cluster", key),
                    f"{getattr(cluster, key)} with two instances a node; KV stays within a half of the "
                    "node, so make it even",
                )
    model = experiment.model
    try:
        kv_model(model.name, kv_dtype=model.kv_dtype, tp=tp, bytes_per_token=model.bytes_per_token)
    except ValueError as error:
        yield Issue(("model", "tp"), str(error))


def _prefill(experiment: Experiment) -> Iterator[Issue]:
    timing, tp = experiment.prefill.timing, experiment.model.tp
    if not is_timing_file(timing):
        return
    try:
        measured_tp = read_timing(Path(timing)).tp
    except SpecError as error:
        yield from (Issue(("prefill", "timing"), line) for line in error.lines)
        return
    if measured_tp != tp:
        yield Issue(
            ("prefill", "timing"),
            f"{timing} was measured with tp = {measured_tp} and model.tp is {tp}; give a timing of tp = {tp}",
        )


def _tenants(experiment: Experiment) -> Iterator[Issue]:
    tenants = experiment.workload.tenants
    at: KeyPath = ("workload", "tenants")
    yield from _unique(at, [tenant.name for tenant in tenants], "tenant")
    for i, tenant in enumerate(tenants):
        yield from _tenant((*at, i), tenant)
        yield from _offered((*at, i), tenant, experiment)
    if experiment.workload.placement == "spread" and experiment.cluster.racks == "mixed":
        yield Issue(
            ("workload", "placement"),
            "'spread' deals nodes of racks that hold one role; with cluster.racks mixed use together",
        )
    try:
        experiment.owned_instances()
    except ValueError as error:
        yield Issue(at, str(error))


def _offered(at: KeyPath, tenant: Tenant, experiment: Experiment) -> Iterator[Issue]:
    """A load and a window whose requests would not fit into memory, however short their prefills."""
    if tenant.load is None:
        return
    try:
        shortest_s = experiment.timing.duration_s(1, 0)
    except SpecError:
        return
    instances = max(tenant.share * experiment.cluster.prefill_instances, 1.0)
    most = (
        tenant.load * instances * (experiment.workload.window_s + experiment.workload.warmup_s) / max(shortest_s, 1e-9)
    )
    if most > MOST_REQUESTS:
        yield Issue(
            (*at, "load"),
            f"{tenant.load:g} of {instances:g} prefill instances for {experiment.workload.window_s:g} s may be "
            f"{most:.2g} requests (at most {MOST_REQUESTS:.0e}); shorten workload.window_s or lower the load",
        )


def _tenant(at: KeyPath, tenant: Tenant) -> Iterator[Issue]:
    if tenant.name.startswith("warmup-"):
        yield Issue((*at, "name"), f"{tenant.name!r}: names starting with 'warmup-' are the warm-up's; choose another")
    if tenant.source == SYNTHETIC:
        for key in ("path", "offset_s", "ties", "windows", "time_unit"):
            if getattr(tenant, key) is not None:
                yield Issue((*at, key), f"{getattr(tenant, key)!r}: source {SYNTHETIC} reads no trace; remove {key}")
        for key in ("copies", "speedup"):
            if getattr(tenant, key) != 1:
                yield Issue((*at, key), f"{getattr(tenant, key)!r}: source {SYNTHETIC} reads no trace; remove {key}")
        if tenant.load is None:
            yield Issue(
                (*at, "load"), f"missing: source {SYNTHETIC} needs a load (0.6 is 60 % of its prefill instances)"
            )
        return
    if tenant.profile is not None:
        yield Issue((*at, "profile"), f"{tenant.profile!r}: profiles belong to source {SYNTHETIC}; remove it")
    if tenant.migrate == "affinity" and tenant.source in WITHOUT_SESSIONS:
        yield Issue(
            (*at, "migrate"), f"affinity needs sessions and a {tenant.source} trace has none; use always or a fraction"
        )
    if tenant.windows == "per-seed" and tenant.offset_s is not None:
        yield Issue(
            (*at, "offset_s"),
            f"{tenant.offset_s:g}: with windows per-seed the seed says where the window is; remove offset_s",
        )
    if tenant.path is None:
        key = ".".join(str(part) for part in (*at, "path"))
        yield Issue(
            (*at, "path"), f"missing: source {tenant.source} needs its trace file; give it with --set {key}=FILE"
        )
    elif problem := no_file(tenant.path):
        relative = (
            " (a path in the experiment file is relative to its folder, one given by --set to the current directory)"
        )
        yield Issue((*at, "path"), f"{tenant.path}: {problem}{'' if os.path.lexists(tenant.path) else relative}")


def _fabrics(experiment: Experiment) -> Iterator[Issue]:
    yield from _unique(("fabrics",), [fabric.name for fabric in experiment.fabrics], "fabric")
    yield from _folders([fabric.name for fabric in experiment.fabrics])
    yield from _unique_once_expanded(experiment.fabrics)
    for i, fabric in enumerate(experiment.fabrics):
        if fabric.kind == "eps":
            yield from _eps(("fabrics", i), fabric, experiment)
        elif fabric.kind == "ocs":
            yield from _commit(("fabrics", i), fabric)
            yield from _reachable(("fabrics", i), experiment)


def _folders(names: Sequence[str]) -> Iterator[Issue]:
    """Names that cannot be folders of a run: those of its own files, and two that are one to a disk that ignores case
    (as of a virtual machine's host)."""
    first: dict[str, tuple[int, str]] = {}
    for i, name in enumerate(names):
        if name.casefold().endswith(FILE_ENDINGS) or name.casefold() in RUN_FOLDERS:
            yield Issue(
                ("fabrics", i, "name"),
                f"{name!r}: a fabric's folder stands beside the run's own files (names that end in "
                f"{', '.join(FILE_ENDINGS)}, and {', '.join(RUN_FOLDERS)}); give it another name",
            )
        at, other = first.setdefault(name.casefold(), (i, name))
        if at != i and other != name:
            yield Issue(
                ("fabrics", i, "name"),
                f"{name!r} differs from fabric {at}'s {other!r} only in the case of its letters, and some disks keep "
                "both in one folder; give it another name",
            )


def _unique_once_expanded(fabrics: Sequence[Fabric]) -> Iterator[Issue]:
    """Names that only meet when a fabric becomes one for each of its hash seeds."""
    owner = {fabric.name: i for i, fabric in enumerate(fabrics)}
    for i, fabric in enumerate(fabrics):
        for each in fabric.by_hash_seed() if fabric.kind == "eps" else ():
            if owner.setdefault(each.name, i) != i:
                yield Issue(
                    ("fabrics", i, "name"),
                    f"{fabric.name!r} with ecmp_seeds becomes {each.name!r}, the name of fabric {owner[each.name]}; "
                    "give it another",
                )


def _commit(at: KeyPath, fabric: Ocs) -> Iterator[Issue]:
    if fabric.commit == "none" and fabric.decode_choice in ("circuit-aware", "network-aware", "sticky"):
        yield Issue(
            (*at, "decode_choice"),
            f"{fabric.decode_choice!r} chooses by what is booked, and commit none books nothing ahead; "
            "use least-loaded",
        )
    if fabric.commit == "none" and not fabric.bring_forward:
        yield Issue(
            (*at, "bring_forward"), "false, and commit none books nothing that could be brought forward; remove it"
        )


def _eps(at: KeyPath, fabric: Eps, experiment: Experiment) -> Iterator[Issue]:
    if fabric.decode_choice == "circuit-aware":
        yield Issue(
            (*at, "decode_choice"),
            "'circuit-aware' chooses by standing circuits and an eps has none; use sticky or least-loaded",
        )
    if (fabric.queue == "priority") != (fabric.routing == "srpt"):
        yield Issue(
            (*at, "queue"),
            f"{fabric.queue!r} with routing {fabric.routing}: srpt needs priority, and priority needs srpt; "
            "remove queue",
        )
    if fabric.routing == "srpt" and fabric.ecmp_unit == "pair":
        yield Issue(
            (*at, "ecmp_unit"),
            "'pair' with routing srpt: transfers on a kept connection follow each other, whatever is left of them; use "
            "transfer",
        )
    yield from _hash_seeds(at, fabric)
    if fabric.topology is None:
        yield from _leaf_spine(at, fabric, experiment)
        return
    for key in ("oversubscription", "uplinks"):
        if getattr(fabric, key) is not None:
            yield Issue((*at, key), f"{getattr(fabric, key):g} with a topology, which has links of its own; remove it")
    if fabric.routing != "ecmp":
        yield Issue((*at, "routing"), f"{fabric.routing!r} pools the uplinks of a leaf-spine; a topology has ecmp")


def _leaf_spine(at: KeyPath, fabric: Eps, experiment: Experiment) -> Iterator[Issue]:
    ports = experiment.cluster.instances_per_rack * experiment.cluster.gpus_per_instance
    if (fabric.oversubscription is None) == (fabric.uplinks is None):
        yield Issue(
            (*at, "oversubscription"), "give either oversubscription, uplinks or a topology, and only one of them"
        )
    elif fabric.uplinks is not None:
        if fabric.uplinks > ports:
            yield Issue(
                (*at, "uplinks"), f"{fabric.uplinks} uplinks for the {ports} GPU links of a rack (at most {ports})"
            )
    elif fabric.oversubscription is not None:
        uplinks = ports / fabric.oversubscription
        if abs(uplinks - round(uplinks)) > 1e-9 or round(uplinks) < 1:
            near = min(max(round(uplinks), 1), ports)
            yield Issue(
                (*at, "oversubscription"),
                f"{fabric.oversubscription:g} gives {uplinks:.4g} uplinks for the {ports} GPU links of a rack, not a "
                f"whole number; give uplinks: {near} ({ports / near:.4g}:1) instead",
            )


def _hash_seeds(at: KeyPath, fabric: Eps) -> Iterator[Issue]:
    if fabric.ecmp_seeds is None:
        return
    if fabric.routing != "ecmp":
        yield Issue((*at, "ecmp_seeds"), f"{fabric.ecmp_seeds}: routing {fabric.routing} hashes nothing; remove it")
    elif len(set(fabric.ecmp_seeds)) < len(fabric.ecmp_seeds):
        yield Issue((*at, "ecmp_seeds"), f"{fabric.ecmp_seeds} names a seed twice; each is one fabric")


def _reachable(at: KeyPath, experiment: Experiment) -> Iterator[Issue]:
    """With two instances a node, an instance only reaches those of the same half: those of the same parity."""
    if experiment.cluster.gpus_per_node != 2 * experiment.cluster.gpus_per_instance:
        return
    try:
        owned = experiment.owned_instances()
    except ValueError:
        return
    for tenant, instances in owned.items():
        halves = {int(name[1:]) % 2 for name in instances.decodes}
        stranded = [name for name in instances.prefills if int(name[1:]) % 2 not in halves]
        if stranded:
            yield Issue(
                at,
                f"with two instances a node, {', '.join(stranded)} of tenant {tenant} has no decode instance in its "
                f"half of the node (the tenant's: {', '.join(instances.decodes)}); change shares or counts",
            )


def _seeds(experiment: Experiment) -> Iterator[Issue]:
    for seed, count in Counter(experiment.seeds).items():
        if count > 1:
            yield Issue(("seeds",), f"{seed} is given {count} times; each seed is one run, so give it once")


def _unique(at: KeyPath, names: Sequence[str], what: str) -> Iterator[Issue]:
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if name in first:
            yield Issue((*at, i, "name"), f"{name!r} is already the name of {what} {first[name]}; give it its own")
        first.setdefault(name, i)
