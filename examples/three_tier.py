"""A three-tier packet fabric: pods of two racks with two aggregation routers, joined by two cores.

In an experiment:     fabrics: [{name: three-tier, kind: eps, topology: "three_tier.py:ThreeTier"}]
In stock Mininet:     sudo PYTHONPATH=. mn --custom examples/three_tier.py --topo threetier --test pingall
"""

from mininet.topo import Topo

from topologies.routed import routed

RACKS_PER_POD, AGGREGATIONS_PER_POD, CORES = 2, 2, 2


class ThreeTier(Topo):
    """Switches are routers. `rack`: whose GPU NICs a switch serves; `nic_rates`: a link's rate, in rates of one NIC."""

    def build(self, racks: int, instances_per_rack: int, gpus_per_instance: int) -> None:
        cores = [self.addSwitch(f"core{n}") for n in range(CORES)]
        for first in range(0, racks, RACKS_PER_POD):
            pod = [self.addSwitch(f"agg{first}-{n}") for n in range(AGGREGATIONS_PER_POD)]
            for aggregation in pod:
                for core in cores:
                    self.addLink(aggregation, core, nic_rates=1)
            for rack in range(first, min(first + RACKS_PER_POD, racks)):
                leaf = self.addSwitch(f"leaf{rack}", rack=rack)
                for aggregation in pod:
                    self.addLink(leaf, aggregation, nic_rates=1)


topos = {"threetier": routed(ThreeTier)}
