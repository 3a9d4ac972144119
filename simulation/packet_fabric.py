"""The links of a packet fabric as numbers: GPU NICs out and in, uplinks of every rack, downlinks of every spine."""

from __future__ import annotations

from typing import Any

from experiments.schema.spec import Eps, Experiment
from topologies.cluster import Cluster, Instance

#: Whether a routing hashes each flow onto one uplink, or spreads it over all of them.
HASHED = {"ecmp": True, "adaptive": False, "srpt": False}


class PacketFabric:
    """A leaf-spine with one uplink from every rack to each of `uplinks` spines, every link at the GPU link's rate.

    `ecmp` takes one uplink and the same spine's downlink. `adaptive` spreads ideally: the uplinks of a rack are one
    link of their joint rate, and so are the downlinks to it. `srpt` has the links of `adaptive`.

    `alike`: nothing tells the ranks of a transfer apart, so rank 0 stands for all of them, and a pool is as wide as its
    share of it.
    """

    def __init__(self, experiment: Experiment, fabric: Eps, cluster: Cluster) -> None:
        if fabric.routing not in HASHED:
            raise ValueError(f"routing {fabric.routing!r}: the twin knows {', '.join(HASHED)}")
        self.hashed = HASHED[fabric.routing]
        self.shortest_first = fabric.routing == "srpt"
        self.alike = fabric.routing == "adaptive"
        self.ranks = experiment.cluster.gpus_per_instance
        self.uplinks = experiment.uplinks(fabric)
        self.ecmp_seed, self.ecmp_unit = fabric.ecmp_seed, fabric.ecmp_unit
        self.link_bytes_per_s = experiment.kv_goodput_bytes_per_s
        self.capacities: list[float] = []
        self._rows: list[dict[str, Any]] = []
        self._stand_in: list[tuple[int, int]] = []  # for each link: the one that carries for it, and how many times
        self._number: dict[tuple[str, str | int, int], int] = {}
        self._rack = {instance.name: instance.rack for instance in cluster.instances}
        for instance in cluster.instances:
            self._add_nics(instance)
        for rack in range(cluster.racks):
            for spine in range(self.uplinks) if self.hashed else (-1,):
                self._add("up", rack, spine, node=f"kl{rack}", peer=f"ks{spine}", role="uplink")
                self._add("down", rack, spine, node=f"ks{spine}", peer=f"kl{rack}", role="downlink")

    def _add_nics(self, instance: Instance) -> None:
        for rank in range(self.ranks):
            leaf, nic, port = f"kl{instance.rack}", f"gpu{rank}", f"{instance.name}-gpu{rank}"
            self._add("out", instance.name, rank, node=instance.name, interface=nic, peer=leaf, role="gpu-nic")
            self._add("in", instance.name, rank, node=leaf, interface=port, peer=instance.name, role="leaf-to-gpu")

    def _add(self, what: str, of: str | int, number: int, *, interface: str = "", **row: str) -> None:
        link, pooled = len(self.capacities), number < 0
        self._number[what, of, number] = link
        capacity = self.link_bytes_per_s * (self.uplinks if pooled else 1)
        times = self.ranks if pooled and self.alike else 1
        self.capacities.append(capacity / times)
        self._stand_in.append((self._number[what, of, 0] if self.alike and not pooled else link, times))
        named = {key: value.replace("ks-1", "spines") for key, value in row.items()}
        self._rows.append(named | {"interface": interface or named["peer"], "goodput_bps": capacity * 8})

    def path(self, prefill: str, decode: str, rank: int, uplink: int | None) -> tuple[int, ...]:
        """The links from a rank of a prefill instance to the same rank of a decode instance, by number."""
        number, spine = self._number, -1 if uplink is None else uplink
        leaf, far_leaf = self._rack[prefill], self._rack[decode]
        ends = number["out", prefill, rank], number["in", decode, rank]
        if leaf == far_leaf:
            return ends
        return ends[0], number["up", leaf, spine], number["down", far_leaf, spine], ends[1]

    def link_rows(self, carried_bytes: list[float]) -> list[dict[str, Any]]:
        """Rows of links.csv, in real units: `tx_bytes` are payload."""
        return [
            row | {"tx_bytes": round(carried_bytes[link] * times)}
            for row, (link, times) in zip(self._rows, self._stand_in, strict=True)
        ]
