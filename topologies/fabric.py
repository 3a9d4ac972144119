"""A packet fabric of kernel routers, added to a topology: routers, links, and the routes that make ECMP of them.

Used twice by a cluster: for the host network, and for the KV fabric of GPU NICs. A router reaches what is attached to
a leaf over every next hop of a shortest path, at equal cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from topologies.graph import RouterGraph
from topologies.wiring import Hop, WiredTopo

# What a router hashes (0x37, see `topologies.wiring`), less a field that is the same for all KV connections: the
# kernel has one hash for all namespaces, so a second tier that hashed the same would always take the same branch.
# Destination port, protocol, both.
_HASH_FIELDS_OF_TIER = ("55", "23", "51", "19")


@dataclass
class RoutedFabric:
    """`graph` wired into `topo`. `prefixes`: what is attached to each leaf, in CIDR form; `covering`: the prefix that
    holds all of them. `loopbacks`: first three octets of the leaves' and of the other routers' own addresses.

    goodput_bps: of a link of one NIC's rate, None = unshaped. queue, source_mask: of the links, as in `WiredTopo.wire`.
    """

    topo: WiredTopo
    graph: RouterGraph
    prefixes: Mapping[str, Sequence[str]]
    covering: str
    loopbacks: tuple[str, str]  # "10.255.0" for the leaves, "10.255.1" for the others
    goodput_bps: float | None = None
    queue: str = "fifo"
    source_mask: int = 0
    _addresses: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.graph
        others = [router for router in graph.routers if router not in graph.leaves]
        groups = dict(zip(self.loopbacks, (list(graph.leaves), others), strict=True))
        for octets, routers in groups.items():
            if len(routers) > 250:
                raise ValueError(f"{len(routers)} routers in one block of addresses: give at most 250")
            self._addresses |= {router: f"{octets}.{number + 1}" for number, router in enumerate(routers)}
        for router in graph.routers:
            self.topo.add_router(router, self._addresses[router])
            fields = _HASH_FIELDS_OF_TIER[min(graph.tier(router), len(_HASH_FIELDS_OF_TIER) - 1)]
            self.topo.nodeInfo(router)["sysctls"]["net.ipv4.fib_multipath_hash_fields"] = fields
        for link in graph.links:
            self._wire(link.a, link.b, link.nic_rates)
        for router in graph.routers:
            self._route_to_leaves(router)
            for octets, routers in groups.items():
                self._route_to_routers(router, f"{octets}.0/24", routers)

    def _wire(self, a: str, b: str, nic_rates: float) -> None:
        """Interfaces are named after the router at the other end."""
        topo = self.topo
        macs = topo.wire(
            ((a, b), (b, a)),
            roles=(self.graph.role(a, b), self.graph.role(b, a)),
            goodput_bps=None if self.goodput_bps is None else self.goodput_bps * nic_rates,
            queue=self.queue,
            source_mask=self.source_mask,
        )
        topo.add_neighbour(a, self._addresses[b], macs[1], b)
        topo.add_neighbour(b, self._addresses[a], macs[0], a)

    def _hops(self, router: str, destination: str) -> tuple[str, ...]:
        return tuple(self.graph.next_hops(router, destination))

    def _route(self, router: str, prefix: str, hops: Iterable[str]) -> None:
        self.topo.add_route(router, prefix, [Hop(hop, self._addresses[hop]) for hop in hops])

    def _route_to_leaves(self, router: str) -> None:
        """One covering route where all of them are reached alike, as from a leaf of a leaf-spine; else one for each
        prefix."""
        hops = {leaf: self._hops(router, leaf) for leaf in self.graph.leaves if leaf != router}
        if router in self.graph.leaves and len(set(hops.values())) == 1:
            self._route(router, self.covering, next(iter(hops.values())))
            return
        for leaf, over in hops.items():
            for prefix in self.prefixes[leaf]:
                self._route(router, prefix, over)

    def _route_to_routers(self, router: str, block: str, routers: Sequence[str]) -> None:
        """To the routers' own addresses, so that `ping` and `traceroute` work."""
        hops = {each: self._hops(router, each) for each in routers if each != router}
        if len(hops) > 1 and len(set(hops.values())) == 1:
            self._route(router, block, next(iter(hops.values())))
            return
        for each, over in hops.items():
            self._route(router, f"{self._addresses[each]}/32", over)

    def attach(
        self,
        leaf: str,
        host: tuple[str, str],
        ip: str,
        destinations: Sequence[str],
        *,
        roles: tuple[str, str],
        port: str,
        goodput_bps: float | None = None,
        queue: str = "fifo",
        source_mask: int = 0,
        rto_min_ms: int | None = None,
        window_bytes: int | None = None,
        congestion_control: str | None = None,
    ) -> None:
        """Wire (host, interface) with address `ip` to a leaf's `port`; the host reaches `destinations` (CIDR, or
        "default") over it."""
        topo, (node, interface) = self.topo, host
        leaf_mac, host_mac = topo.wire(
            ((leaf, port), (node, interface)),
            roles=roles,
            goodput_bps=goodput_bps,
            queue=queue,
            source_mask=source_mask,
        )
        topo.set_address(node, interface, f"{ip}/32")
        topo.add_neighbour(node, self._addresses[leaf], leaf_mac, interface)
        topo.add_neighbour(leaf, ip, host_mac, port)
        topo.add_route(leaf, f"{ip}/32", [Hop(port)])
        for destination in destinations:
            hop = Hop(interface, self._addresses[leaf])
            topo.add_route(node, destination, [hop], rto_min_ms, window_bytes, congestion_control)
