"""The emulated cluster: instances, the host network every run has, and one KV fabric between their GPU NICs.

Addresses: host NICs 10.0.<leaf>.<n>; GPU NICs of rank i in 10.(64+i).0.0/16, an aligned block for each rack, so that
a spine needs one route a rack and rank, and the low address bits of a rack's instances differ (which the DRR classes
use).
"""

from __future__ import annotations

from dataclasses import dataclass

from topologies.circuit import GpuNic, Plane, add_plane
from topologies.fabric import LeafSpineFabric
from topologies.wiring import SOURCE_MASK_BITS, UNORDERED_SYSCTLS, WiredTopo, ipv4

FABRICS = ("eps", "ocs", "none")
MAX_RANKS = 16
# A queue of 12.75 ms drains in three times that when three sources share a link: at 20 ms that alone is a timeout, at
# 40 none was seen in 355 transfers of the demo.
RTO_MIN_MS = 40
# Where others may go first, what is queued waits as long as they take: each time 40 ms were a timeout, a spurious one.
PRIORITY_RTO_MIN_MS = 5000


@dataclass(frozen=True)
class Instance:
    """A prefill or decode instance: its rack, its host address, and one GPU address for each emulated rank."""

    name: str
    role: str  # "prefill" | "decode"
    rack: int
    host_ip: str
    gpu_ips: tuple[str, ...]


class Cluster(WiredTopo):
    """Instances `p0..` and `d0..`, by default in racks of their own; gateway `gw` and controller `ctl` on a leaf apart.

    fabric "eps": a second leaf-spine (`kl0..`, `ks0..`) for the GPU NICs, with `uplinks` a rack, one to each of as many
    spines. fabric "ocs": a circuit switch `plane0..` for each of the `gpus_per_node` GPU positions; the instances of a
    node have positions of their own, and KV moves only between equal ones. fabric "none": no GPU NICs.

    pooled: the uplinks of a rack are one link of `uplinks` times the rate, the ideal of adaptive routing (declared as
    such): a lone transfer has its full port, and all share the sum of the uplinks fairly.
    racks: "apart" (a rack holds one role) or "mixed" (both in turn: where all fit into one, no KV crosses an uplink).
    kv_goodput_bps: emulated TCP payload rate of a KV link each way, bits per second; None = unshaped. queue: "drr" or
    "fifo" at the routers of the packet fabric, or "priority" at them and at its GPU NICs. host_spines: of the host
    network. rto_min_ms: TCP's minimum RTO on KV routes, at least PRIORITY_RTO_MIN_MS with the queue "priority".
    window_bytes: TCP's largest window there, payload; None = what receive buffers allow. Raises ValueError on a
    combination that cannot be wired.
    """

    instances: tuple[Instance, ...]
    gateway_ip: str
    controller_ip: str
    uplinks: int
    planes: list[Plane]
    reachable: dict[str, list[str]]

    def build(
        self,
        *,
        prefill_instances: int,
        decode_instances: int,
        gpus_per_instance: int = 1,
        instances_per_rack: int = 4,
        racks: str = "apart",
        fabric: str = "eps",
        uplinks: int | None = None,
        pooled: bool = False,
        kv_goodput_bps: float | None = None,
        gpus_per_node: int | None = None,
        queue: str = "drr",
        host_spines: int = 2,
        rto_min_ms: int = RTO_MIN_MS,
        window_bytes: int | None = None,
    ) -> None:
        if fabric not in FABRICS:
            raise ValueError(f"fabric {fabric!r}: give one of {', '.join(FABRICS)}")
        for name, value, most in (
            ("prefill_instances", prefill_instances, 1024),
            ("decode_instances", decode_instances, 1024),
            ("gpus_per_instance", gpus_per_instance, MAX_RANKS),
            ("instances_per_rack", instances_per_rack, 250),
        ):
            if not 1 <= value <= most:
                raise ValueError(f"{name} is {value}: give 1 to {most}")
        if racks not in ("apart", "mixed"):
            raise ValueError(f"racks {racks!r}: give apart or mixed")
        if fabric == "eps" and not uplinks:
            raise ValueError(f"uplinks is {uplinks}: a packet fabric needs at least one uplink a rack")
        gpus_per_node = gpus_per_instance if gpus_per_node is None else gpus_per_node
        if gpus_per_node < gpus_per_instance or gpus_per_node % gpus_per_instance:
            raise ValueError(
                f"gpus_per_node is {gpus_per_node}: give a multiple of gpus_per_instance ({gpus_per_instance})"
            )
        self._ranks = gpus_per_instance
        self._positions = gpus_per_node // gpus_per_instance
        self._goodput_bps = kv_goodput_bps
        self._rto_min_ms = max(rto_min_ms, PRIORITY_RTO_MIN_MS) if queue == "priority" else rto_min_ms
        self._window_bytes = window_bytes
        self._place({"prefill": prefill_instances, "decode": decode_instances}, instances_per_rack, racks == "mixed")
        self._wire_host_network(host_spines)
        self.uplinks, self.planes = 0, []
        if fabric == "eps":
            assert uplinks is not None
            self.uplinks = 1 if pooled else uplinks
            # what spreads ideally over U uplinks shares their sum; a GPU NIC cannot send faster than one of them
            self._wire_packet_fabric(queue, uplinks if pooled else 1)
        elif fabric == "ocs":
            self._wire_circuits()

    def _place(self, counts: dict[str, int], instances_per_rack: int, mixed: bool) -> None:
        """Deal instances to racks, and number their addresses: prefill racks first, or both roles in turn."""
        # Blocks start at 1: the all-zero block holds the subnet's own address.
        self._block = 1 << max(2, (instances_per_rack - 1).bit_length())
        seats = seats_mixed(counts) if mixed else seats_apart(counts, instances_per_rack)
        self.racks = 1 + max(seats.values()) // instances_per_rack
        if self.racks > 200 or (self.racks + 1) * self._block >= 1 << 16:
            raise ValueError(
                f"{self.racks} racks of {instances_per_rack}: more than the address plan holds; use larger racks"
            )
        placed = []
        for (role, number), place in seats.items():
            rack, seat = divmod(place, instances_per_rack)
            offset = (rack + 1) * self._block + seat
            gpu_ips = tuple(ipv4(f"10.{64 + rank}.0.0", offset) for rank in range(self._ranks))
            placed.append(Instance(f"{role[0]}{number}", role, rack, f"10.0.{rack}.{seat + 1}", gpu_ips))
        self.instances = tuple(placed)
        position = {instance.name: int(instance.name[1:]) % self._positions for instance in placed}
        decodes = [instance.name for instance in placed if instance.role == "decode"]
        self.reachable = {
            instance.name: [name for name in decodes if position[name] == position[instance.name]]
            for instance in placed
            if instance.role == "prefill"
        }
        alone = [name for name, peers in self.reachable.items() if not peers]
        if alone:
            raise ValueError(f"no decode instance shares a GPU position with {', '.join(alone)}: add decode instances")
        self._position = position

    def _wire_host_network(self, spines: int) -> None:
        edge = self.racks
        fabric = LeafSpineFabric(
            self,
            leaf_name="hl",
            spine_name="hs",
            spines=spines,
            leaf_prefixes=[[f"10.0.{leaf}.0/24"] for leaf in range(self.racks + 1)],
            covering="10.0.0.0/16",
            loopbacks=("10.255.0", "10.255.1"),
        )
        self.gateway_ip, self.controller_ip = f"10.0.{edge}.1", f"10.0.{edge}.2"
        seats = [(instance.name, instance.rack, instance.host_ip) for instance in self.instances]
        for name, leaf, ip in [*seats, ("gw", edge, self.gateway_ip), ("ctl", edge, self.controller_ip)]:
            self.add_host(name)
            fabric.attach(leaf, (name, "host0"), ip, ["default"], roles=("leaf-to-host", "host-nic"), port=name)

    def _wire_packet_fabric(self, queue: str, links_in_one: int) -> None:
        fabric = LeafSpineFabric(
            self,
            leaf_name="kl",
            spine_name="ks",
            spines=self.uplinks,
            leaf_prefixes=[self._rack_prefixes(rack) for rack in range(self.racks)],
            covering="10.64.0.0/10",
            loopbacks=("10.255.2", "10.255.3"),
            goodput_bps=None if self._goodput_bps is None else self._goodput_bps * links_in_one,
            queue=queue,
            source_mask=uplink_source_mask(self._ranks),
        )
        for instance in self.instances:
            if queue == "priority":
                self.nodeInfo(instance.name)["sysctls"] |= UNORDERED_SYSCTLS
            for rank, ip in enumerate(instance.gpu_ips):
                fabric.attach(
                    instance.rack,
                    (instance.name, f"gpu{rank}"),
                    ip,
                    [f"10.{64 + rank}.0.0/16"],
                    roles=("leaf-to-gpu", "gpu-nic"),
                    port=leaf_port(instance.name, rank),
                    queue=queue,
                    source_mask=0xF,  # on the way to one GPU NIC instances alone differ
                    goodput_bps=self._goodput_bps,
                    rto_min_ms=self._rto_min_ms,
                    window_bytes=self._window_bytes,
                )

    def _rack_prefixes(self, rack: int) -> list[str]:
        """The block of addresses of a rack's GPU NICs, one for each rank."""
        length = 33 - self._block.bit_length()
        return [f"{ipv4(f'10.{64 + rank}.0.0', (rack + 1) * self._block)}/{length}" for rank in range(self._ranks)]

    def _wire_circuits(self) -> None:
        """Plane = position of the instance on its node x ranks + rank; an instance's own interfaces are always
        gpu0.. by rank."""
        peers = {prefill: list(decodes) for prefill, decodes in self.reachable.items()}
        for prefill, decodes in self.reachable.items():
            for decode in decodes:
                peers.setdefault(decode, []).append(prefill)
        for instance in self.instances:
            peers.setdefault(instance.name, [])
        subnets = {f"gpu{rank}": f"10.{64 + rank}.0.0/16" for rank in range(self._ranks)}
        for position in range(self._positions):
            members = [instance for instance in self.instances if self._position[instance.name] == position]
            for rank in range(self._ranks):
                nics = [GpuNic(instance.name, f"gpu{rank}", instance.gpu_ips[rank]) for instance in members]
                number = position * self._ranks + rank
                plane = add_plane(
                    self,
                    number,
                    nics,
                    peers,
                    subnets=subnets,
                    goodput_bps=self._goodput_bps,
                    rto_min_ms=self._rto_min_ms,
                    window_bytes=self._window_bytes,
                )
                self.planes.append(plane)


def uplink_source_mask(ranks: int) -> int:
    """The source-address bits that tell the flows on an uplink apart: rank (second octet), then instance (low bits).

    So each GPU NIC of a rack of 32 GPUs has a DRR class of its own on the way up. On the way down, and in larger
    racks, two that share a class have one share between them.
    """
    rank_bits = (ranks - 1).bit_length()
    instance_bits = SOURCE_MASK_BITS - rank_bits
    return ((1 << rank_bits) - 1) << 16 | ((1 << instance_bits) - 1)


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


def racks_of(counts: dict[str, int], per_rack: int, mixed: bool) -> dict[str, int]:
    """Instance -> rack."""
    seats = seats_mixed(counts) if mixed else seats_apart(counts, per_rack)
    return {f"{role[0]}{number}": place // per_rack for (role, number), place in seats.items()}


def leaf_port(instance: str, rank: int) -> str:
    """The KV leaf's interface that leads to a GPU NIC."""
    return f"{instance}-gpu{rank}"
