"""The shape of a cluster: how many instances there are, which racks and GPU positions they have, and their addresses.

Addresses: host NICs 10.0.<leaf>.<n>; GPU NICs of rank i in 10.(64+i).0.0/16, an aligned block for each rack, so that a
router needs one route a rack and rank, and the low address bits of a rack's instances differ (the DRR classes use
them).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from topologies.graph import Path, RouterGraph, leaf_spine_graph
from topologies.wiring import ipv4

MAX_RANKS = 16


@dataclass(frozen=True)
class Instance:
    """A prefill or decode instance: its rack, its GPU position on its node, its host address, and one GPU address for
    each emulated rank."""

    name: str
    role: str  # "prefill" | "decode"
    rack: int
    position: int
    host_ip: str
    gpu_ips: tuple[str, ...]


@dataclass(frozen=True)
class ClusterShape:
    """How many instances there are, and how they sit in racks.

    racks: "apart" (a rack holds one role) or "mixed" (both in turn: where all fit into one, no KV crosses an uplink).
    gpus_per_node: GPU positions of a node; None = those of one instance. Raises ValueError on a shape that cannot be.
    """

    prefill_instances: int
    decode_instances: int
    gpus_per_instance: int = 1
    instances_per_rack: int = 4
    racks: str = "apart"
    gpus_per_node: int | None = None

    def __post_init__(self) -> None:
        for name, value, most in (
            ("prefill_instances", self.prefill_instances, 1024),
            ("decode_instances", self.decode_instances, 1024),
            ("gpus_per_instance", self.gpus_per_instance, MAX_RANKS),
            ("instances_per_rack", self.instances_per_rack, 250),
        ):
            if not 1 <= value <= most:
                raise ValueError(f"{name} is {value}: give 1 to {most}")
        if self.racks not in ("apart", "mixed"):
            raise ValueError(f"racks {self.racks!r}: give apart or mixed")
        per_node = self.gpus_per_instance if self.gpus_per_node is None else self.gpus_per_node
        if per_node < self.gpus_per_instance or per_node % self.gpus_per_instance:
            raise ValueError(
                f"gpus_per_node is {per_node}: give a multiple of gpus_per_instance ({self.gpus_per_instance})"
            )
        if self.rack_count > 200 or (self.rack_count + 1) * self.address_block >= 1 << 16:
            raise ValueError(
                f"{self.rack_count} racks of {self.instances_per_rack}: more than the address plan holds; use larger "
                "racks"
            )

    @property
    def positions(self) -> int:
        """Instances on a node."""
        return (self.gpus_per_node or self.gpus_per_instance) // self.gpus_per_instance

    @property
    def address_block(self) -> int:
        """Addresses of a rack and rank. Blocks start at 1: the all-zero block holds the subnet's own address."""
        return 1 << max(2, (self.instances_per_rack - 1).bit_length())

    @cached_property
    def seats(self) -> dict[tuple[str, int], int]:
        """(role, number) -> its place, counted over all racks: prefill racks first, or both roles in turn."""
        counts = {"prefill": self.prefill_instances, "decode": self.decode_instances}
        return seats_mixed(counts) if self.racks == "mixed" else seats_apart(counts, self.instances_per_rack)

    @cached_property
    def rack_count(self) -> int:
        return 1 + max(self.seats.values()) // self.instances_per_rack

    @cached_property
    def instances(self) -> tuple[Instance, ...]:
        """Prefill instances, then decode instances, with their addresses."""
        placed = []
        for (role, number), place in self.seats.items():
            rack, seat = divmod(place, self.instances_per_rack)
            offset = (rack + 1) * self.address_block + seat
            gpu_ips = tuple(ipv4(f"10.{64 + rank}.0.0", offset) for rank in range(self.gpus_per_instance))
            name, position = f"{role[0]}{number}", number % self.positions
            placed.append(Instance(name, role, rack, position, f"10.0.{rack}.{seat + 1}", gpu_ips))
        return tuple(placed)

    @cached_property
    def rack_of(self) -> dict[str, int]:
        """Instance -> rack."""
        return {instance.name: instance.rack for instance in self.instances}

    @cached_property
    def reachable(self) -> dict[str, list[str]]:
        """Prefill -> the decode instances at its GPU positions. Raises ValueError where one has none."""
        found = {
            prefill.name: [d.name for d in self.instances if d.role == "decode" and d.position == prefill.position]
            for prefill in self.instances
            if prefill.role == "prefill"
        }
        if alone := [name for name, peers in found.items() if not peers]:
            raise ValueError(f"no decode instance shares a GPU position with {', '.join(alone)}: add decode instances")
        return found

    def leaf_spine(self, uplinks: int, *, pooled: bool = False) -> RouterGraph:
        """The KV leaf-spine of this shape: `uplinks` a rack, one to each of as many spines. pooled: one link of their
        joint rate, the ideal of adaptive routing: a lone transfer has its full port, and all share the sum fairly."""
        spines, nic_rates = (1, float(uplinks)) if pooled else (uplinks, 1.0)
        return leaf_spine_graph(self.rack_count, spines, ranks=self.gpus_per_instance, nic_rates=nic_rates)


@dataclass(frozen=True)
class KvPaths:
    """The shortest paths that KV can take over a packet fabric."""

    shape: ClusterShape
    graph: RouterGraph

    def between(self, prefill: str, decode: str, rank: int) -> tuple[Path, ...]:
        """Every shortest path of a rank's KV, as routers; path i of a leaf-spine crosses spine i. A path within one
        leaf is that leaf alone."""
        racks = self.shape.rack_of
        return self.graph.paths_between(racks[prefill], racks[decode], rank)

    def cross(self, prefill: str, decode: str, rank: int) -> bool:
        """Whether that KV crosses links between routers at all."""
        return len(self.between(prefill, decode, rank)[0]) > 1


def links_of(path: Path) -> tuple[tuple[str, str], ...]:
    """The links between routers that a path crosses, each in its direction."""
    return tuple(pairwise(path))


def seats_apart(counts: dict[str, int], per_rack: int) -> dict[tuple[str, int], int]:
    """(role, number) -> its place, counted over all racks: each role begins with a rack of its own."""
    seats: dict[tuple[str, int], int] = {}
    first = 0
    for role, count in counts.items():
        seats |= {(role, number): first + number for number in range(count)}
        first += -(-count // per_rack) * per_rack
    return seats


def seats_mixed(counts: dict[str, int]) -> dict[tuple[str, int], int]:
    """(role, number) -> its place: the roles take turns in proportion to their counts. In order of role and number."""
    turns = sorted((number / count, role, number) for role, count in counts.items() for number in range(count))
    place = {(role, number): index for index, (_, role, number) in enumerate(turns)}
    return {(role, number): place[role, number] for role, count in counts.items() for number in range(count)}
