"""Changes to a run's network that the run did not make: the kernel announces each one, so a watch costs nothing until
there is something to see, and sees what was changed and put back in between.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulation.netns import run_in
from emulation.rtnetlink import TRAFFIC_CONTROL, messages, open_socket

RTMGRP_LINK, RTMGRP_TC, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE = 0x1, 0x8, 0x10, 0x40
GROUPS = RTMGRP_LINK | RTMGRP_TC | RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE
_WHAT = {
    16: "a link was set",
    17: "a link was removed",
    20: "an address was added",
    21: "an address was removed",
    24: "a route was added",
    25: "a route was removed",
    36: "a qdisc was set",
    37: "a qdisc was deleted",
    40: "a class was set",
    41: "a class was deleted",
    44: "a filter was set",
    45: "a filter was deleted",
}
_INDEX_AT = {16: 4, 17: 4, 20: 4, 21: 4}  # struct ifinfomsg, struct ifaddrmsg; 4 in struct tcmsg too, none in a route
_TRAFFIC = range(36, 46)
RTM_NEWLINK = 16
#: Flags of a link that a capture sets and that change nothing for its packets: IFF_PROMISC, IFF_ALLMULTI.
_HARMLESS_FLAGS = 0x100 | 0x200
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, mask of the flags that changed
RECEIVE_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class Change:
    """What was changed, and when it was seen (CLOCK_MONOTONIC, late by at most the watch's period)."""

    at_s: float
    where: str
    what: str


class ChangeWatch:
    """Listens in every namespace of a run. nodes: node -> namespace."""

    period_s = 0.1

    def __init__(self, nodes: Mapping[str, str]) -> None:
        """Opens a socket in each namespace. Raises NamespaceError, OSError."""
        by_namespace = {namespace: node for node, namespace in nodes.items()}
        self._sockets: dict[str, socket.socket] = {}
        self._interfaces: dict[str, dict[int, str]] = {}
        for namespace, node in by_namespace.items():
            self._interfaces[node] = dict(run_in(namespace, socket.if_nameindex))
            self._sockets[node] = opened = open_socket(namespace, GROUPS)
            opened.setblocking(False)
        self._changes: list[Change] = []

    def sample(self, now_s: float) -> None:
        """Take what the kernel has announced."""
        for node, opened in self._sockets.items():
            with contextlib.suppress(BlockingIOError):
                while True:
                    try:
                        datagram = opened.recv(RECEIVE_BYTES)
                    except OSError as error:
                        if error.errno != errno.ENOBUFS:
                            raise
                        self._changes.append(Change(now_s, node, "more was changed at once than could be read"))
                        continue
                    self._changes += [
                        Change(now_s, where, what) for where, what in described(datagram, node, self._interfaces[node])
                    ]

    def close(self) -> None:
        """Close the sockets."""
        for opened in self._sockets.values():
            opened.close()

    def changes(self) -> list[Change]:
        """Every change so far."""
        return list(self._changes)


def described(datagram: bytes, node: str, interfaces: Mapping[int, str]) -> Sequence[tuple[str, str]]:
    """(where, what) of each announcement of a datagram. interfaces: index -> name."""
    found = []
    for kind, payload in messages(datagram):
        what = _WHAT.get(kind)
        if what is None or (kind == RTM_NEWLINK and _only_captured(payload)):
            continue
        where = node
        if kind in _TRAFFIC:
            where = f"{node} {interfaces.get(TRAFFIC_CONTROL.unpack_from(payload)[1], '?')}"
        elif kind in _INDEX_AT:
            where = f"{node} {interfaces.get(struct.unpack_from('=i', payload, _INDEX_AT[kind])[0], '?')}"
        found.append((where, what))
    return found


def _only_captured(payload: memoryview) -> bool:
    """Whether all that changed is that somebody listens to a link, or no longer."""
    changed = _LINK.unpack_from(payload)[4]
    return bool(changed) and not changed & ~_HARMLESS_FLAGS
