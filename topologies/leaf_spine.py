"""A leaf-spine of kernel L3 routers with 5-tuple ECMP.

Stock Mininet builds it too, with addresses, routes and hash policy (links are not shaped there; no switch, so no
controller):

    mn --custom topologies/leaf_spine.py --topo leafspine,racks=2,hosts_per_rack=4,uplinks=2 --test pingall
"""

import sys
from pathlib import Path

try:
    from topologies.fabric import RoutedFabric
# `mn --custom` executes this text without a package or a `__file__`; its code object still knows the path
except ImportError:
    sys.path.insert(0, str(Path(sys._getframe().f_code.co_filename).resolve().parents[1]))
    from topologies.fabric import RoutedFabric

from topologies.graph import leaf_spine_graph
from topologies.wiring import WiredTopo

HOST_PREFIX = "10.0.0.0/16"


class LeafSpine(WiredTopo):
    """racks x hosts_per_rack hosts `h0..`, one leaf `leaf0..` a rack, one uplink of each leaf to each of `uplinks`
    spines `spine0..`.

    goodput_bps: TCP payload rate of every link in bits per second, None = unshaped. queue: "fifo" or "drr".
    Host h of rack r has 10.0.r.(h+1); oversubscription is hosts_per_rack / uplinks.
    """

    racks: int
    hosts_per_rack: int
    uplinks: int

    def build(
        self,
        racks: int = 2,
        hosts_per_rack: int = 2,
        uplinks: int = 2,
        goodput_bps: float | None = None,
        queue: str = "fifo",
    ) -> None:
        """Raises ValueError when a count is outside 1..250."""
        if not 1 <= hosts_per_rack <= 250:
            raise ValueError(f"hosts_per_rack is {hosts_per_rack}: give 1 to 250")
        self.racks, self.hosts_per_rack, self.uplinks = racks, hosts_per_rack, uplinks
        graph = leaf_spine_graph(racks, uplinks, leaf="leaf", spine="spine")
        fabric = RoutedFabric(
            self,
            graph,
            prefixes={leaf: [f"10.0.{rack}.0/24"] for rack, leaf in enumerate(graph.leaves)},
            covering=HOST_PREFIX,
            loopbacks=("10.255.0", "10.255.1"),
            goodput_bps=goodput_bps,
            queue=queue,
            source_mask=0x1F,
        )
        for rack in range(racks):
            for index in range(hosts_per_rack):
                name = self.add_host(f"h{rack * hosts_per_rack + index}")
                fabric.attach(
                    graph.leaf_of[rack, 0],
                    (name, "host0"),
                    f"10.0.{rack}.{index + 1}",
                    ["default"],
                    roles=("leaf-to-host", "host-nic"),
                    port=name,
                    goodput_bps=goodput_bps,
                    queue=queue,
                    source_mask=0x1F,
                )


topos = {"leafspine": LeafSpine}
