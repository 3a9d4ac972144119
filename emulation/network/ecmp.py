"""Which uplink a connection will take, known before it is opened.

A leaf hashes the 5-tuple of what it forwards (see `topologies.wiring.ROUTER_SYSCTLS`). Kernels before 6.11 have no
seed for that hash, so the seed of an experiment picks an *uplink*, and the sender then binds a source port that the
leaf maps to it. The leaf's own routing code is asked, so the answer is the path, not a model of it.

Ports come from a fixed range below the ephemeral ones, so that no other connection takes one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from emulation.linux.netns import in_each
from emulation.linux.route_lookup import RouteLookup
from emulation.network.testbed import Testbed
from topologies.cluster import Cluster, leaf_port

FIRST_PORT, LAST_PORT = 20_000, 32_767
#: Ports of each uplink: enough that the transfers of one pair that meet on an uplink find a free one each. The more
#: uplinks, the fewer meet, and the more ports must be tried until every uplink has its own.
MOST_PORTS_PER_UPLINK, LEAST_PORTS_PER_UPLINK = 64, 4

#: prefill, decode, rank
Route: TypeAlias = tuple[str, str, int]
Pools: TypeAlias = dict[str, dict[str, list[list[list[int]]]]]


class EcmpError(RuntimeError):
    """The leaf's hash does not reach every uplink: says which pair, how many ports were tried, and what to do."""


def port_pools(
    testbed: Testbed, cluster: Cluster, *, destination_port: int, ports_per_uplink: int | None = None
) -> Pools:
    """Source ports by uplink, for every reachable pair of a cluster with fabric "eps".

    Returns prefill -> decode -> [rank][uplink] -> ports, ports_per_uplink of each (None: what the uplinks call for),
    ascending; a function of the cluster and of the kernel's hash only. A pair within one rack crosses no uplink and has
    no pools. Raises EcmpError when the port range runs out before every uplink has its ports.
    """
    if ports_per_uplink is None:
        ports_per_uplink = max(LEAST_PORTS_PER_UPLINK, MOST_PORTS_PER_UPLINK * 2 // max(2, cluster.uplinks))
    ranks = range(len(cluster.instances[0].gpu_ips))
    routes = [(prefill, peer, rank) for prefill, peers in cluster.reachable.items() for peer in peers for rank in ranks]
    every = [ports_per_uplink] * cluster.uplinks
    rack = {instance.name: instance.rack for instance in cluster.instances}
    wanted = {(prefill, peer, rank): every for prefill, peer, rank in routes if rack[prefill] != rack[peer]}
    found = source_ports(testbed, cluster, wanted, destination_port=destination_port)
    pools: Pools = {prefill: {} for prefill in cluster.reachable}
    for prefill, decode, rank in routes:  # ranks are in order within a pair
        pools[prefill].setdefault(decode, []).append(found.get((prefill, decode, rank), []))
    return pools


def source_ports(
    testbed: Testbed, cluster: Cluster, wanted: Mapping[Route, Sequence[int]], *, destination_port: int
) -> dict[Route, list[list[int]]]:
    """Source ports of some routes by uplink: as many as `wanted` says of each uplink, ascending.

    Raises EcmpError when the port range runs out before.
    """
    instances = {instance.name: instance for instance in cluster.instances}
    by_leaf: dict[str, list[Route]] = defaultdict(list)
    for route in wanted:
        by_leaf[testbed.namespace(f"kl{instances[route[0]].rack}")].append(route)

    def of_route(lookup: RouteLookup, route: Route) -> list[list[int]]:
        prefill, decode, rank = route
        missing = list(wanted[route])
        pool: list[list[int]] = [[] for _ in missing]
        for ports in _port_blocks(len(missing) * max(missing, default=0)):
            if not any(missing):
                break
            interfaces = lookup.egress(
                instances[prefill].gpu_ips[rank],
                instances[decode].gpu_ips[rank],
                iif=leaf_port(prefill, rank),
                source_ports=ports,
                destination_port=destination_port,
            )
            for port, interface in zip(ports, interfaces, strict=True):
                uplink = _uplink_number(interface, route)
                if missing[uplink]:
                    missing[uplink] -= 1
                    pool[uplink].append(port)
        if any(missing):
            raise EcmpError(
                f"{prefill} to {decode}, rank {rank}: ports {FIRST_PORT} to {LAST_PORT} give the uplinks "
                f"{[len(ports) for ports in pool]} ports, not {list(wanted[route])}; ask for fewer"
            )
        return pool

    def of_leaf(namespace: str) -> dict[Route, list[list[int]]]:
        with RouteLookup() as lookup:
            return {route: of_route(lookup, route) for route in by_leaf[namespace]}

    return {route: pool for found in in_each(list(by_leaf), of_leaf) for route, pool in found.items()}


def _port_blocks(wanted: int) -> Iterator[range]:
    """The port range in blocks: the first is half as large again as what a fair hash needs, the others smaller."""
    start, size = FIRST_PORT, wanted + wanted // 2
    while start <= LAST_PORT:
        stop = min(start + size, LAST_PORT + 1)
        yield range(start, stop)
        start, size = stop, max(64, wanted // 4)


def _uplink_number(interface: str, route: Route) -> int:
    """`ks3` -> 3: a leaf's uplinks are named after their spines."""
    if not interface.startswith("ks"):
        if interface == leaf_port(route[1], route[2]):  # both ends on one leaf: no uplink is crossed
            return 0
        raise EcmpError(f"{route[0]} to {route[1]}: the leaf forwards by {interface}, which is no uplink")
    return int(interface[2:])
