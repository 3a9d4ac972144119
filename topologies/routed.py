"""A user's `Topo` as a network of routers and hosts that stock Mininet runs: `mn --custom FILE --topo NAME`."""

from __future__ import annotations

from mininet.topo import Topo

from topologies.fabric import RoutedFabric
from topologies.graph import graph_of
from topologies.wiring import WiredTopo, ipv4


def routed(make: type[Topo]) -> type[WiredTopo]:
    """The class to name in `topos`: its switches become kernel routers with ECMP, and each rack gets its GPU NICs as
    hosts `h<rack>-<number>`, one for each instance and rank.

    `make` is what an experiment names as `topology`. Links are not shaped there, as in all of `mn`. Raises
    TopologyError with the node or link that is wrong.
    """

    class Routed(WiredTopo):
        def build(self, racks: int = 4, instances_per_rack: int = 2, gpus_per_instance: int = 1) -> None:
            topo = make(racks=racks, instances_per_rack=instances_per_rack, gpus_per_instance=gpus_per_instance)
            graph = graph_of(topo, racks=racks, ranks=gpus_per_instance)
            hosts = {place: [_address(place, seat) for seat in range(instances_per_rack)] for place in graph.leaf_of}
            fabric = RoutedFabric(
                self,
                graph,
                prefixes={
                    leaf: [f"{ip}/32" for place, ips in hosts.items() if graph.leaf_of[place] == leaf for ip in ips]
                    for leaf in graph.leaves
                },
                covering="10.64.0.0/10",
                loopbacks=("10.255.0", "10.255.1"),
            )
            for (rack, rank), ips in hosts.items():
                for seat, ip in enumerate(ips):
                    name = self.add_host(f"h{rack}-{seat * gpus_per_instance + rank}")
                    leaf = graph.leaf_of[rack, rank]
                    roles = ("leaf-to-gpu", "gpu-nic")
                    fabric.attach(leaf, (name, "gpu0"), ip, ["default"], roles=roles, port=name)

    Routed.__name__ = Routed.__qualname__ = make.__name__
    return Routed


def _address(place: tuple[int, int], seat: int) -> str:
    rack, rank = place
    return ipv4(f"10.{64 + rank}.0.0", (rack + 1) * 256 + seat + 1)
