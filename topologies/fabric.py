"""A leaf-spine fabric, added to a topology: routers, uplinks, and the routes that make ECMP of them.

Every leaf has one uplink to every spine; a leaf reaches what is not its own over all of them at equal cost, a spine
reaches each leaf's prefixes over its one link. Used twice by a cluster: for the host network, and for the KV fabric
of GPU NICs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topologies.wiring import Hop, WiredTopo


@dataclass
class LeafSpineFabric:
    """leaf_name, spine_name: prefixes of the routers' names. leaf_prefixes: for each leaf, the prefixes of its
    hosts, in CIDR form.

    covering: the prefix that holds all of them. loopbacks: first three octets of the leaves' and of the spines' own
    addresses.
    goodput_bps, queue, source_mask: of the uplinks, as in `WiredTopo.wire`.
    """

    topo: WiredTopo
    leaf_name: str
    spine_name: str
    spines: int
    leaf_prefixes: Sequence[Sequence[str]]
    covering: str
    loopbacks: tuple[str, str]  # "10.255.0" for the leaves, "10.255.1" for the spines
    goodput_bps: float | None = None
    queue: str = "fifo"
    source_mask: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.spines <= 250 or not 1 <= len(self.leaf_prefixes) <= 250:
            raise ValueError(f"{len(self.leaf_prefixes)} leaves and {self.spines} spines: give 1 to 250 of each")
        leaves = range(len(self.leaf_prefixes))
        for leaf in leaves:
            self.topo.add_router(self.leaf(leaf), self._leaf_ip(leaf))
        for spine in range(self.spines):
            self.topo.add_router(self.spine(spine), self._spine_ip(spine))
        for leaf in leaves:
            for spine in range(self.spines):
                self._wire_uplink(leaf, spine)
            uplinks = [Hop(self.spine(spine), self._spine_ip(spine)) for spine in range(self.spines)]
            self.topo.add_route(self.leaf(leaf), self.covering, uplinks)
            self.topo.add_route(self.leaf(leaf), f"{self.loopbacks[0]}.0/24", uplinks)
        for spine in range(self.spines):
            downlinks = [Hop(self.leaf(leaf), self._leaf_ip(leaf)) for leaf in leaves]
            self.topo.add_route(self.spine(spine), f"{self.loopbacks[1]}.0/24", downlinks)

    def leaf(self, number: int) -> str:
        return f"{self.leaf_name}{number}"

    def spine(self, number: int) -> str:
        return f"{self.spine_name}{number}"

    def _leaf_ip(self, number: int) -> str:
        return f"{self.loopbacks[0]}.{number + 1}"

    def _spine_ip(self, number: int) -> str:
        return f"{self.loopbacks[1]}.{number + 1}"

    def _wire_uplink(self, leaf: int, spine: int) -> None:
        """Interfaces are named after the router at the other end."""
        topo, leaf_name, spine_name = self.topo, self.leaf(leaf), self.spine(spine)
        leaf_mac, spine_mac = topo.wire(
            ((leaf_name, spine_name), (spine_name, leaf_name)),
            roles=("uplink", "downlink"),
            goodput_bps=self.goodput_bps,
            queue=self.queue,
            source_mask=self.source_mask,
        )
        topo.add_neighbour(leaf_name, self._spine_ip(spine), spine_mac, spine_name)
        topo.add_neighbour(spine_name, self._leaf_ip(leaf), leaf_mac, leaf_name)
        topo.add_route(leaf_name, f"{self._spine_ip(spine)}/32", [Hop(spine_name, self._spine_ip(spine))])
        for prefix in (f"{self._leaf_ip(leaf)}/32", *self.leaf_prefixes[leaf]):
            topo.add_route(spine_name, prefix, [Hop(leaf_name, self._leaf_ip(leaf))])

    def attach(
        self,
        leaf: int,
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
    ) -> None:
        """Wire (host, interface) with address `ip` to a leaf's `port`; the host reaches `destinations` (CIDR, or
        "default") over it."""
        topo, leaf_name, (node, interface) = self.topo, self.leaf(leaf), host
        leaf_mac, host_mac = topo.wire(
            ((leaf_name, port), (node, interface)),
            roles=roles,
            goodput_bps=goodput_bps,
            queue=queue,
            source_mask=source_mask,
        )
        topo.set_address(node, interface, f"{ip}/32")
        topo.add_neighbour(node, self._leaf_ip(leaf), leaf_mac, interface)
        topo.add_neighbour(leaf_name, ip, host_mac, port)
        topo.add_route(leaf_name, f"{ip}/32", [Hop(port)])
        for destination in destinations:
            topo.add_route(node, destination, [Hop(interface, self._leaf_ip(leaf))], rto_min_ms, window_bytes)
