"""A connection that carries JSON lines both ways, without blocking the timers."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable

from emulation.agents.wire import LineSplitter, Message, WireError, encode_line

CONNECT_RETRY_S = 0.05
#: How a reason begins where the peer ended and nothing broke: that it ended is for its parent to report.
CLOSED = "closed by the peer"
READ_BYTES = 65536


class LineLink:
    """JSON lines over a stream socket.

    `on_message(message)` is called for every line, `on_lost(reason)` once when the peer closes (then the reason begins
    with CLOSED) or the stream breaks.
    Sending never blocks: what the kernel does not take is kept and written when it does.
    """

    def __init__(
        self, sock: socket.socket, on_message: Callable[[Message], None], on_lost: Callable[[str], None]
    ) -> None:
        self._socket = sock
        self._on_message = on_message
        self._on_lost = on_lost
        self._splitter = LineSplitter()
        self._backlog = bytearray()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.add_reader(sock, self._read)

    def send(self, message: Message) -> None:
        """Send one message; silently dropped once the link is lost (`on_lost` has said so)."""
        if self._closed:
            return
        self._backlog += encode_line(message)
        self._write()

    def flush(self, timeout_s: float) -> None:
        """Block until everything is with the kernel, at most `timeout_s`; for the last words of a process."""
        deadline_s = time.monotonic() + timeout_s
        while self._backlog and not self._closed and time.monotonic() < deadline_s:
            self._write()
            if self._backlog:
                time.sleep(0.001)

    def close(self) -> None:
        """Close without calling `on_lost`."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()

    def _lost(self, reason: str) -> None:
        if not self._closed:
            self.close()
            self._on_lost(reason)

    def _broken(self, doing: str, error: OSError) -> None:
        # The kernel answers for a process that ended before it had read our last words, with a reset.
        ended = isinstance(error, (ConnectionResetError, BrokenPipeError))
        self._lost(f"{CLOSED}, with words unread" if ended else f"{doing} failed: {error}")

    def _write(self) -> None:
        try:
            while self._backlog:
                sent = self._socket.send(self._backlog)
                del self._backlog[:sent]
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._write)
            return
        except OSError as error:
            self._broken("write", error)
            return
        self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            piece = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._broken("read", error)
            return
        if not piece:
            self._lost(CLOSED)
            return
        try:
            messages = self._splitter.feed(piece)
        except WireError as error:
            self._lost(f"protocol error: {error}")
            return
        for message in messages:
            if self._closed:
                return
            self._on_message(message)


def listen(ip: str, port: int, on_accept: Callable[[socket.socket, str], object]) -> socket.socket:
    """Listen on one address; `on_accept(socket, "ip:port" of the peer)` per connection. OSError names the address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    try:
        listener.bind((ip, port))
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {ip}:{port}: {error.strerror}") from error
    listener.listen(1024)

    def accept() -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            while True:
                connection, (peer_ip, peer_port) = listener.accept()
                on_accept(connection, f"{peer_ip}:{peer_port}")

    asyncio.get_running_loop().add_reader(listener, accept)
    return listener


async def connect(local_ip: str, peer: tuple[str, int], timeout_s: float) -> socket.socket:
    """Connect from one of our addresses, again and again until the peer listens; TimeoutError after `timeout_s`."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while True:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.bind((local_ip, 0))
            await asyncio.wait_for(loop.sock_connect(sock, peer), max(deadline_s - loop.time(), 0.001))
            return sock
        except (OSError, asyncio.TimeoutError) as error:
            sock.close()
            if loop.time() + CONNECT_RETRY_S >= deadline_s:
                reason = str(error) or "no answer"
                raise TimeoutError(
                    f"no connection from {local_ip} to {peer[0]}:{peer[1]} in {timeout_s} s: {reason}"
                ) from error
        await asyncio.sleep(CONNECT_RETRY_S)
