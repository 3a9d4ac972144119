"""Moving KV bytes over TCP: connections, frames, and when the receiver's kernel has them all.

A connection carries frames one after another. A frame is released byte by byte as its KV exists, and it is *done* when
the sender's kernel holds no unacknowledged byte of it (SIOCOUTQ): only then may a circuit be torn down, because a
segment that meets the dark costs a retransmission timeout.
"""

import asyncio
import contextlib
import errno
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence

from emulation.agents.kernel import (
    TcpCounters,
    check_congestion_control,
    set_congestion_control,
    tcp_counters,
    unacknowledged_bytes,
)
from emulation.agents.wire import FrameHeader
from emulation.network.dscp import tos

SEGMENT_BYTES = 1448
POLL_S = 0.00025
SEND_BUFFER_S = 0.05
MIN_SEND_BUFFER_BYTES = 128 * 1024
WRITE_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 5.0

_PAYLOAD = memoryview(bytes(WRITE_BYTES))


def released_bytes(existing_bytes: int, size_bytes: int) -> int:
    """How much of a frame to write when `existing_bytes` of it exist: whole segments, or all of it at its end."""
    if existing_bytes >= size_bytes:
        return size_bytes
    return existing_bytes // SEGMENT_BYTES * SEGMENT_BYTES


class Frame:
    """A frame on its way: `released_bytes` may be written, `written_bytes` were, `done` once all are acknowledged."""

    def __init__(
        self, header: FrameHeader, on_done: Callable[["Frame"], None], on_lost: Callable[["Frame", str], None]
    ) -> None:
        self.header = header
        self.on_done = on_done
        self.on_lost = on_lost
        self.released_bytes = 0
        self.written_bytes = 0
        self.end_offset = 0
        self.done = False


class KvConnection:
    """One TCP connection from a GPU NIC of a prefill instance to the same rank of a decode instance.

    `rate_bytes_per_s` is the emulated goodput of the link; it bounds the send buffer and times the first look for
    the last acknowledgement.
    """

    def __init__(self, sock: socket.socket, *, rate_bytes_per_s: float, uplink: int | None = None) -> None:
        self._socket = sock
        self._rate_bytes_per_s = rate_bytes_per_s
        self._loop = asyncio.get_running_loop()
        self._unwritten: deque[Frame] = deque()
        self._unacknowledged: deque[Frame] = deque()
        self._written_bytes = 0
        self._poll: asyncio.TimerHandle | None = None
        self.uplink = uplink
        self.lost_reason: str | None = None
        self.source_port = int(sock.getsockname()[1])
        # The peer never sends payload: readable means that it closed or reset.
        self._loop.add_reader(sock, self._peer_spoke)

    @property
    def usable(self) -> bool:
        """Whether frames can still be sent."""
        return self.lost_reason is None

    @property
    def idle(self) -> bool:
        """Whether every byte given to this connection has been acknowledged."""
        return not self._unwritten and not self._unacknowledged

    @property
    def delivered_bytes(self) -> int:
        """Bytes that the peer's kernel has acknowledged, over the connection's whole life."""
        return self._written_bytes - (unacknowledged_bytes(self._socket) if self.usable else 0)

    def mark(self, level: int) -> None:
        """Have the packets from now on carry a priority; those that are queued keep theirs. ValueError: no such one."""
        value = tos(level)
        if self.usable:
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, value)

    def counters(self) -> TcpCounters:
        """Retransmissions and timeouts so far, over the connection's whole life."""
        return tcp_counters(self._socket)

    def enqueue(self, frame: Frame) -> None:
        """Send this frame after those before it; nothing of it is written until it is released."""
        if self.lost_reason is not None:
            self._loop.call_soon(frame.on_lost, frame, self.lost_reason)
            return
        self._unwritten.append(frame)

    def release(self, frame: Frame, upto_bytes: int) -> None:
        """Allow the first `upto_bytes` of a queued frame to be written."""
        if upto_bytes > frame.released_bytes:
            frame.released_bytes = upto_bytes
            self._write()

    def withdraw(self, frame: Frame) -> None:
        """Take a frame back. Where part of it is on the wire already, the connection is of no more use to anyone."""
        if frame not in self._unwritten:
            return
        if frame.written_bytes:
            self._lost(f"KV connection from port {self.source_port}: a frame was cut short")
        else:
            self._unwritten.remove(frame)
            self._write()

    def close(self) -> None:
        """Reset the connection: no FIN to wait for, and its source port can be used again at once (a FIN would leave
        it in TIME_WAIT for a minute). Frames that are done are safe in the receiver's queue."""
        if self.lost_reason is None:
            self._end("closed by the sender")

    def _end(self, reason: str) -> None:
        self.lost_reason = reason
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        if self._poll is not None:
            self._poll.cancel()
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _lost(self, reason: str) -> None:
        if self.lost_reason is not None:
            return
        self._end(reason)
        frames = [*self._unacknowledged, *self._unwritten]
        self._unacknowledged.clear()
        self._unwritten.clear()
        for frame in frames:
            frame.on_lost(frame, reason)

    def _peer_spoke(self) -> None:
        try:
            piece = self._socket.recv(1)
        except BlockingIOError:
            return
        except OSError as error:
            reason = f"broke: {error.strerror}"
        else:
            reason = "unexpected data" if piece else "closed by the peer"
        # What was acknowledged before the end has arrived, whenever we would have looked next.
        if self._poll is not None:
            self._poll.cancel()
            self._look_for_acknowledgements()
        self._lost(f"KV connection from port {self.source_port}: {reason}")

    def _write(self) -> None:
        if self.lost_reason is not None:
            return
        try:
            while self._unwritten:
                frame = self._unwritten[0]
                while frame.written_bytes < frame.released_bytes:
                    sent = self._socket.send(_piece(frame))
                    frame.written_bytes += sent
                    self._written_bytes += sent
                if frame.written_bytes < frame.header.size_bytes:
                    break
                frame.end_offset = self._written_bytes
                self._unacknowledged.append(self._unwritten.popleft())
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._write)
        except OSError as error:
            self._lost(f"KV connection from port {self.source_port}: broke: {error.strerror}")
            return
        else:
            self._loop.remove_writer(self._socket)
        if self._unacknowledged and self._poll is None:
            self._look_for_acknowledgements()

    def _look_for_acknowledgements(self) -> None:
        self._poll = None
        if self.lost_reason is not None:
            return
        acknowledged_offset = self._written_bytes - unacknowledged_bytes(self._socket)
        done = []
        while self._unacknowledged and self._unacknowledged[0].end_offset <= acknowledged_offset:
            done.append(self._unacknowledged.popleft())
        if self._unacknowledged:
            missing_bytes = self._unacknowledged[0].end_offset - acknowledged_offset
            # Stay a little short of the estimate, then look often: a late look is a late release of the circuit.
            wait_s = missing_bytes / self._rate_bytes_per_s - 2 * POLL_S
            self._poll = self._loop.call_later(max(wait_s, POLL_S), self._look_for_acknowledgements)
        for frame in done:
            frame.done = True
            frame.on_done(frame)


def _piece(frame: Frame) -> bytes | memoryview:
    """The next bytes of a frame that may be written: the header first (with its payload, in one segment)."""
    start, stop = frame.written_bytes, frame.released_bytes
    header = frame.header.pack()
    if start < len(header):
        return (header + bytes(min(stop, WRITE_BYTES) - min(stop, len(header))))[start : min(stop, WRITE_BYTES)]
    return _PAYLOAD[: stop - start]


async def open_connection(
    local_ip: str,
    peer: tuple[str, int],
    *,
    congestion_control: str,
    rate_bytes_per_s: float,
    source_ports: Sequence[int] = (),
    uplink: int | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> KvConnection:
    """Open a KV connection, from the first free one of `source_ports` where any are given.

    Raises OSError or TimeoutError, naming both ends, and RuntimeError for a congestion control that it cannot have.
    """
    reasons = []
    for port in source_ports or (0,):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            configure(sock, congestion_control, rate_bytes_per_s)
            sock.bind((local_ip, port))
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, peer), timeout_s)
            check_congestion_control(sock, congestion_control)
            return KvConnection(sock, rate_bytes_per_s=rate_bytes_per_s, uplink=uplink)
        except asyncio.TimeoutError as error:
            sock.close()
            raise TimeoutError(
                f"KV connection {local_ip}:{port} -> {peer[0]}:{peer[1]}: no answer in {timeout_s} s"
            ) from error
        except OSError as error:
            sock.close()
            reasons.append(f"{local_ip}:{port} -> {peer[0]}:{peer[1]}: {error.strerror}")
            if not _port_is_taken(error):
                break
        except BaseException:
            sock.close()
            raise
    raise OSError(f"KV connection failed: {'; '.join(reasons[-3:])} ({len(reasons)} source ports tried)")


def _port_is_taken(error: OSError) -> bool:
    return error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL)


def configure(sock: socket.socket, congestion_control: str, rate_bytes_per_s: float) -> None:
    """Set what a KV sender sets: congestion control, no Nagle, and a send buffer of about 50 ms of link."""
    sock.setblocking(False)
    set_congestion_control(sock, congestion_control)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    wanted_bytes = max(MIN_SEND_BUFFER_BYTES, int(rate_bytes_per_s * SEND_BUFFER_S))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wanted_bytes)


def receive_now(sock: socket.socket) -> None:
    """Have the kernel acknowledge at once; the flag wears off, so it is set after every read. A delayed ACK would hold
    the last acknowledgement, and with it the circuit, for 40 ms."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
