"""Probes between two namespaces before a run: does TCP work, how long is the round trip, how fast is the link really.

A rate is a slope: received bytes against time, least squares, at the receiver, without the start. So neither the
handshake nor slow start nor the credit of an idle token bucket counts, and the figure can be compared with the
configured goodput.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from emulation.agents.kernel import check_congestion_control, set_congestion_control
from emulation.linux.netns import socket_in

MIN_SLOPE_BYTES = 1_000_000
CHUNK_BYTES = 65_536
TIMEOUT_S = 20.0
#: How far a link's measured rate may be from the rate it is shaped to, as a share: before the clock and in the verdict.
LINK_RATE_TOLERANCE = 0.03


class ProbeError(RuntimeError):
    """A probe did not get through: says between which ends, and what happened."""


@dataclass(frozen=True, slots=True)
class ProbedPath:
    """Two ends: namespace and address of each, and ports (0 = the kernel's choice)."""

    source_namespace: str
    source_ip: str
    destination_namespace: str
    destination_ip: str
    source_port: int = 0
    destination_port: int = 0

    def __str__(self) -> str:
        ends = (self.source_namespace, self.source_ip), (self.destination_namespace, self.destination_ip)
        return " to ".join(f"{ip} ({namespace})" for namespace, ip in ends)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Result of a rate probe. goodput_bps: slope in bits per second; bytes and seconds: of the whole transfer, at
    the receiver."""

    path: ProbedPath
    goodput_bps: float
    bytes: int
    seconds: float


def goodputs(
    paths: Sequence[ProbedPath], *, transfer_bytes: int = 2 * MIN_SLOPE_BYTES, congestion_control: str = "cubic"
) -> list[Goodput]:
    """Rates of several paths sending at once, in the same order.

    transfer_bytes: of each path; the first fifth is not in the slope, which covers at least 1 MB. Raises ValueError
    when it is too small for that, ProbeError when a path fails.
    """
    if transfer_bytes * 4 < MIN_SLOPE_BYTES * 5:
        raise ValueError(f"transfer_bytes is {transfer_bytes}: a slope over {MIN_SLOPE_BYTES} bytes needs 1250000")
    transfers = [_Transfer(path, transfer_bytes, congestion_control) for path in paths]
    try:
        for transfer in transfers:
            transfer.connect()
        for transfer in transfers:
            transfer.start()
        return [transfer.result() for transfer in transfers]
    finally:
        for transfer in transfers:
            transfer.close()


def check_tcp(
    path: ProbedPath, *, payload_bytes: int = 20_000, timeout_s: float = 2.0, congestion_control: str = "cubic"
) -> float:
    """Seconds to connect and move a payload of several packets and have it acknowledged. Raises ProbeError.

    More than a ping: where checksum offload breaks a datapath, ping and the handshake work and data hangs.
    """
    transfer = _Transfer(path, payload_bytes, congestion_control, timeout_s)
    started_s = time.monotonic()
    try:
        transfer.connect()
        transfer.start()
        transfer.result(slope=False)
    finally:
        transfer.close()
    return time.monotonic() - started_s


def round_trip_s(path: ProbedPath, *, rounds: int = 20, timeout_s: float = 2.0) -> float:
    """Median round trip in seconds of one byte and its echo over an open TCP connection. Raises ProbeError."""
    transfer = _Transfer(path, 1, "cubic", timeout_s)
    times_s = []
    try:
        transfer.connect()
        sender, receiver = transfer.sender, transfer.receiver
        for _ in range(rounds):
            started_s = time.perf_counter()
            sender.sendall(b"x")
            receiver.recv(1)
            receiver.sendall(b"x")
            sender.recv(1)
            times_s.append(time.perf_counter() - started_s)
    except OSError as error:
        raise ProbeError(f"no echo from {path}: {error}") from error
    finally:
        transfer.close()
    return sorted(times_s)[rounds // 2]


@dataclass
class _Transfer:
    """One TCP transfer: a sender and a receiver thread, and what the receiver saw."""

    path: ProbedPath
    transfer_bytes: int
    congestion_control: str
    timeout_s: float = TIMEOUT_S
    samples: list[tuple[float, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    sockets: list[socket.socket] = field(default_factory=list)

    @property
    def sender(self) -> socket.socket:
        return self.sockets[0]

    @property
    def receiver(self) -> socket.socket:
        return self.sockets[1]

    def connect(self) -> None:
        path = self.path
        sender = socket_in(path.source_namespace)
        self.sockets.append(sender)
        listener = socket_in(path.destination_namespace)
        try:
            for end in (sender, listener):
                end.settimeout(self.timeout_s)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                set_congestion_control(end, self.congestion_control)
            listener.bind((path.destination_ip, path.destination_port))
            listener.listen(1)
            sender.bind((path.source_ip, path.source_port))
            sender.connect(listener.getsockname())
            check_congestion_control(sender, self.congestion_control)
            receiver, _ = listener.accept()
            receiver.settimeout(self.timeout_s)
            self.sockets.append(receiver)
        except OSError as error:
            raise ProbeError(f"no TCP connection from {path}: {error}") from error
        except RuntimeError as error:
            raise ProbeError(f"{path}: {error}") from error
        finally:
            listener.close()

    def start(self) -> None:
        for body in (self._receive, self._send):
            thread = threading.Thread(target=body, name=f"probe {body.__name__}")
            thread.start()
            self.threads.append(thread)

    def _send(self) -> None:
        chunk, left = bytes(CHUNK_BYTES), self.transfer_bytes
        try:
            while left:
                left -= self.sender.send(chunk[:left] if left < CHUNK_BYTES else chunk)
        except OSError as error:
            self.failures.append(f"sending stopped with {left} bytes to go: {error}")

    def _receive(self) -> None:
        buffer, total = bytearray(CHUNK_BYTES), 0
        try:
            while total < self.transfer_bytes:
                count = self.receiver.recv_into(buffer)
                if not count:
                    raise OSError("the connection closed")
                total += count
                self.samples.append((time.monotonic(), total))
        except OSError as error:
            self.failures.append(f"receiving stopped after {total} of {self.transfer_bytes} bytes: {error}")

    def result(self, *, slope: bool = True) -> Goodput:
        for thread in self.threads:
            thread.join()
        if self.failures:
            raise ProbeError(f"{self.path}: {'; '.join(self.failures)}")
        seconds = self.samples[-1][0] - self.samples[0][0]
        return Goodput(self.path, least_squares_bps(self.samples) if slope else 0.0, self.transfer_bytes, seconds)

    def close(self) -> None:
        """Reset the connection: a FIN that meets a circuit torn down meanwhile would be sent again for minutes."""
        for end in self.sockets:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


def least_squares_bps(samples: Sequence[tuple[float, int]], *, discard: float = 0.2) -> float:
    """Slope in bits per second of (seconds, total bytes) samples, without the first `discard` of the bytes.

    Raises ProbeError when fewer than two samples at different times are left.
    """
    kept = [(t, total) for t, total in samples if total >= discard * samples[-1][1]]
    mean_t = sum(t for t, _ in kept) / len(kept)
    mean_bytes = sum(total for _, total in kept) / len(kept)
    spread = sum((t - mean_t) ** 2 for t, _ in kept)
    if not spread:
        raise ProbeError(f"{len(kept)} samples at one moment have no slope: send more bytes")
    return 8 * sum((t - mean_t) * (total - mean_bytes) for t, total in kept) / spread
