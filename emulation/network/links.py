"""The ends of the links of a topology: what each is called, where it is, what shapes it, and what it has counted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from emulation.linux.netns import batch
from emulation.network.shaping import GSO_MAX_BYTES, Shape, answers, class_ceilings
from topologies.nodes import Router


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """One end of a veth pair. node: name in the topology; namespace: where it lives; shape: None = unshaped;
    small_gso: a KV link."""

    node: str
    namespace: str
    interface: str
    mac: str
    peer: str
    role: str
    shape: Shape | None
    small_gso: bool


def link_ends(topo: Any, namespace_of: dict[str, str], delay_s: float = 0.0) -> list[tuple[LinkEnd, LinkEnd]]:
    """The links of a topology (any `WiredTopo`) with the namespace each end lives in.

    A host's end and a router's end of a link with a goodput are shaped; a circuit switch adds nothing: one port, one
    circuit, so the sender's NIC has set the rate already, and delays by the links on both sides of the switch.
    delay_s: propagation delay of a link with a goodput, wall seconds. Raises ShapingError on a rate tc cannot make.
    """
    ends = []
    for node1, node2, info in topo.links(withInfo=True):
        pair = []
        for side, (node, peer) in (("1", (node1, node2)), ("2", (node2, node1))):
            goodput_bps = info["goodput_bps"]
            shape = None
            if goodput_bps is not None and not topo.isSwitch(node):
                routed = issubclass(topo.nodeInfo(node)["cls"], Router)
                queue = info["queue"] if routed or info["queue"] == "priority" else "fifo"
                links = 2 if topo.isSwitch(peer) else 1
                shape = Shape(goodput_bps, queue, info["source_mask"], delay_s=links * delay_s)
            name, mac, role = info[f"intfName{side}"], info[f"addr{side}"], info[f"role{side}"]
            pair.append(LinkEnd(node, namespace_of[node], name, mac, peer, role, shape, goodput_bps is not None))
        ends.append((pair[0], pair[1]))
    return ends


def creation(first: LinkEnd, second: LinkEnd) -> str:
    """The `ip -batch` line that makes a veth pair with each end in its own namespace at once."""

    def end(end: LinkEnd) -> str:
        gso = f" gso_max_size {GSO_MAX_BYTES}" if end.small_gso else ""
        return f"name {end.interface} netns {end.namespace} address {end.mac}{gso}"

    return f"link add {end(first)} type veth peer {end(second)}\n"


class DeviceCounters(NamedTuple):
    """What an interface has counted: whole GSO packets, not their segments."""

    tx_bytes: int
    tx_packets: int
    tx_drops: int
    rx_bytes: int
    rx_packets: int


def read_device_counters() -> dict[str, DeviceCounters]:
    """Counters of every interface of the calling thread's namespace. No process is started for it."""
    counters = {}
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        fields = [int(field) for field in numbers.split()]
        counters[name.strip()] = DeviceCounters(fields[8], fields[9], fields[11], fields[0], fields[1])
    return counters


def read_counters(ends: Sequence[LinkEnd]) -> list[dict[str, Any]]:
    """Rows of links.csv for link ends in the calling thread's namespace.

    A shaped end reports its root qdisc (wire bytes, every segment of a GSO packet counted), an unshaped one its device.
    goodput_bps and wire_bps are emulated bits per second, None where unshaped.
    """
    devices = read_device_counters()
    shaped = [end for end in ends if end.shape]
    text = "".join(f"qdisc show dev {end.interface}\n" for end in shaped)
    roots = {}
    for end, qdiscs in zip(shaped, answers(batch("tc", text, where=ends[0].namespace, options="-s -j")), strict=True):
        roots[end.interface] = next((qdisc for qdisc in qdiscs if qdisc.get("root")), None)
    rows = []
    for end in ends:
        device = devices[end.interface]
        tx_bytes, tx_packets, drops, overlimits = device.tx_bytes, device.tx_packets, device.tx_drops, 0
        root = roots.get(end.interface)
        if root is not None:
            tx_bytes, tx_packets, overlimits = root["bytes"], root["packets"], root["overlimits"]
            drops += root["drops"]
        rows.append(
            {
                "node": end.node,
                "interface": end.interface,
                "peer": end.peer,
                "role": end.role,
                "goodput_bps": end.shape.goodput_bps if end.shape else None,
                "wire_bps": end.shape.wire_bps if end.shape else None,
                "tx_bytes": tx_bytes,
                "tx_packets": tx_packets,
                "drops": drops,
                "overlimits": overlimits,
                "device_tx_packets": device.tx_packets,
                "rx_bytes": device.rx_bytes,
                "rx_packets": device.rx_packets,
            }
        )
    return rows


def lost_packets(rows: Sequence[Mapping[str, Any]], router: str) -> int:
    """Packets that a router has taken in and neither sent nor dropped by a queue; negative: those it made itself.

    Whole GSO packets, which a KV path keeps whole. Of a fabric at rest; routers of a KV fabric send nothing of their
    own.
    """
    ends = [row for row in rows if row["node"] == router]
    return sum(row["rx_packets"] - row["device_tx_packets"] - row["drops"] for row in ends)


def differences(ends: Sequence[LinkEnd]) -> list[str]:
    """What the kernel holds differently from the topology, in the calling thread's namespace: qdiscs, rates, limits,
    GSO size, state."""
    where = ends[0].namespace
    links = {link["ifname"]: link for link in answers(batch("ip", "link show\n", where=where, options="-d -j"))[0]}
    wrong = []
    for end in ends:
        link = links.get(end.interface)
        if link is None or "UP" not in link["flags"]:
            wrong.append(f"{end.node} {end.interface}: {'is gone' if link is None else 'is down'}")
        elif end.small_gso and link["gso_max_size"] != GSO_MAX_BYTES:
            wrong.append(f"{end.node} {end.interface}: gso_max_size is {link['gso_max_size']}, not {GSO_MAX_BYTES}")
    shapes = [(end, end.shape) for end in ends if end.shape and end.interface in links]
    questions = "".join(f"qdisc show dev {end.interface}\n" for end, _ in shapes)
    answered = answers(batch("tc", questions, where=where, options="-j"))
    # Classes have no JSON and do not name their interface: those of the next one follow the line of its root qdisc.
    questions = "".join(f"qdisc show dev {end.interface}\nclass show dev {end.interface}\n" for end, _ in shapes)
    classes = re.split(r"^qdisc \S+ \S+ root.*$", batch("tc", questions, where=where), flags=re.MULTILINE)[1:]
    for (end, shape), qdiscs, text in zip(shapes, answered, classes, strict=True):
        wrong += shape.check(f"{end.node} {end.interface}", qdiscs, class_ceilings(text))
    return wrong
