"""What an Open vSwitch bridge holds, in OpenFlow 1.3 over its management socket: every rule with its cookie, and
whether there are groups and meters. A reading takes the switch a fraction of a millisecond, an `ovs-ofctl` process 5.

Layouts are those of the OpenFlow Switch Specification 1.3.5, sections 7.1 to 7.3.5; network byte order.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_VERSION = 4
_HELLO, _ERROR, _ECHO_REQUEST, _ECHO_REPLY, _MULTIPART_REQUEST, _MULTIPART_REPLY = 0, 1, 2, 3, 18, 19
_FLOWS, _GROUPS, _METERS = 1, 7, 10
_MORE = 0x1
_HEADER = struct.Struct("!BBHI")  # version, type, length, transaction
_MULTIPART = struct.Struct("!HHxxxx")  # type, flags
_ALL_FLOWS = struct.pack("!BxxxII4xQQHH4x", 0xFF, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0, 1, 4)
_ALL_METERS = struct.pack("!I4x", 0xFFFFFFFF)
_FLOW = struct.Struct("!HBxIIHHHHxxxxQQQ")
# match type and length, OXM of the port, OXM of a source address and its mask
_CIRCUIT = struct.Struct("!HHIII6s6s4x")
_CIRCUIT_MATCH = (1, 28, 0x80000004, 0x8000090C)
_NO_MATCH = b"\0\1\0\4\0\0\0\0"
_OUTPUT = struct.Struct("!HHxxxxHHIHxxxxxx")  # instruction type and length, action type and length, port, bytes
_OUTPUT_ACTION = (4, 24, 0, 16)


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry of a flow table. in_port, source: of one that matches on a port, and a source address with its mask,
    alone. out_port: of one that does nothing else but output; `matches_all`, `drops`: the two others that a circuit
    switch has."""

    table: int
    priority: int
    cookie: int
    in_port: int | None
    source: tuple[str, str] | None
    matches_all: bool
    out_port: int | None
    drops: bool
    #: It never times out and has no flag set.
    plain: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """All that a bridge holds, what Open vSwitch adds for itself left out."""

    rules: tuple[Rule, ...]
    groups: bool
    meters: bool


def read(management: Path, timeout_s: float) -> Contents:
    """What the bridge behind this socket (BRIDGE.mgmt) holds. Raises OSError (TimeoutError where it does not answer)
    or ValueError, where it refuses."""
    requests = {_FLOWS: _ALL_FLOWS, _GROUPS: b"", _METERS: _ALL_METERS}
    bodies = dict.fromkeys(requests, b"")
    left = set(requests)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(management))
        # a request's transaction is what it asks for
        asked = [_message(_MULTIPART_REQUEST, _MULTIPART.pack(kind, 0) + body, kind) for kind, body in requests.items()]
        connection.sendall(_message(_HELLO) + b"".join(asked))
        for kind, transaction, body in _messages(connection, management):
            if kind == _ERROR and transaction in (_GROUPS, _METERS):
                left.discard(transaction)  # a datapath that knows none refuses the question
            elif kind == _ERROR:
                raise ValueError(f"{management}: OpenFlow error type {body[1]} code {body[3]}")
            if kind == _ECHO_REQUEST:
                connection.sendall(_message(_ECHO_REPLY, body))
            if kind == _MULTIPART_REPLY:
                what, flags = _MULTIPART.unpack_from(body)
                bodies[what] += body[_MULTIPART.size :]
                if not flags & _MORE:
                    left.discard(what)
            if not left:
                break
    return Contents(tuple(rules(bodies[_FLOWS])), bool(bodies[_GROUPS]), bool(bodies[_METERS]))


def rules(body: bytes) -> Iterator[Rule]:
    """Those of a reply about flows."""
    offset = 0
    while offset < len(body):
        length, table, _, _, priority, idle_s, hard_s, flags, cookie, _, _ = _FLOW.unpack_from(body, offset)
        rest, offset = body[offset + _FLOW.size : offset + length], offset + length
        match_bytes = (struct.unpack_from("!H", rest, 2)[0] + 7) & ~7
        match, instructions = rest[:match_bytes], rest[match_bytes:]
        circuit = _CIRCUIT.unpack(match) if len(match) == _CIRCUIT.size else None
        if circuit and (*circuit[:3], circuit[4]) != _CIRCUIT_MATCH:
            circuit = None
        output = _OUTPUT.unpack(instructions) if len(instructions) == _OUTPUT.size else None
        yield Rule(
            table=table,
            priority=priority,
            cookie=cookie,
            in_port=circuit[3] if circuit else None,
            source=(circuit[5].hex(":"), circuit[6].hex(":")) if circuit else None,
            matches_all=match == _NO_MATCH,
            out_port=output[4] if output and output[:4] == _OUTPUT_ACTION else None,
            drops=not instructions,
            plain=not (idle_s or hard_s or flags),
        )


def _message(kind: int, body: bytes = b"", transaction: int = 0) -> bytes:
    return _HEADER.pack(_VERSION, kind, _HEADER.size + len(body), transaction) + body


def _messages(connection: socket.socket, management: Path) -> Iterator[tuple[int, int, bytes]]:
    """(type, transaction, body) of what the switch says, until it is closed."""
    received = b""
    while part := connection.recv(65536):
        received += part
        while len(received) >= _HEADER.size:
            _, kind, length, transaction = _HEADER.unpack_from(received)
            if len(received) < length:
                break
            yield kind, transaction, received[_HEADER.size : length]
            received = received[length:]
    raise ConnectionError(f"{management}: closed after {received!r:.80}")
