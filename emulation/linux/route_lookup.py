"""Asking a namespace's own routing code which way it forwards a flow, thousands of times a second.

`ip route get` spends ten times longer on text than the kernel spends on the route, and a fabric of 128 GPUs needs
hundreds of thousands of answers. So the questions (RTM_GETROUTE, rtnetlink(7)) are written here, many in one message,
from a template in which only the source port changes.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from types import TracebackType

from emulation.linux.netns import NamespaceError

# linux/rtnetlink.h, linux/netlink.h
_RTM_NEWROUTE, _RTM_GETROUTE, _NLMSG_ERROR, _NLM_F_REQUEST = 24, 26, 2, 1
_RTA_DST, _RTA_SRC, _RTA_IIF, _RTA_OIF, _RTA_IP_PROTO, _RTA_SPORT, _RTA_DPORT = 1, 2, 3, 4, 27, 28, 29
_HEADER, _ROUTE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBBBBBI"), struct.Struct("=HH")
_SO_RCVBUFFORCE = 33
# The kernel answers while it is asked, and charges up to 4 KB for an answer: all of a block must fit.
_BLOCK, _RECEIVE_BYTES = 512, 8 << 20


class RouteLookup:
    """Answers from the namespace of the thread that makes it; a context manager. Raises OSError where netlink is not
    there."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        self._indices = dict((name, index) for index, name in socket.if_nameindex())
        self._names = {index: name for name, index in self._indices.items()}

    def __enter__(self) -> RouteLookup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def egress(
        self, source: str, destination: str, *, iif: str, source_ports: Sequence[int], destination_port: int
    ) -> list[str]:
        """The interface by which TCP from each of `source_ports` leaves, having come in by interface `iif`.

        Raises NamespaceError where the kernel knows no way, or does not understand the question.
        """
        if iif not in self._indices:
            raise NamespaceError(f"no interface {iif} to look up a route from {source} to {destination}")
        before, after = _question(source, destination, self._indices[iif], destination_port)
        found: list[int] = []
        for start in range(0, len(source_ports), _BLOCK):
            block = source_ports[start : start + _BLOCK]
            self._socket.send(b"".join(before + port.to_bytes(2, "big") + after for port in block))
            for _ in block:
                found.append(_outgoing_index(self._socket.recv(4096), source, destination))
        return [self._names[index] for index in found]


def _question(source: str, destination: str, iif: int, destination_port: int) -> tuple[bytes, bytes]:
    """An RTM_GETROUTE message, before and after the two bytes of its source port."""
    attributes = _attribute(_RTA_DST, socket.inet_aton(destination))
    attributes += _attribute(_RTA_SRC, socket.inet_aton(source))
    attributes += _attribute(_RTA_IIF, struct.pack("=I", iif))
    attributes += _attribute(_RTA_IP_PROTO, bytes([socket.IPPROTO_TCP]))
    attributes += _attribute(_RTA_DPORT, destination_port.to_bytes(2, "big"))
    route = _ROUTE.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0)
    port = _ATTRIBUTE.pack(_ATTRIBUTE.size + 2, _RTA_SPORT)
    padding = bytes(2)
    length = _HEADER.size + len(route) + len(attributes) + len(port) + 2 + len(padding)
    header = _HEADER.pack(length, _RTM_GETROUTE, _NLM_F_REQUEST, 0, 0)
    return header + route + attributes + port, padding


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def _outgoing_index(answer: bytes, source: str, destination: str) -> int:
    """The index of the outgoing interface in an answer (RTA_OIF)."""
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind == _NLMSG_ERROR:
        number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        hint = " (kernels before 4.18 know no ports here)" if number == errno.EINVAL else ""
        raise NamespaceError(f"no route from {source} to {destination}: {os.strerror(number)}{hint}")
    position = _HEADER.size + _ROUTE.size
    while kind == _RTM_NEWROUTE and position + _ATTRIBUTE.size <= len(answer):
        length, attribute = _ATTRIBUTE.unpack_from(answer, position)
        if attribute == _RTA_OIF:
            return int(struct.unpack_from("=I", answer, position + _ATTRIBUTE.size)[0])
        position += (length + 3) & ~3
    raise NamespaceError(f"the kernel's answer on the route from {source} to {destination} names no interface")
