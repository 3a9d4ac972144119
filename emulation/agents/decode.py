"""A decode instance: a KV sink. It receives frames on every rank; when all are there, the first token leaves."""

import asyncio
import contextlib
import functools
import socket
from dataclasses import dataclass, field

from emulation.agents.agent import Agent
from emulation.agents.config import AgentConfig
from emulation.agents.lines import CLOSED, LineLink, listen
from emulation.agents.transfer import receive_now
from emulation.agents.wire import FrameHeader, FrameReader, Message, WireError
from workloads.request import Request

RECEIVE_BYTES = 256 * 1024
#: Within a frame a receiver wakes for this much, or for the frame's end: a wake-up for each packet (9 KB) is what a
#: decode instance would spend most of its time on.
WAKE_BYTES = 32 * 1024


@dataclass(slots=True)
class Arrival:
    """What has arrived of one request on one rank; times are run-clock seconds, bytes as the packets carry them."""

    first_byte_s: float
    connection: str
    emulated_bytes: int = 0
    last_byte_s: float | None = None


@dataclass(slots=True)
class Incoming:
    """One request on its way in."""

    head_moves: bool
    ranks: dict[int, Arrival] = field(default_factory=dict)


class DecodeAgent(Agent):
    """Listens on every GPU address for KV and on the host address for the gateway (and, on `none`, for prefills)."""

    def __init__(self, name: str, config: AgentConfig) -> None:
        super().__init__(name, config)
        self.instance = config.instance(name, "decode")
        self._incoming: dict[int, Incoming] = {}
        self._answered: set[int] = set()
        self._gateway: LineLink | None = None
        self._links: set[LineLink] = set()
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))

    async def setup(self) -> None:
        """Listen on the host address and on every rank's."""
        listen(self.instance.host_ip, self.config.request_port, self._accept_lines)
        for rank, ip in enumerate(self.instance.gpu_ips):
            listen(ip, self.config.kv_port, functools.partial(KvReceiver, self, rank))

    # -- KV -----------------------------------------------------------------------------------------------------

    def frame_started(self, header: FrameHeader, rank: int, peer: str) -> None:
        """The header of a frame arrived. WireError: no such request, wrong rank, or it came before."""
        if header.index >= len(self.config.requests):
            raise WireError(f"frame of request {header.index}; there are {len(self.config.requests)}")
        if header.rank != rank:
            raise WireError(f"frame of rank {header.rank} on the address of rank {rank}")
        if header.index in self._answered:
            raise WireError(f"frame of request {header.index}, which is complete")
        incoming = self._incoming.setdefault(header.index, Incoming(header.head_moves))
        incoming.ranks.setdefault(rank, Arrival(self.clock.now_s(), peer))

    def frame_ended(self, header: FrameHeader, rank: int) -> None:
        """The last byte of a frame arrived."""
        incoming = self._incoming[header.index]
        arrival = incoming.ranks[rank]
        arrival.emulated_bytes += header.size_bytes
        if not header.part.is_last:
            return
        arrival.last_byte_s = self.clock.now_s()
        if len(incoming.ranks) < len(self.instance.gpu_ips):
            return
        last_bytes_s = [each.last_byte_s for each in incoming.ranks.values()]
        if None not in last_bytes_s:
            self._complete(header.index, max(each for each in last_bytes_s if each is not None))

    def _complete(self, index: int, last_byte_s: float) -> None:
        request = self.config.requests[index]
        self._answered.add(index)
        self._first_token(request, last_byte_s)
        incoming = self._incoming.pop(index)
        for rank, arrival in sorted(incoming.ranks.items()):
            self.emit(self._transfer_record(request, incoming.head_moves, rank, arrival))

    def _first_token(self, request: Request, last_byte_s: float) -> None:
        if self._gateway is None:
            self.error("first token", f"request {request.id}: the gateway is not connected")
            return
        self._gateway.send(
            {"type": "first_token", "id": request.id, "sent_s": self.clock.now_s(), "last_byte_s": last_byte_s}
        )

    def real_bytes(self, request: Request, head_moves: bool) -> int:
        """Real bytes per rank of a request's KV that had to move."""
        model = self.config.model
        head_bytes = model.rank_head_bytes(request.cached_tokens, request.new_tokens) if head_moves else 0
        return head_bytes + model.rank_bytes(request.new_tokens)

    def _transfer_record(self, request: Request, head_moves: bool, rank: int, arrival: Arrival) -> Message:
        return {
            "type": "record",
            "of": "transfer",
            "id": request.id,
            "decode": self.name,
            "rank": rank,
            "bytes": self.real_bytes(request, head_moves),
            "emulated_bytes": arrival.emulated_bytes,
            "first_byte_s": arrival.first_byte_s,
            "last_byte_s": arrival.last_byte_s,
            "connection": arrival.connection,
            "retransmits": None,
            "rtos": None,
            "uplink": None,
        }

    def partial_records(self) -> list[Message]:
        """Transfers that have begun and not ended; their `last_byte_s` is null."""
        return [
            self._transfer_record(self.config.requests[index], incoming.head_moves, rank, arrival)
            for index, incoming in self._incoming.items()
            for rank, arrival in sorted(incoming.ranks.items())
        ]

    # -- the host network ---------------------------------------------------------------------------------------

    def _accept_lines(self, sock: socket.socket, peer: str) -> None:
        def on_message(message: Message) -> None:
            try:
                self._on_message(message, link)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                self.error(f"message from {peer}", error)

        def on_lost(reason: str) -> None:
            self._links.discard(link)
            if self._gateway is link:
                self._gateway = None
            if not reason.startswith(CLOSED):
                self.error(f"link to {peer}", reason)

        link = LineLink(sock, on_message, on_lost)
        self._links.add(link)

    def _on_message(self, message: Message, link: LineLink) -> None:
        if message["type"] == "hello":
            if message["role"] == "gateway":
                self._gateway = link
        elif message["type"] == "kv_complete":
            self._exists(int(message["index"]), bool(message["head_moves"]), float(message["at_s"]))
        else:
            raise ValueError(f"unknown message {message}")

    def _exists(self, index: int, head_moves: bool, at_s: float) -> None:
        """The ceiling: KV is here the moment it exists, and no byte crosses a link."""
        incoming = self._incoming.setdefault(index, Incoming(head_moves))
        for rank in range(len(self.instance.gpu_ips)):
            incoming.ranks[rank] = Arrival(at_s, "", last_byte_s=at_s)
        self._complete(index, at_s)


class KvReceiver:
    """Reads the frames of one KV connection, discards the payload and counts."""

    def __init__(self, agent: DecodeAgent, rank: int, sock: socket.socket, peer: str) -> None:
        self._agent = agent
        self._socket = sock
        self._peer = peer
        self._rank = rank
        self._frames = FrameReader()
        self._loop = asyncio.get_running_loop()
        self._wake_bytes = 1
        sock.setblocking(False)
        receive_now(sock)
        self._loop.add_reader(sock, self._read)

    def _wake_for(self, wake_bytes: int) -> None:
        """Have the kernel say that there is something to read when it holds this much, or the connection ends."""
        if wake_bytes != self._wake_bytes:
            self._wake_bytes = wake_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)

    def _read(self) -> None:
        buffer = self._agent.buffer
        try:
            count = self._socket.recv_into(buffer)
        except BlockingIOError:
            return
        except OSError as error:
            # A sender resets a connection it is done with; within a frame it is a loss.
            self._close(None if self._frames.between_frames else f"{error.strerror} {self._frames.position}")
            return
        if count == 0:
            self._close(None if self._frames.between_frames else f"closed {self._frames.position}")
            return
        with contextlib.suppress(OSError):
            receive_now(self._socket)
        try:
            for event in self._frames.feed(buffer[:count]):
                if event.ended:
                    self._agent.frame_ended(event.header, self._rank)
                else:
                    self._agent.frame_started(event.header, self._rank, self._peer)
            self._wake_for(min(self._frames.missing_bytes, WAKE_BYTES))
        except WireError as error:
            self._close(f"protocol error: {error}")

    def _close(self, reason: str | None) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if reason is not None:
            self._agent.error(f"KV from {self._peer} on rank {self._rank}", reason)
