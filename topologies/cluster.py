"""The emulated cluster: instances, the host network every run has, and one KV network between their GPU NICs."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.circuit import GpuNic, Plane, add_plane
from topologies.fabric import RoutedFabric
from topologies.graph import RouterGraph, leaf_spine_graph
from topologies.shape import ClusterShape, Instance, KvPaths
from topologies.wiring import SOURCE_MASK_BITS, UNORDERED_SYSCTLS, WiredTopo, ipv4

FABRICS = ("eps", "ocs", "none")
# A queue of 12.75 ms drains in three times that when three sources share a link: at 20 ms that alone is a timeout, at
# 40 none was seen in 355 transfers of the demo.
RTO_MIN_MS = 40
# Where others may go first, what is queued waits as long as they take: each time 40 ms were a timeout, a spurious one.
PRIORITY_RTO_MIN_MS = 5000


@dataclass(frozen=True)
class KvLinks:
    """The links of a KV network. goodput_bps: emulated TCP payload rate of a GPU NIC each way, bits per second; None =
    unshaped. queue: "drr" or "fifo" at the routers of a packet fabric, or "priority" at them and at its GPU NICs.
    rto_min_ms: TCP's minimum RTO on KV routes, at least PRIORITY_RTO_MIN_MS with the queue "priority". window_bytes:
    TCP's largest window there, payload; None = what receive buffers allow. congestion_control: of what is sent there;
    None = the sender's."""

    goodput_bps: float | None = None
    queue: str = "drr"
    rto_min_ms: int = RTO_MIN_MS
    window_bytes: int | None = None
    congestion_control: str | None = None


class Cluster(WiredTopo):
    """Instances `p0..` and `d0..`, by default in racks of their own; gateway `gw` and controller `ctl` on a leaf apart.

    fabric "eps": packets between the GPU NICs, over the routers of `graph` (of a leaf-spine `kl0..`, `ks0..`). fabric
    "ocs": a circuit switch `plane0..` for each of the GPU positions of a node; the instances of a node have positions
    of their own, and KV moves only between equal ones. fabric "none": no GPU NICs. host_spines: of the host network.
    Raises ValueError on a combination that cannot be wired.
    """

    shape: ClusterShape
    graph: RouterGraph | None
    gateway_ip: str
    controller_ip: str
    planes: list[Plane]

    def build(
        self,
        shape: ClusterShape,
        *,
        fabric: str = "none",
        graph: RouterGraph | None = None,
        links: KvLinks | None = None,
        host_spines: int = 2,
    ) -> None:
        if fabric not in FABRICS:
            raise ValueError(f"fabric {fabric!r}: give one of {', '.join(FABRICS)}")
        if (fabric == "eps") != (graph is not None):
            raise ValueError(f"fabric {fabric!r} with graph {graph!r:.40}: a packet fabric has one, the others none")
        self.shape, self.graph, self.planes = shape, graph, []
        self._ranks = shape.gpus_per_instance
        self._links = links or KvLinks()
        self._rto_min_ms = max(self._links.rto_min_ms, PRIORITY_RTO_MIN_MS if self._links.queue == "priority" else 0)
        _ = shape.reachable  # raises where an instance has no peer
        self._wire_host_network(host_spines)
        if graph is not None:
            self._wire_packet_fabric(graph)
        elif fabric == "ocs":
            self._wire_circuits()

    @property
    def instances(self) -> tuple[Instance, ...]:
        return self.shape.instances

    @property
    def reachable(self) -> dict[str, list[str]]:
        """Prefill -> the decode instances that its KV can reach."""
        return self.shape.reachable

    @property
    def kv_paths(self) -> KvPaths:
        """The paths of its packet fabric."""
        assert self.graph is not None
        return KvPaths(self.shape, self.graph)

    def _wire_host_network(self, spines: int) -> None:
        edge = self.shape.rack_count
        graph = leaf_spine_graph(edge + 1, spines, leaf="hl", spine="hs")
        fabric = RoutedFabric(
            self,
            graph,
            prefixes={leaf: [f"10.0.{number}.0/24"] for number, leaf in enumerate(graph.leaves)},
            covering="10.0.0.0/16",
            loopbacks=("10.255.0", "10.255.1"),
        )
        self.gateway_ip, self.controller_ip = f"10.0.{edge}.1", f"10.0.{edge}.2"
        seats = [(instance.name, instance.rack, instance.host_ip) for instance in self.instances]
        for name, rack, ip in [*seats, ("gw", edge, self.gateway_ip), ("ctl", edge, self.controller_ip)]:
            self.add_host(name)
            leaf = graph.leaf_of[rack, 0]
            fabric.attach(leaf, (name, "host0"), ip, ["default"], roles=("leaf-to-host", "host-nic"), port=name)

    def _wire_packet_fabric(self, graph: RouterGraph) -> None:
        links = self._links
        prefixes: dict[str, list[str]] = {leaf: [] for leaf in graph.leaves}
        for (rack, rank), leaf in graph.leaf_of.items():
            prefixes[leaf].append(self._prefix(rack, rank))
        fabric = RoutedFabric(
            self,
            graph,
            prefixes=prefixes,
            covering="10.64.0.0/10",
            loopbacks=("10.255.2", "10.255.3"),
            goodput_bps=links.goodput_bps,
            queue=links.queue,
            source_mask=uplink_source_mask(self._ranks),
        )
        for instance in self.instances:
            if links.queue == "priority":
                self.nodeInfo(instance.name)["sysctls"] |= UNORDERED_SYSCTLS
            for rank, ip in enumerate(instance.gpu_ips):
                fabric.attach(
                    graph.leaf_of[instance.rack, rank],
                    (instance.name, f"gpu{rank}"),
                    ip,
                    [f"10.{64 + rank}.0.0/16"],
                    roles=("leaf-to-gpu", "gpu-nic"),
                    port=leaf_port(instance.name, rank),
                    queue=links.queue,
                    source_mask=0xF,  # on the way to one GPU NIC instances alone differ
                    goodput_bps=links.goodput_bps,
                    rto_min_ms=self._rto_min_ms,
                    window_bytes=links.window_bytes,
                    congestion_control=links.congestion_control,
                )

    def _prefix(self, rack: int, rank: int) -> str:
        """The block of addresses of a rack's GPU NICs of one rank."""
        block = self.shape.address_block
        return f"{ipv4(f'10.{64 + rank}.0.0', (rack + 1) * block)}/{33 - block.bit_length()}"

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
        for position in range(self.shape.positions):
            members = [instance for instance in self.instances if instance.position == position]
            for rank in range(self._ranks):
                nics = [GpuNic(instance.name, f"gpu{rank}", instance.gpu_ips[rank]) for instance in members]
                number = position * self._ranks + rank
                plane = add_plane(
                    self,
                    number,
                    nics,
                    peers,
                    subnets=subnets,
                    goodput_bps=self._links.goodput_bps,
                    rto_min_ms=self._rto_min_ms,
                    window_bytes=self._links.window_bytes,
                    congestion_control=self._links.congestion_control,
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


def leaf_port(instance: str, rank: int) -> str:
    """The KV leaf's interface that leads to a GPU NIC."""
    return f"{instance}-gpu{rank}"
