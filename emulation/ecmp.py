"""Which uplink a connection will take, known before it is opened.

A leaf hashes the 5-tuple of what it forwards (see `topologies.wiring.ROUTER_SYSCTLS`). Kernels before 6.11 have no
seed for that hash, so the seed of an experiment picks an *uplink*, and the sender then binds a source port that the
leaf maps to it. `ip route get` asks the leaf's own routing code, so the answer is the path, not a model of it.

Ports come from a fixed range below the ephemeral ones, so that no other connection takes one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emulation.netns import batch, in_each
from emulation.testbed import Testbed
from topologies.cluster import Cluster, leaf_port

FIRST_PORT, LAST_PORT = 20_000, 32_767
PORTS_PER_UPLINK = 64

Pools = dict[str, dict[str, list[list[list[int]]]]]


class EcmpError(RuntimeError):
    """The leaf's hash does not reach every uplink: says which pair, how many ports were tried, and what to do."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A TCP connection as the leaf sees it. iif: the leaf's interface it comes in by."""

    source: str
    destination: str
    iif: str
    source_port: int
    destination_port: int


def egress_interfaces(flows: Sequence[Flow], *, where: str) -> list[str]:
    """The interface by which the calling thread's namespace forwards each flow. where: named in errors."""
    questions = "".join(
        f"route get {flow.destination} from {flow.source} iif {flow.iif} "
        f"ipproto tcp sport {flow.source_port} dport {flow.destination_port}\n"
        for flow in flows
    )
    found = re.findall(r"^\S+ from .*? dev (\S+)", batch("ip", questions, where=where), re.MULTILINE)
    if len(found) != len(flows):
        raise EcmpError(f"{where}: {len(found)} answers to {len(flows)} route look-ups")
    return found


def port_pools(
    testbed: Testbed, cluster: Cluster, *, destination_port: int, ports_per_uplink: int = PORTS_PER_UPLINK
) -> Pools:
    """Source ports by uplink, for every reachable pair of a cluster with fabric "eps".

    Returns prefill -> decode -> [rank][uplink] -> ports, ports_per_uplink of each, ascending; a function of the
    cluster and of the kernel's hash only. Raises EcmpError when the port range runs out before every uplink has its
    ports.
    """
    instances = {instance.name: instance for instance in cluster.instances}
    routes: dict[str, list[tuple[str, str, int]]] = {}
    for prefill, decodes in cluster.reachable.items():
        leaf = testbed.namespace(f"kl{instances[prefill].rack}")
        ranks = range(len(instances[prefill].gpu_ips))
        routes.setdefault(leaf, []).extend((prefill, decode, rank) for decode in decodes for rank in ranks)

    def flow(route: tuple[str, str, int], port: int) -> Flow:
        prefill, decode, rank = route
        source, destination = instances[prefill].gpu_ips[rank], instances[decode].gpu_ips[rank]
        return Flow(source, destination, leaf_port(prefill, rank), port, destination_port)

    def of_leaf(namespace: str) -> list[list[list[int]]]:
        pools: list[list[list[int]]] = [[[] for _ in range(cluster.uplinks)] for _ in routes[namespace]]
        for ports in _port_blocks(cluster.uplinks * ports_per_uplink):
            short = [
                (route, pool)
                for route, pool in zip(routes[namespace], pools, strict=True)
                if any(len(chosen) < ports_per_uplink for chosen in pool)
            ]
            if not short:
                return pools
            flows = [flow(route, port) for route, _ in short for port in ports]
            answers = iter(egress_interfaces(flows, where=namespace))
            for route, pool in short:
                for port in ports:
                    chosen = pool[_uplink_number(next(answers), route, cluster)]
                    if len(chosen) < ports_per_uplink:
                        chosen.append(port)
        for route, pool in zip(routes[namespace], pools, strict=True):
            if any(len(chosen) < ports_per_uplink for chosen in pool):
                raise EcmpError(
                    f"{route[0]} to {route[1]}, rank {route[2]}: ports {FIRST_PORT} to {LAST_PORT} give the uplinks "
                    f"{[len(chosen) for chosen in pool]} ports, not {ports_per_uplink} each; ask for fewer"
                )
        return pools

    result: Pools = {prefill: {} for prefill in cluster.reachable}
    leaves = list(routes)
    for leaf, pools in zip(leaves, in_each(leaves, of_leaf), strict=True):
        for (prefill, decode, _), pool in zip(routes[leaf], pools, strict=True):  # ranks are in order within a pair
            result[prefill].setdefault(decode, []).append(pool)
    return result


def _port_blocks(wanted: int) -> Iterator[range]:
    """The port range in blocks: the first is half as large again as what a fair hash needs, the others smaller."""
    start, size = FIRST_PORT, wanted + wanted // 2
    while start <= LAST_PORT:
        stop = min(start + size, LAST_PORT + 1)
        yield range(start, stop)
        start, size = stop, max(64, wanted // 4)


def _uplink_number(interface: str, route: tuple[str, str, int], cluster: Cluster) -> int:
    """`ks3` -> 3: a leaf's uplinks are named after their spines."""
    if not interface.startswith("ks"):
        if interface == leaf_port(route[1], route[2]):  # both ends on one leaf: no uplink is crossed
            return 0
        raise EcmpError(f"{route[0]} to {route[1]}: the leaf forwards by {interface}, which is no uplink")
    return int(interface[2:])
