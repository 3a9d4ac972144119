"""Circuits on an OpenFlow 1.3 crossbar: which messages, in which order, and who holds which port. No socket, no clock.

A circuit is a pair (prefill instance, decode instance). All ranks of an instance switch together, so a pair is one
rule in each direction on every plane that has its ports: all of them, or those of its half of the nodes where two
instances share a node. To let a pair take over its two ports:

1. `removal`: delete every rule whose input *or* output is either port (up to four rules: both directions of both old
   circuits);
2. a barrier, the flow cache is emptied, and the reconfiguration delay passes;
3. `installation`: one rule in each direction;
4. a barrier, and the flow cache is emptied again.

A table holds the circuits' rules and one drop-all rule below them; nothing is ever sent to the controller.

A circuit's rule matches its input port and a source address that is one station's, which that of every Ethernet frame
is. The second is for Open vSwitch's user-space datapath: flows that match on the port alone take a shorter way there,
on which versions 3.3.0 to 3.5.0 (Debian 13) leave the checksums of TCP unfinished that a veth pair leaves to its peer;
the receiver drops every segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Pair = tuple[str, str]

COOKIE = 0x4847_0000_0000_0000
COOKIE_MASK = 0xFFFF_0000_0000_0000
#: Address and mask of the sources that a circuit takes: the bit of a group is not set.
ONE_STATION = ("00:00:00:00:00:00", "01:00:00:00:00:00")
CIRCUIT_PRIORITY = 100
DROP_PRIORITY = 0


@dataclass(frozen=True)
class PlanePorts:
    """One circuit switch.

    Its bridge, its datapath id, the control socket of its vswitchd, and the ports of the instances that have a GPU at
    its position.
    """

    bridge: str
    dpid: int
    unixctl: str
    ports: Mapping[str, int]

    def carried(self, pairs: Iterable[Pair]) -> list[Pair]:
        """The pairs that have their ports here."""
        return [pair for pair in pairs if pair[0] in self.ports and pair[1] in self.ports]


class PortInUse(Exception):
    """A switch was asked for a port that a circuit is using, or that is on its way to another peer."""


def circuit_cookie(in_port: int, out_port: int) -> int:
    """The cookie of the rule from one port to another."""
    return COOKIE | in_port << 16 | out_port


def clearing(datapath: Any) -> list[Any]:
    """Messages that leave a table with nothing but a rule that drops all."""
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    return [
        parser.OFPFlowMod(
            datapath,
            table_id=ofproto.OFPTT_ALL,
            command=ofproto.OFPFC_DELETE,
            out_port=ofproto.OFPP_ANY,
            out_group=ofproto.OFPG_ANY,
        ),
        parser.OFPFlowMod(datapath, cookie=COOKIE, priority=DROP_PRIORITY, match=parser.OFPMatch(), instructions=[]),
    ]


def removal(datapath: Any, plane: PlanePorts, pairs: Iterable[Pair]) -> list[Any]:
    """Messages that delete every circuit rule into or out of a port of these pairs, whoever the peer was."""
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    messages = []
    for instance in _instances(plane.carried(pairs)):
        port = plane.ports[instance]
        for match, out_port in ((parser.OFPMatch(in_port=port), ofproto.OFPP_ANY), (parser.OFPMatch(), port)):
            messages.append(
                parser.OFPFlowMod(
                    datapath,
                    cookie=COOKIE,
                    cookie_mask=COOKIE_MASK,
                    table_id=ofproto.OFPTT_ALL,
                    command=ofproto.OFPFC_DELETE,
                    out_port=out_port,
                    out_group=ofproto.OFPG_ANY,
                    match=match,
                )
            )
    return messages


def installation(datapath: Any, plane: PlanePorts, pairs: Iterable[Pair]) -> list[Any]:
    """Messages that join the two ports of each pair, in both directions."""
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    messages = []
    for prefill, decode in plane.carried(pairs):
        for source, sink in ((prefill, decode), (decode, prefill)):
            in_port, out_port = plane.ports[source], plane.ports[sink]
            output = parser.OFPActionOutput(out_port)
            messages.append(
                parser.OFPFlowMod(
                    datapath,
                    cookie=circuit_cookie(in_port, out_port),
                    priority=CIRCUIT_PRIORITY,
                    match=parser.OFPMatch(in_port=in_port, eth_src=ONE_STATION),
                    instructions=[parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, [output])],
                )
            )
    return messages


def circuit_rule(in_port: int | str, out_port: int | str) -> str:
    """One direction of a circuit in the words of ovs-ofctl(8), as `installation` makes it but without its cookie."""
    return f"priority={CIRCUIT_PRIORITY},in_port={in_port},dl_src={'/'.join(ONE_STATION)},actions=output:{out_port}"


def barrier(datapath: Any) -> Any:
    """A request that is answered when every message before it has taken effect."""
    return datapath.ofproto_parser.OFPBarrierRequest(datapath)


def _instances(pairs: Iterable[Pair]) -> list[str]:
    return list(dict.fromkeys(instance for pair in pairs for instance in pair))


def _name(pair: Pair) -> str:
    return f"circuit {pair[0]}-{pair[1]}"


class Crossbar:
    """Who is joined to whom, who is in the dark, and which windows use a circuit: the guard that no two circuits share
    a port."""

    def __init__(self) -> None:
        self._circuits: dict[str, str] = {}
        self._dark: dict[str, int] = {}
        self._users: dict[Pair, set[int]] = {}

    def begin(self, window: int, pair: Pair) -> list[Pair]:
        """A switch to `pair` starts for a window; its ports are dark from now. Returns the circuits that this tears
        down.

        Raises PortInUse where a port is dark for another window, or where a circuit to be torn down is in use.
        """
        torn = [old for old in self._circuits.items() if old[0] == pair[0] or old[1] == pair[1]]
        for port in pair:
            if port in self._dark:
                raise PortInUse(
                    f"window {window}: {port} is dark for window {self._dark[port]}; {_name(pair)} has to wait"
                )
        for old in torn:
            if users := self._users.get(old):
                raise PortInUse(
                    f"window {window}: {_name(pair)} would tear {_name(old)}, in use by window {min(users)}"
                )
        for old in torn:
            del self._circuits[old[0]]
        for port in pair:
            self._dark[port] = window
        return torn

    def is_dark_for(self, window: int, pair: Pair) -> bool:
        """True while the switch of this window owns both ports."""
        return all(self._dark.get(port) == window for port in pair)

    def finish(self, window: int, pair: Pair) -> None:
        """The pair is joined; raises PortInUse where the window's switch does not own both ports."""
        if not self.is_dark_for(window, pair):
            raise PortInUse(f"window {window}: {_name(pair)} ends a switch that does not own its ports")
        self.abandon(window)
        self._circuits[pair[0]] = pair[1]

    def abandon(self, window: int) -> None:
        """The switch of this window is over or given up; its ports are free for another."""
        self._dark = {port: owner for port, owner in self._dark.items() if owner != window}

    def use(self, window: int, pair: Pair) -> None:
        """A window sends over the circuit of this pair; raises PortInUse where that does not stand."""
        if self._circuits.get(pair[0]) != pair[1]:
            raise PortInUse(
                f"window {window}: {_name(pair)} does not stand; {pair[0]} is joined to {self._circuits.get(pair[0])}"
            )
        self._users.setdefault(pair, set()).add(window)

    def release(self, window: int, pair: Pair) -> None:
        """A window no longer sends; the circuit keeps standing."""
        self._users.get(pair, set()).discard(window)

    def standing(self) -> dict[str, str]:
        """Prefill instance -> decode instance of every circuit that stands."""
        return dict(self._circuits)

    def dark(self) -> dict[str, int]:
        """Instance -> window, of every port whose mirror is moving."""
        return dict(self._dark)

    def replace(self, pairs: Mapping[str, str]) -> None:
        """Exactly these circuits stand, unused, and nobody is in the dark."""
        self._circuits, self._dark, self._users = dict(pairs), {}, {}
