"""The connected circuit switches: messages out in order, barriers back, and what is lost with a connection.

A barrier belongs to the connection it was sent on. When that ends, everybody who waits for one of its barriers is told
at once; a switch that connects again starts with none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from eventlet import event as green_event
from eventlet import queue as green_queue
from ryu.lib import hub

from controllers.core import switching

_ANSWERED = object()

#: Messages that `build(datapath, plane)`, or `build(datapath, plane, pairs)`, has for one switch.
Build = Callable[[Any, switching.PlanePorts], Iterable[Any]]
BuildForPairs = Callable[[Any, switching.PlanePorts, Sequence[switching.Pair]], Iterable[Any]]


class DatapathFault(Exception):
    """A circuit switch is not connected, was lost, refused a message or did not answer a barrier in time."""


class Barrier:
    """A barrier in flight on one connection."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._event = green_event.Event()

    def answer(self) -> None:
        """The switch replied."""
        if not self._event.ready():
            self._event.send(_ANSWERED)

    def fail(self, reason: str) -> None:
        """It never will."""
        if not self._event.ready():
            self._event.send_exception(DatapathFault(f"{self._name}: {reason}"))

    def wait(self, deadline_monotonic_s: float) -> None:
        """Return when it is answered; raises DatapathFault when it failed, or at the deadline."""
        if self._event.wait(max(0.0, deadline_monotonic_s - time.monotonic())) is not _ANSWERED:
            raise DatapathFault(f"{self._name}: no barrier reply in time; is its ovs-vswitchd starved of CPU?")


class _Connection:
    """One connection. A greenlet of its own sends, so that handing over messages never blocks and keeps their order."""

    def __init__(self, datapath: Any, name: str) -> None:
        self.datapath = datapath
        self.name = name
        self.barriers: dict[int, Barrier] = {}
        self._packed: dict[tuple[BuildForPairs, switching.Pair], bytes] = {}
        self._outbox: green_queue.LightQueue = green_queue.LightQueue()
        self._sender = hub.spawn(self._send)

    def pack(self, messages: Iterable[Any]) -> bytes:
        buffers = []
        for message in messages:
            self.datapath.set_xid(message)
            message.serialize()
            buffers.append(bytes(message.buf))
        return b"".join(buffers)

    def packed(self, build: BuildForPairs, plane: switching.PlanePorts, pair: switching.Pair) -> bytes:
        # A pair's messages are the same each time, and Ryu takes a quarter of a millisecond over them: packed once, and
        # sent with the transaction ids that they had then. Only a barrier is known by its own.
        if (build, pair) not in self._packed:
            self._packed[build, pair] = self.pack(build(self.datapath, plane, [pair]))
        return self._packed[build, pair]

    def send(self, messages: bytes) -> Barrier:
        last = switching.barrier(self.datapath)
        packed = self.pack([last])
        barrier = self.barriers[last.xid] = Barrier(self.name)
        self._outbox.put(messages + packed)
        return barrier

    def close(self, reason: str) -> None:
        hub.kill(self._sender)
        barriers, self.barriers = self.barriers, {}
        for barrier in barriers.values():
            barrier.fail(reason)

    def _send(self) -> None:
        while True:
            self.datapath.send(self._outbox.get())


class Datapaths:
    """The switches of `planes`, as far as they are connected."""

    def __init__(self, planes: Sequence[switching.PlanePorts], barrier_timeout_s: float = 2.0) -> None:
        self._planes = {plane.dpid: plane for plane in planes}
        self._barrier_timeout_s = barrier_timeout_s
        self._connections: dict[int, _Connection] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def connected(self, datapath: Any) -> bool:
        """A switch finished its handshake; False for one that is no plane of ours."""
        plane = self._planes.get(datapath.id)
        if plane is None:
            return False
        if old := self._connections.get(datapath.id):
            old.close("replaced by a new connection")
        self._connections[datapath.id] = _Connection(datapath, plane.bridge)
        return True

    def lost(self, datapath: Any) -> bool:
        """A connection ended; False where it was not the current one of a plane."""
        connection = self._connections.get(datapath.id)
        if connection is None or connection.datapath is not datapath:
            return False
        del self._connections[datapath.id]
        connection.close("connection lost")
        return True

    def answered(self, datapath: Any, xid: int) -> None:
        """A barrier reply arrived; one that nobody waits for is ignored."""
        connection = self._connections.get(datapath.id)
        if (
            connection is not None
            and connection.datapath is datapath
            and (barrier := connection.barriers.pop(xid, None))
        ):
            barrier.answer()

    def refused(self, datapath: Any, reason: str) -> None:
        """The switch answered with an error: what its pending barriers stand for has not been done."""
        connection = self._connections.get(datapath.id)
        if connection is not None and connection.datapath is datapath:
            for barrier in connection.barriers.values():
                barrier.fail(reason)

    def send(self, build: Build, dpids: Iterable[int] | None = None) -> list[Barrier]:
        """Send every plane (or those named) the messages that `build` returns and a barrier; never blocks.

        Raises DatapathFault, and sends nothing, where a plane is not connected.
        """
        return [
            connection.send(connection.pack(build(connection.datapath, plane)))
            for connection, plane in self._connected(self._planes if dpids is None else dpids)
        ]

    def send_for_pairs(self, build: BuildForPairs, pairs: Sequence[switching.Pair]) -> list[Barrier]:
        """As `send` to every plane, where the messages of a pair depend on nothing but the pair."""
        return [
            connection.send(b"".join(connection.packed(build, plane, pair) for pair in pairs))
            for connection, plane in self._connected(self._planes)
        ]

    def wake(self) -> None:
        """Have the switches that are connected do a moment's work, and wait for none: one that has slept for a while on
        a virtual machine answers half a millisecond late. Never blocks, raises nothing."""
        for connection in self._connections.values():
            connection.send(b"")

    def _connected(self, dpids: Iterable[int]) -> list[tuple[_Connection, switching.PlanePorts]]:
        wanted = list(dpids)
        if missing := [self._planes[dpid].bridge for dpid in wanted if dpid not in self._connections]:
            raise DatapathFault(f"{', '.join(missing)}: not connected")
        return [(self._connections[dpid], self._planes[dpid]) for dpid in wanted]

    def wait(self, barriers: Iterable[Barrier]) -> None:
        """Return when all are answered; raises DatapathFault."""
        deadline_s = time.monotonic() + self._barrier_timeout_s
        for barrier in barriers:
            barrier.wait(deadline_s)
