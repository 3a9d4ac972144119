"""Which path a connection will take, known before it is opened.

A router hashes the 5-tuple of what it forwards (see `topologies.wiring.ROUTER_SYSCTLS`). Kernels before 6.11 have no
seed for that hash, so the seed of an experiment picks a *path*, and the sender then binds a source port that the
routers map to it. The routers' own routing code is asked, so the answer is the path, not a model of it.

Ports come from a fixed range below the ephemeral ones, so that no other connection takes one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from emulation.linux.netns import in_each
from emulation.linux.route_lookup import RouteLookup
from emulation.network.testbed import Testbed
from topologies.cluster import Cluster, leaf_port
from topologies.graph import Path

FIRST_PORT, LAST_PORT = 20_000, 32_767
#: Ports of each path: enough that the transfers of one pair that meet on a path find a free one each. The more paths,
#: the fewer meet, and the more ports must be tried until every path has its own.
MOST_PORTS_PER_PATH, LEAST_PORTS_PER_PATH = 64, 4

#: prefill, decode, rank
Route: TypeAlias = tuple[str, str, int]
Pools: TypeAlias = dict[str, dict[str, list[list[list[int]]]]]


class EcmpError(RuntimeError):
    """The routers' hash does not reach every path: says which pair, how many ports were tried, and what to do."""


def port_pools(
    testbed: Testbed, cluster: Cluster, *, destination_port: int, ports_per_path: int | None = None
) -> Pools:
    """Source ports by path, for every reachable pair of a cluster with fabric "eps".

    Returns prefill -> decode -> [rank][path] -> ports, ports_per_path of each (None: what the paths call for),
    ascending; a function of the cluster and of the kernel's hash only. A pair within one leaf crosses no link between
    routers and has no pools. Raises EcmpError when the port range runs out before every path has its ports.
    """
    paths, ranks = cluster.kv_paths, range(cluster.shape.gpus_per_instance)
    routes = [(prefill, peer, rank) for prefill, peers in cluster.reachable.items() for peer in peers for rank in ranks]
    count = {route: len(paths.between(*route)) for route in routes if paths.cross(*route)}
    if ports_per_path is None:
        most = max(count.values(), default=1)
        ports_per_path = max(LEAST_PORTS_PER_PATH, MOST_PORTS_PER_PATH * 2 // max(2, most))
    wanted = {route: [ports_per_path] * paths for route, paths in count.items()}
    found = source_ports(testbed, cluster, wanted, destination_port=destination_port)
    pools: Pools = {prefill: {} for prefill in cluster.reachable}
    for prefill, decode, rank in routes:  # ranks are in order within a pair
        pools[prefill].setdefault(decode, []).append(found.get((prefill, decode, rank), []))
    return pools


def source_ports(
    testbed: Testbed, cluster: Cluster, wanted: Mapping[Route, Sequence[int]], *, destination_port: int
) -> dict[Route, list[list[int]]]:
    """Source ports of some routes by path: as many as `wanted` says of each path, ascending.

    Raises EcmpError when the port range runs out before.
    """
    missing = {route: list(counts) for route, counts in wanted.items()}
    pools: dict[Route, list[list[int]]] = {route: [[] for _ in counts] for route, counts in wanted.items()}
    blocks = {route: _port_blocks(len(counts) * max(counts, default=0)) for route, counts in wanted.items()}
    number = {route: {path: i for i, path in enumerate(cluster.kv_paths.between(*route))} for route in wanted}
    while open_routes := [route for route in wanted if any(missing[route])]:
        ports = {route: next(blocks[route], None) for route in open_routes}
        for route, block in ports.items():
            if block is None:
                prefill, decode, rank = route
                raise EcmpError(
                    f"{prefill} to {decode}, rank {rank}: ports {FIRST_PORT} to {LAST_PORT} give the paths "
                    f"{[len(each) for each in pools[route]]} ports, not {list(wanted[route])}; ask for fewer"
                )
        taken = _paths_taken(
            testbed, cluster, {route: block for route, block in ports.items() if block}, destination_port
        )
        for route, by_port in taken.items():
            for port, path in sorted(by_port.items()):
                if path not in number[route]:
                    raise EcmpError(
                        f"{route[0]} to {route[1]}: the routers forward by {' '.join(path)}, no shortest path"
                    )
                if missing[route][number[route][path]]:
                    missing[route][number[route][path]] -= 1
                    pools[route][number[route][path]].append(port)
    return pools


@dataclass(frozen=True, slots=True)
class _Front:
    """Source ports of a route whose path is known up to the last router of `path`."""

    route: Route
    path: Path
    ports: tuple[int, ...]


def _paths_taken(
    testbed: Testbed, cluster: Cluster, ports: Mapping[Route, Sequence[int]], destination_port: int
) -> dict[Route, dict[int, Path]]:
    """Source port -> path. A router with one next hop is not asked; the others are, each about all fronts that have
    reached it at once."""
    graph, rack_of = cluster.kv_paths.graph, cluster.shape.rack_of
    addresses = {instance.name: instance.gpu_ips for instance in cluster.instances}
    found: dict[Route, dict[int, Path]] = {route: {} for route in ports}

    def leaf(instance: str, route: Route) -> str:
        return graph.leaf_of[rack_of[instance], route[2]]

    def hashed(namespace: str) -> list[_Front]:
        with RouteLookup() as lookup:
            return [after for front in asked[namespace] for after in _next(lookup, front, addresses, destination_port)]

    fronts = [_Front(route, (leaf(route[0], route),), tuple(block)) for route, block in ports.items()]
    while fronts:
        asked: dict[str, list[_Front]] = defaultdict(list)
        for front in fronts:
            path, end = front.path, leaf(front.route[1], front.route)
            while path[-1] != end and len(hops := graph.next_hops(path[-1], end)) == 1:
                path = (*path, hops[0])
            if path[-1] == end:
                found[front.route].update(dict.fromkeys(front.ports, path))
            else:
                asked[testbed.namespace(path[-1])].append(_Front(front.route, path, front.ports))
        fronts = [front for answer in in_each(list(asked), hashed) for front in answer]
    return found


def _next(
    lookup: RouteLookup, front: _Front, addresses: Mapping[str, Sequence[str]], destination_port: int
) -> Iterator[_Front]:
    """A front one router further on, by each of the next hops that its ports are hashed to."""
    prefill, decode, rank = front.route
    interfaces = lookup.egress(
        addresses[prefill][rank],
        addresses[decode][rank],
        iif=front.path[-2] if len(front.path) > 1 else leaf_port(prefill, rank),
        source_ports=front.ports,
        destination_port=destination_port,
    )
    by_hop: dict[str, list[int]] = defaultdict(list)
    for port, interface in zip(front.ports, interfaces, strict=True):
        by_hop[interface].append(port)  # a link's interface is named after the router at its other end
    for hop, ports in by_hop.items():
        yield _Front(front.route, (*front.path, hop), tuple(ports))


def _port_blocks(wanted: int) -> Iterator[range]:
    """The port range in blocks: the first is half as large again as what a fair hash needs, the others smaller."""
    start, size = FIRST_PORT, wanted + wanted // 2
    while start <= LAST_PORT:
        stop = min(start + size, LAST_PORT + 1)
        yield range(start, stop)
        start, size = stop, max(64, wanted // 4)
