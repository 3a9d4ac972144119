"""Tenants: who asks, how much of the cluster is theirs, and which of their requests carry their prefix across."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from workloads.seeds import uniform

TimeUnit: TypeAlias = Literal["s", "ms"]
Migrate: TypeAlias = Literal["always", "affinity"] | float
CONTEXT_LIMIT_TOKENS = 131_072


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """One tenant.

    `share` of the GPUs belong to it (0 < share <= 1). `load` is the offered utilisation of its prefill instances: the
    prefill time of its requests / (window * its instances); None replays a trace at its own rate. `migrate`:
    `always`, `affinity` or the fraction of requests whose prefix crosses. `profile` belongs to the synthetic source;
    `path`, `offset_s` (seconds of the trace, before any scaling, at which the measured window starts; None: as early
    as the warm-up allows) and `ties` to traces. Requests longer than `max_context_tokens` are dropped and counted.
    `copies` superposes that many shifted copies of a trace. `windows`: with `same` every seed replays the window at
    `offset_s`; with `per-seed` every copy is turned by a shift drawn from the seed, wrapped around, so that each seed
    replays a window of its own. `speedup` divides every time of a trace (2 replays twice
    as fast: arrivals, think times, sessions); a trace with arrival times takes either it or a load.
    `time_unit`: that of a trace whose format leaves it open; None: the format's.
    """

    name: str
    source: str
    share: float = 1.0
    load: float | None = None
    migrate: Migrate = "always"
    profile: str | None = None
    path: str | None = None
    offset_s: float | None = None
    ties: Literal["spread", "keep"] = "spread"
    max_context_tokens: int = CONTEXT_LIMIT_TOKENS
    copies: int = 1
    windows: Literal["same", "per-seed"] = "same"
    speedup: float = 1.0
    time_unit: TimeUnit | None = None


@dataclass(frozen=True, slots=True)
class OwnedInstances:
    """The instances of one tenant, by name."""

    prefills: tuple[str, ...]
    decodes: tuple[str, ...]


def owned_instances(
    tenants: Sequence[TenantSpec],
    *,
    prefill_instances: int,
    decode_instances: int,
    spread: tuple[int, int] | None = None,
) -> dict[str, OwnedInstances]:
    """Split p0.. and d0.. over the tenants by share (largest remainder), in the tenants' order.

    `spread`: (instances of a rack, of a node); tenants are then dealt nodes of every rack in turn (`dealt`).
    Raises ValueError where the shares do not add up to 1 or where a tenant would own no instance of a kind.
    """
    prefills = _names("p", _split(tenants, prefill_instances, "prefill_instances"), spread)
    decodes = _names("d", _split(tenants, decode_instances, "decode_instances"), spread)
    return {
        tenant.name: OwnedInstances(owned_prefills, owned_decodes)
        for tenant, owned_prefills, owned_decodes in zip(tenants, prefills, decodes, strict=True)
    }


def owned_prefill_counts(tenants: Sequence[TenantSpec], prefill_instances: int) -> dict[str, int]:
    """How many prefill instances each tenant owns. Raises ValueError as `owned_instances`."""
    counts = _split(tenants, prefill_instances, "prefill_instances")
    return {tenant.name: count for tenant, count in zip(tenants, counts, strict=True)}


def migrates(migrate: Migrate, *, seed: int, request_id: str) -> bool | None:
    """What `Request.migrates` is: True or False where it is drawn beforehand, None where affinity decides it."""
    if migrate == "always":
        return True
    if migrate == "affinity":
        return None
    return uniform(seed, "migrate", request_id) < float(migrate)


def _split(tenants: Sequence[TenantSpec], instances: int, what: str) -> list[int]:
    total = math.fsum(tenant.share for tenant in tenants)
    if abs(total - 1) > 1e-6:
        shares = ", ".join(f"{tenant.name} {tenant.share:g}" for tenant in tenants)
        raise ValueError(f"the tenants' shares add up to {total:g} ({shares}); they must add up to 1")
    quotas = [tenant.share * instances for tenant in tenants]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(tenants)), key=lambda i: (counts[i] - quotas[i], i))
    for i in by_remainder[: instances - sum(counts)]:
        counts[i] += 1
    for tenant, quota, count in zip(tenants, quotas, counts, strict=True):
        if count == 0:
            raise ValueError(
                f"tenant {tenant.name} with share {tenant.share:g} owns {quota:.2f} of {instances} {what}, which "
                f"rounds to none; raise its share to {1 / instances:.3g} or {what} to {math.ceil(1 / tenant.share)}"
            )
    return counts


def dealt(instances: int, per_rack: int, per_node: int) -> list[int]:
    """The numbers of the instances of one role, the first node of every rack first, then the second of each: whoever
    takes the next ones is spread over the racks."""
    nodes = -(-instances // per_node)
    nodes_per_rack = max(1, per_rack // per_node)
    order = sorted(range(nodes), key=lambda node: (node % nodes_per_rack, node // nodes_per_rack))
    return [i for node in order for i in range(node * per_node, min((node + 1) * per_node, instances))]


def _names(prefix: str, counts: Sequence[int], spread: tuple[int, int] | None) -> list[tuple[str, ...]]:
    order = range(sum(counts)) if spread is None else dealt(sum(counts), *spread)
    names: list[tuple[str, ...]] = []
    first = 0
    for count in counts:
        names.append(tuple(f"{prefix}{i}" for i in sorted(order[first : first + count])))
        first += count
    return names
