"""A receiver of KV wakes for what is worth it, and at once for the end of a frame."""

from __future__ import annotations

import asyncio
import socket

from emulation.agents.decode import WAKE_BYTES, KvReceiver
from emulation.agents.wire import FrameHeader, KvPart

PACKET_BYTES = 9000


class Frames:
    """Stands where the decode agent does: counts reads by the buffers they were given, and logs frames."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(1 << 18))
        self.reads = 0
        self.log: list[tuple[str, int]] = []
        self.ended = asyncio.Event()

    @property
    def buffer(self) -> memoryview:
        self.reads += 1
        return self._buffer

    def frame_started(self, header: FrameHeader, rank: int, peer: str) -> None:
        self.log.append(("started", header.index))

    def frame_ended(self, header: FrameHeader, rank: int) -> None:
        self.log.append(("ended", header.index))
        self.ended.set()

    def error(self, where: str, text: str) -> None:
        self.log.append((text, -1))


async def receive(sizes_bytes: list[int]) -> Frames:
    """Frames of these sizes, sent packet by packet, each packet once the receiver has had its turn."""
    frames = Frames()
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted, _ = server.accept()
        receiver = KvReceiver(frames, 0, accepted, "peer")  # type: ignore[arg-type]
        for index, size_bytes in enumerate(sizes_bytes):
            frame = FrameHeader(index, 0, KvPart.ALL, size_bytes, False).pack().ljust(size_bytes, b"\0")
            frames.ended.clear()
            for start in range(0, size_bytes, PACKET_BYTES):
                await loop.sock_sendall(sender, frame[start : start + PACKET_BYTES])
                await asyncio.sleep(0.001)
            await asyncio.wait_for(frames.ended.wait(), 30)
        receiver._close(None)
    return frames


def test_a_receiver_does_not_wake_for_each_packet():
    frames = asyncio.run(receive([546_000]))
    assert frames.log == [("started", 0), ("ended", 0)]
    assert frames.reads <= 2 + 546_000 // WAKE_BYTES + 1  # 61 packets


def test_a_frame_ends_when_its_last_byte_is_there_however_little_that_is():
    sizes_bytes = [24, 25, WAKE_BYTES + 24, WAKE_BYTES + 25, 3 * WAKE_BYTES + 1, 24]
    frames = asyncio.run(receive(sizes_bytes))
    assert frames.log == [(what, index) for index in range(len(sizes_bytes)) for what in ("started", "ended")]
