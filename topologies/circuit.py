"""The circuit layer: one OpenFlow switch per GPU position, whose ports are GPU NICs and whose rules are mirrors.

Without rules it carries nothing (`fail_mode=secure`): a circuit is a pair of rules that a controller installs. Stock
Mininet builds it with a running Open vSwitch and any OpenFlow 1.3 controller:

    mn --custom topologies/circuit.py --topo circuit,ports=4,planes=2 --controller remote
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mininet.node import OVSSwitch

try:
    from topologies.wiring import Hop, WiredTopo, ipv4
# `mn --custom` executes this text without a package or a `__file__`; its code object still knows the path
except ImportError:
    sys.path.insert(0, str(Path(sys._getframe().f_code.co_filename).resolve().parents[1]))
    from topologies.wiring import Hop, WiredTopo, ipv4


@dataclass(frozen=True)
class Plane:
    """One circuit switch: its bridge, its datapath id, and the OpenFlow port of each instance wired to it."""

    bridge: str
    dpid: int
    ports: Mapping[str, int]


@dataclass(frozen=True)
class GpuNic:
    """A GPU NIC to wire to a plane: the instance it belongs to, its interface there, its address."""

    instance: str
    interface: str
    ip: str


def datapath_of_this_kernel() -> str:
    """Mininet's word for the Open vSwitch datapath to use: "kernel" where the module is loaded, else "user"."""
    return "kernel" if Path("/sys/module/openvswitch").exists() else "user"


def add_plane(
    topo: WiredTopo,
    number: int,
    nics: list[GpuNic],
    peers: Mapping[str, list[str]],
    *,
    subnets: Mapping[str, str],
    goodput_bps: float | None = None,
    rto_min_ms: int | None = None,
    window_bytes: int | None = None,
    congestion_control: str | None = None,
) -> Plane:
    """Add the bridge `plane<number>` with a port for each NIC, in order from port 1; all NICs of a plane share one
    subnet.

    peers: instance -> the instances it may get a circuit to: its permanent neighbours, since nothing answers ARP
    across a dark circuit.
    subnets: interface -> its subnet in CIDR form.
    """
    bridge = f"plane{number}"
    dpid = number + 1
    topo.addSwitch(
        bridge,
        cls=OVSSwitch,
        dpid=f"{dpid:016x}",
        failMode="secure",
        protocols="OpenFlow13",
        datapath=datapath_of_this_kernel(),
    )
    macs: dict[str, str] = {}
    ports: dict[str, int] = {}
    for ofport, nic in enumerate(nics, start=1):
        nic_mac, _ = topo.wire(
            ((nic.instance, nic.interface), (bridge, f"{bridge}-{nic.instance}")),
            roles=("gpu-nic", "circuit-port"),
            goodput_bps=goodput_bps,
        )
        subnet = subnets[nic.interface]
        topo.set_address(nic.instance, nic.interface, f"{nic.ip}/{subnet.partition('/')[2]}")
        topo.add_route(nic.instance, subnet, [Hop(nic.interface)], rto_min_ms, window_bytes, congestion_control)
        macs[nic.instance], ports[nic.instance] = nic_mac, ofport
    nic_of = {nic.instance: nic for nic in nics}
    for nic in nics:
        for peer in peers[nic.instance]:
            topo.add_neighbour(nic.instance, nic_of[peer].ip, macs[peer], nic.interface)
    return Plane(bridge, dpid, ports)


class CircuitLayer(WiredTopo):
    """`ports` hosts `h0..` with one GPU NIC `gpu0..` on each of `planes` circuit switches `plane0..`; any port may
    be joined to any other.

    Rank i of host h has 10.(64+i).0.(h+1). goodput_bps: TCP payload rate of a port in bits per second, None = unshaped.
    """

    planes: list[Plane]

    def build(self, ports: int = 2, planes: int = 1, goodput_bps: float | None = None) -> None:
        """Raises ValueError when `ports` is outside 2..60000 or `planes` outside 1..64."""
        if not 2 <= ports <= 60_000:
            raise ValueError(f"ports is {ports}: a circuit joins two ports, and a bridge numbers at most 60000")
        if not 1 <= planes <= 64:
            raise ValueError(f"planes is {planes}: give 1 to 64, one for each GPU position")
        names = [self.add_host(f"h{number}") for number in range(ports)]
        everyone = {name: [peer for peer in names if peer != name] for name in names}
        subnets = {f"gpu{rank}": f"10.{64 + rank}.0.0/16" for rank in range(planes)}
        self.planes = [
            add_plane(
                self,
                rank,
                [GpuNic(name, f"gpu{rank}", ipv4(f"10.{64 + rank}.0.1", host)) for host, name in enumerate(names)],
                everyone,
                subnets=subnets,
                goodput_bps=goodput_bps,
            )
            for rank in range(planes)
        ]


topos = {"circuit": CircuitLayer}
