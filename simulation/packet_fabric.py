"""The links of a packet fabric as numbers: GPU NICs out and in, and both directions of the links between routers."""

from __future__ import annotations

from typing import Any

from experiments.schema.spec import Eps, Experiment
from topologies.shape import Instance, links_of

#: Whether a routing hashes each flow onto one path, or spreads it over all of them.
HASHED = {"ecmp": True, "adaptive": False, "srpt": False}


class PacketFabric:
    """The routers of a packet fabric, every link at its rate.

    `ecmp` takes one of the shortest paths. `adaptive` spreads ideally: the uplinks of a rack are one link of their
    joint rate, and so are the downlinks to it. `srpt` has the links of `adaptive`.

    `alike`: nothing tells the ranks of a transfer apart, so rank 0 stands for all of them, and a pool is as wide as its
    share of it.
    """

    def __init__(self, experiment: Experiment, fabric: Eps) -> None:
        if fabric.routing not in HASHED:
            raise ValueError(f"routing {fabric.routing!r}: the twin knows {', '.join(HASHED)}")
        paths = experiment.kv_paths(fabric)
        assert paths is not None
        self.paths = paths
        self.hashed = HASHED[fabric.routing]
        self.shortest_first = fabric.routing == "srpt"
        self.alike = fabric.routing == "adaptive"
        self.ranks = experiment.cluster.gpus_per_instance
        self.ecmp_seed, self.ecmp_unit = fabric.ecmp_seed, fabric.ecmp_unit
        self.link_bytes_per_s = experiment.kv_goodput_bytes_per_s
        self.capacities: list[float] = []
        self._rows: list[dict[str, Any]] = []
        self._stand_in: list[tuple[int, int]] = []  # for each link: the one that carries for it, and how many times
        self._nic: dict[tuple[str, str, int], int] = {}
        self._link: dict[tuple[str, str], int] = {}
        self._routes: dict[tuple[str, str, int], tuple[tuple[int, ...], ...]] = {}
        for instance in paths.shape.instances:
            self._add_nics(instance)
        for link in paths.graph.links:
            for ends in ((link.a, link.b), (link.b, link.a)):
                self._add_link(ends, link.nic_rates)

    def _add_nics(self, instance: Instance) -> None:
        for rank in range(self.ranks):
            leaf, nic, port = self.paths.graph.leaf_of[instance.rack, rank], f"gpu{rank}", f"{instance.name}-gpu{rank}"
            for way, row in (
                ("out", {"node": instance.name, "interface": nic, "peer": leaf, "role": "gpu-nic"}),
                ("in", {"node": leaf, "interface": port, "peer": instance.name, "role": "leaf-to-gpu"}),
            ):
                link = self._nic[way, instance.name, rank] = self._add(self.link_bytes_per_s, row)
                self._stand_in.append((self._nic[way, instance.name, 0] if self.alike else link, 1))

    def _add_link(self, ends: tuple[str, str], nic_rates: float) -> None:
        times = self.ranks if self.alike else 1
        # what is pooled is no one spine's
        node, peer = ends if self.hashed else [name.replace("ks0", "spines") for name in ends]
        row = {"node": node, "interface": peer, "peer": peer, "role": self.paths.graph.role(*ends)}
        link = self._link[ends] = self._add(self.link_bytes_per_s * nic_rates, row, times)
        self._stand_in.append((link, times))

    def _add(self, bytes_per_s: float, row: dict[str, str], times: int = 1) -> int:
        self.capacities.append(bytes_per_s / times)
        self._rows.append(row | {"goodput_bps": bytes_per_s * 8})
        return len(self.capacities) - 1

    def routes(self, prefill: str, decode: str, rank: int) -> tuple[tuple[int, ...], ...]:
        """The links of each path from a rank of a prefill instance to the same rank of a decode instance, by number."""
        ends = prefill, decode, rank
        if ends not in self._routes:
            first, last = self._nic["out", prefill, rank], self._nic["in", decode, rank]
            self._routes[ends] = tuple(
                (first, *(self._link[link] for link in links_of(path)), last) for path in self.paths.between(*ends)
            )
        return self._routes[ends]

    def link_rows(self, carried_bytes: list[float]) -> list[dict[str, Any]]:
        """Rows of links.csv, in real units: `tx_bytes` are payload."""
        return [
            row | {"tx_bytes": round(carried_bytes[link] * times)}
            for row, (link, times) in zip(self._rows, self._stand_in, strict=True)
        ]
