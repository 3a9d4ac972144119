"""Changes to a run's network that the run did not make: the kernel announces each one, so a watch costs nothing until
there is something to see, and sees what was changed and put back in between.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Mapping, MutableMapping, MutableSet, Sequence
from dataclasses import dataclass

from emulation.linux.netns import run_in
from emulation.linux.rtnetlink import (
    LINK,
    NEIGHBOUR,
    RTM_NEWLINK,
    TRAFFIC_CONTROL,
    attributes,
    links,
    messages,
    neighbours,
    open_socket,
)

RTMGRP_LINK, RTMGRP_NEIGH, RTMGRP_TC, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV4_RULE = 1, 4, 8, 16, 64, 128
GROUPS = RTMGRP_LINK | RTMGRP_NEIGH | RTMGRP_TC | RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE | RTMGRP_IPV4_RULE
_WHAT = {
    16: "a link was set",
    17: "a link was removed",
    20: "an address was added",
    21: "an address was removed",
    24: "a route was added",
    25: "a route was removed",
    28: "a neighbour was set",
    29: "a neighbour was removed",
    32: "a routing rule was added",
    33: "a routing rule was removed",
    36: "a qdisc was set",
    37: "a qdisc was deleted",
    40: "a class was set",
    41: "a class was deleted",
    44: "a filter was set",
    45: "a filter was deleted",
}
_INDEX_AT = {
    16: 4,
    17: 4,
    20: 4,
    21: 4,
    28: 4,
    29: 4,
}  # struct ifinfomsg, ifaddrmsg, ndmsg; 4 in struct tcmsg too, none in a route
_TRAFFIC, _NEIGHBOURS = range(36, 46), (28, 29)
#: NUD_PERMANENT: set by hand. What the kernel learns by itself it also forgets by itself.
_PERMANENT = 0x80
#: Flags of a link that say nothing of its configuration: a capture sets IFF_PROMISC and IFF_ALLMULTI; IFF_RUNNING and
#: IFF_LOWER_UP follow the other end, the kernel tells up to a second late, and that end is watched too.
_STATE_FLAGS = 0x100 | 0x200 | 0x40 | 0x10000
#: IFLA_ADDRESS, MTU, LINK, QDISC, MASTER, TXQLEN, GSO_MAX_SEGS, GSO_MAX_SIZE: what decides how packets fare.
_CONFIGURATION = (1, 4, 5, 6, 10, 13, 40, 41)
RECEIVE_BYTES = 1 << 17
Configuration = tuple[object, ...]
#: (interface index, address) of a neighbour that was set by hand.
Neighbour = tuple[int, bytes]


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
        self._links: dict[str, dict[int, Configuration]] = {}
        self._neighbours: dict[str, set[Neighbour]] = {}
        for namespace, node in by_namespace.items():
            self._interfaces[node] = dict(run_in(namespace, socket.if_nameindex))
            self._sockets[node] = opened = open_socket(namespace, GROUPS)
            opened.setblocking(False)
            with open_socket(namespace) as asked:
                self._links[node] = dict(map(configuration, links(asked)))
                found = [neighbour(payload) for payload in neighbours(asked)]
                self._neighbours[node] = {each for each, permanent in found if permanent}
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
                    found = described(datagram, node, self._interfaces[node], self._links[node], self._neighbours[node])
                    self._changes += [Change(now_s, where, what) for where, what in found]

    def close(self) -> None:
        """Close the sockets."""
        for opened in self._sockets.values():
            opened.close()

    def changes(self) -> list[Change]:
        """Every change so far."""
        return list(self._changes)


def described(
    datagram: bytes,
    node: str,
    interfaces: Mapping[int, str],
    known: MutableMapping[int, Configuration],
    by_hand: MutableSet[Neighbour] | None = None,
) -> Sequence[tuple[str, str]]:
    """(where, what) of each announcement of a datagram. interfaces: index -> name; known: index -> configuration of the
    links so far; by_hand: neighbours that were set by hand so far; both are kept up."""
    by_hand = set() if by_hand is None else by_hand
    found = []
    for kind, payload in messages(datagram):
        what = _WHAT.get(kind)
        if what is None or (kind == RTM_NEWLINK and _known(payload, known)):
            continue
        if kind in _NEIGHBOURS and _learnt(payload, by_hand):
            continue
        where = node
        if kind in _TRAFFIC:
            where = f"{node} {interfaces.get(TRAFFIC_CONTROL.unpack_from(payload)[1], '?')}"
        elif kind in _INDEX_AT:
            where = f"{node} {interfaces.get(struct.unpack_from('=i', payload, _INDEX_AT[kind])[0], '?')}"
        found.append((where, what))
    return found


def configuration(payload: memoryview) -> tuple[int, Configuration]:
    """(index, what was configured) of a message that describes a link."""
    _, _, index, flags, _ = LINK.unpack_from(payload)
    values = attributes(payload[LINK.size :])
    return index, (flags & ~_STATE_FLAGS, *(bytes(values.get(each, b"")) for each in _CONFIGURATION))


def neighbour(payload: memoryview) -> tuple[Neighbour, bool]:
    """(which, whether it was set by hand) of a message that describes a neighbour."""
    index, state = NEIGHBOUR.unpack_from(payload)
    address = attributes(payload[NEIGHBOUR.size :]).get(1, b"")
    return (index, bytes(address)), bool(state & _PERMANENT)


def _learnt(payload: memoryview, by_hand: MutableSet[Neighbour]) -> bool:
    """Whether a neighbour is, and was, one that the kernel learns and forgets by itself."""
    which, permanent = neighbour(payload)
    was = which in by_hand
    if permanent:
        by_hand.add(which)
    else:
        by_hand.discard(which)
    return not (permanent or was)


def _known(payload: memoryview, known: MutableMapping[int, Configuration]) -> bool:
    """Whether a link is configured as it was: announced because its other end came up, or because somebody listens."""
    index, found = configuration(payload)
    before, known[index] = known.get(index), found
    return found == before
