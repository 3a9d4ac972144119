"""A circuit switch in memory: OpenFlow 1.3 from the wire, a flow table and, as in Open vSwitch, a cache before it.

Not modelled: groups, more than one table, actions other than output, timeouts; a message that needs them is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eventlet import queue as green_queue
from ryu.lib import hub
from ryu.ofproto import ofproto_parser, ofproto_protocol, ofproto_v1_3, ofproto_v1_3_parser

from controllers.core.switching import ONE_STATION


@dataclass(frozen=True)
class Rule:
    """One entry: `in_port` None matches all, no `out_ports` drops."""

    priority: int
    in_port: int | None
    out_ports: tuple[int, ...]
    cookie: int


class FlowTable:
    """Rules and look-up, by the letter of OpenFlow 1.3.5 section 6.4 for what the controller uses of it."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def apply(self, message: Any) -> None:
        """An OFPFlowMod, add or non-strict delete."""
        match = dict(message.match.items())
        # every frame has such a source, so it decides nothing here
        assert match.pop("eth_src", ONE_STATION) == ONE_STATION, f"match on {match}"
        assert set(match) <= {"in_port"}, f"match on {match}"
        in_port = match.get("in_port")
        if message.command == ofproto_v1_3.OFPFC_DELETE:
            self.rules = [rule for rule in self.rules if not self._deleted(rule, message, in_port)]
        elif message.command == ofproto_v1_3.OFPFC_ADD:
            outputs = [action.port for instruction in message.instructions for action in instruction.actions]
            rule = Rule(message.priority, in_port, tuple(outputs), message.cookie)
            self.rules = [old for old in self.rules if (old.priority, old.in_port) != (rule.priority, rule.in_port)]
            self.rules.append(rule)
        else:
            raise AssertionError(f"flow-mod command {message.command}")

    @staticmethod
    def _deleted(rule: Rule, message: Any, in_port: int | None) -> bool:
        return (
            (in_port is None or rule.in_port == in_port)
            and (message.out_port == ofproto_v1_3.OFPP_ANY or message.out_port in rule.out_ports)
            and (rule.cookie & message.cookie_mask) == (message.cookie & message.cookie_mask)
        )

    def out_ports(self, in_port: int) -> tuple[int, ...]:
        """Where a packet from this port goes."""
        matching = [rule for rule in self.rules if rule.in_port in (None, in_port)]
        return max(matching, key=lambda rule: rule.priority).out_ports if matching else ()

    def circuits(self) -> list[tuple[int, int]]:
        """(input, output) of every rule that forwards."""
        return [(rule.in_port or 0, port) for rule in self.rules for port in rule.out_ports]

    def mentions(self, port: int) -> bool:
        """Whether any rule has this port as input or output."""
        return any(port in circuit for circuit in self.circuits())


class FakeDatapath(ofproto_protocol.ProtocolDesc):
    """What Ryu hands to an app, down to the bytes on the wire."""

    def __init__(self, dpid: int, on_reply: Callable[[FakeDatapath, int], None], latency_s: float = 0.0) -> None:
        """`on_reply(datapath, xid)` gets barrier replies; each message takes up to `latency_s` to be applied."""
        super().__init__(version=ofproto_v1_3.OFP_VERSION)
        self.id = dpid
        self.table = FlowTable()
        self.cache: dict[int, tuple[int, ...]] = {}
        self.history: list[str] = []
        self.mute = False
        self.after_each: Callable[[], None] = lambda: None
        self._on_reply = on_reply
        self._latency_s = latency_s
        self._random = random.Random(dpid)
        self._xid = 0
        self._inbox: green_queue.LightQueue = green_queue.LightQueue()
        self._worker = hub.spawn(self._work)

    def set_xid(self, message: Any) -> int:
        """As Ryu's Datapath."""
        self._xid += 1
        message.set_xid(self._xid)
        return self._xid

    def send(self, buffer: bytes) -> bool:
        """As Ryu's Datapath: queue bytes for the switch."""
        self._inbox.put(bytes(buffer))
        return True

    def forward(self, in_port: int) -> tuple[int, ...]:
        """A packet arrives: the cache answers, or learns from the table."""
        if in_port not in self.cache:
            self.cache[in_port] = self.table.out_ports(in_port)
        return self.cache[in_port]

    def purge(self) -> None:
        """Empty the flow cache."""
        self.cache.clear()
        self.history.append("purge")

    def stop(self) -> None:
        """End the greenlet."""
        hub.kill(self._worker)

    def _work(self) -> None:
        while True:
            buffer = self._inbox.get()
            while buffer:
                version, kind, length, xid = ofproto_parser.header(buffer)
                assert version == ofproto_v1_3.OFP_VERSION
                if self._latency_s:
                    hub.sleep(self._random.uniform(0, self._latency_s))
                self._take(kind, length, xid, buffer[:length])
                buffer = buffer[length:]

    def _take(self, kind: int, length: int, xid: int, buffer: bytes) -> None:
        if kind == ofproto_v1_3.OFPT_BARRIER_REQUEST:
            self.history.append("barrier")
            if not self.mute:
                self._on_reply(self, xid)
            return
        message = ofproto_parser.msg(self, ofproto_v1_3.OFP_VERSION, kind, length, xid, buffer)
        assert isinstance(message, ofproto_v1_3_parser.OFPFlowMod), message
        self.table.apply(message)
        self.history.append("delete" if message.command == ofproto_v1_3.OFPFC_DELETE else "add")
        self.after_each()
