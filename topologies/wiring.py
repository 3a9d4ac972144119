"""What a node is told and how two nodes are wired: the vocabulary of every topology here.

Interfaces are unnumbered where a router is involved: a host owns a /32 (or its plane's prefix), a router owns one
/32 on `lo`, and every next hop is `onlink` with a permanent neighbour. So no ARP crosses a fabric, and a link costs
no subnet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from mininet.topo import Topo

from topologies.nodes import Host, Router

COMMON_SYSCTLS = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    "net.ipv4.conf.all.rp_filter": "0",
    "net.ipv4.conf.default.rp_filter": "0",
}
# Policy 3 hashes the fields it is given: 0x37 is source and destination address (1, 2), protocol (4), source and
# destination port (16, 32). Policy 1 names the same fields, but for a shaped local socket the path looked up was the
# path taken in only half the cases.
ROUTER_SYSCTLS = COMMON_SYSCTLS | {
    "net.ipv4.ip_forward": "1",
    "net.ipv4.fib_multipath_hash_policy": "3",
    "net.ipv4.fib_multipath_hash_fields": "55",
}
# Congestion control is not here: a namespace may only default to what the machine allows everyone, so each socket
# sets its own. tcp_tw_reuse: a source port chosen for its uplink may be used again by the same pair a second later
# instead of a minute. ip_forward: a namespace starts with the machine's, which is on where containers or machines run.
HOST_SYSCTLS = COMMON_SYSCTLS | {
    "net.ipv4.ip_forward": "0",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_tw_reuse": "1",
}
# For hosts whose packets overtake each other because their priority changes: with timestamps a receiver takes one that
# comes late for a duplicate of an older connection (PAWS) and drops it in silence, and TCP waits for a timeout.
UNORDERED_SYSCTLS = {"net.ipv4.tcp_timestamps": "0"}
# Source-address bits that choose among the classes of drr: 32 of them, one for each NIC of a rack of 32 GPUs.
SOURCE_MASK_BITS = 5


@dataclass(frozen=True, slots=True)
class Hop:
    """One next hop: the interface, and the neighbour's address ("" = the destination itself is on the link)."""

    interface: str
    via: str = ""

    def text(self) -> str:
        return f"via {self.via} dev {self.interface} onlink" if self.via else f"dev {self.interface}"


@dataclass(frozen=True, slots=True)
class Route:
    """A route: prefix in CIDR form (or "default"), one or more equal-cost hops, TCP's minimum RTO (None = the
    kernel's 200 ms), the largest window its hosts tell the other end (None = what the receive buffer allows), and the
    congestion control of what is sent over it (None = the sender's), which a sender without rights could not choose."""

    prefix: str
    hops: tuple[Hop, ...]
    rto_min_ms: int | None = None
    window_bytes: int | None = None
    congestion_control: str | None = None

    def text(self) -> str:
        """The arguments of `ip route add`."""
        metric = f" rto_min {self.rto_min_ms}ms" if self.rto_min_ms is not None else ""
        metric += f" window {self.window_bytes}" if self.window_bytes is not None else ""
        metric += f" congctl {self.congestion_control}" if self.congestion_control is not None else ""
        if len(self.hops) == 1:
            return f"{self.prefix} {self.hops[0].text()}{metric}"
        return f"{self.prefix}{metric} " + " ".join(f"nexthop {hop.text()}" for hop in self.hops)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A permanent neighbour: its address, its MAC, the interface it is reached over."""

    ip: str
    mac: str
    interface: str

    def text(self) -> str:
        """The arguments of `ip neighbour add`."""
        return f"{self.ip} lladdr {self.mac} dev {self.interface} nud permanent"


class WiredTopo(Topo):
    """A `Topo` whose nodes carry addresses, routes, neighbours and sysctls, and whose links carry names, MACs and
    goodput."""

    def __init__(self, *args: Any, **params: Any) -> None:
        self._links_wired = 0
        super().__init__(*args, **params)

    def add_host(self, name: str) -> str:
        """An end system: sends and receives, forwards nothing."""
        return self._add(name, Host, HOST_SYSCTLS)

    def add_router(self, name: str, loopback: str) -> str:
        """A kernel L3 router with 5-tuple ECMP, known by its loopback address."""
        self._add(name, Router, ROUTER_SYSCTLS)
        self.set_address(name, "lo", f"{loopback}/32")
        return name

    def _add(self, name: str, cls: type, sysctls: Mapping[str, str]) -> str:
        if name in self.g.node:
            raise ValueError(f"node {name} is there already: node names must be unique within a topology")
        return self.addHost(name, cls=cls, addresses={}, routes=[], neighbours=[], sysctls=dict(sysctls))

    def set_address(self, node: str, interface: str, cidr: str) -> None:
        self.nodeInfo(node)["addresses"][interface] = cidr

    def add_route(
        self,
        node: str,
        prefix: str,
        hops: Sequence[Hop],
        rto_min_ms: int | None = None,
        window_bytes: int | None = None,
        congestion_control: str | None = None,
    ) -> None:
        route = Route(prefix, tuple(hops), rto_min_ms, window_bytes, congestion_control)
        self.nodeInfo(node)["routes"].append(route)

    def add_neighbour(self, node: str, ip: str, mac: str, interface: str) -> None:
        self.nodeInfo(node)["neighbours"].append(Neighbour(ip, mac, interface))

    def wire(
        self,
        ends: tuple[tuple[str, str], tuple[str, str]],
        *,
        roles: tuple[str, str],
        goodput_bps: float | None = None,
        queue: str = "fifo",
        source_mask: int = 0,
    ) -> tuple[str, str]:
        """Join two (node, interface) ends and return their MACs.

        roles: what each end is, for links.csv. goodput_bps: TCP payload in bits per second each way, None = unshaped.
        queue: how a router's end serves what it sends: "drr" (a class for each source), "fifo", or "priority" (a class
        for each level that packets are marked with). The one source of a host's end needs no classes of its own, but
        its levels do.
        source_mask: the source-address bits that tell drr's classes apart, at most 32 values.
        Raises ValueError on an unknown queue or an interface name the kernel cannot hold.
        """
        if queue not in ("drr", "fifo", "priority"):
            raise ValueError(f"queue {queue!r} on {ends[0][0]}-{ends[1][0]}: give drr, fifo or priority")
        for node, interface in ends:
            if not 0 < len(interface) < 16:
                raise ValueError(f"interface {interface!r} of {node}: the kernel allows 1 to 15 characters")
        first = 2 * self._links_wired
        self._links_wired += 1
        macs = mac_address(first), mac_address(first + 1)
        (node1, interface1), (node2, interface2) = ends
        self.addLink(
            node1,
            node2,
            intfName1=interface1,
            intfName2=interface2,
            addr1=macs[0],
            addr2=macs[1],
            role1=roles[0],
            role2=roles[1],
            goodput_bps=goodput_bps,
            queue=queue,
            source_mask=source_mask,
        )
        return macs


def mac_address(number: int) -> str:
    """The number-th locally administered unicast MAC of a topology: the same on every build."""
    if not 0 <= number < 1 << 24:
        raise ValueError(f"MAC number {number}: a topology has room for {1 << 24}")
    return "02:68:67:" + ":".join(f"{byte:02x}" for byte in number.to_bytes(3, "big"))


def ipv4(base: str, offset: int) -> str:
    """The address `offset` after `base`, both in dotted form. Raises ValueError past the end of the address space."""
    return str(IPv4Address(base) + offset)
