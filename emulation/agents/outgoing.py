"""One request's KV on its way out: which part may move, what of it exists, and when every rank has it."""

import asyncio
import math
from collections.abc import Callable, Sequence

from emulation.agents.clock import AgentClock
from emulation.agents.kernel import TcpCounters
from emulation.agents.transfer import Frame, KvConnection, released_bytes
from emulation.agents.wire import HEADER_BYTES, FrameHeader, KvPart, Message
from emulation.scale import ScaleModel
from workloads.serving import KvStream


class OutgoingPart:
    """A part of the transfer: real bytes [first, end) of the stream, as one frame of `size_bytes` per rank."""

    def __init__(self, part: KvPart, first_bytes: int, end_bytes: int, scale: ScaleModel) -> None:
        self.part = part
        self.end_bytes = end_bytes
        self.first_emulated_bytes = scale.emulated_bytes(first_bytes)
        # Both ends are converted, not the difference, so that the parts add up; a part is never below its header.
        self.size_bytes = max(scale.emulated_bytes(end_bytes) - self.first_emulated_bytes, HEADER_BYTES)
        self.released_bytes = 0
        self.frames: list[Frame] | None = None
        self.done = False


class OutgoingTransfer:
    """The transfer of one request over all ranks, in parallel. All ranks have equal streams.

    `on_part_done(part)` is called when no rank's kernel holds an unacknowledged byte of the part (without ranks, on
    the fabric `none`: when the part exists), `on_lost(reason)` when a connection breaks.
    """

    def __init__(
        self,
        index: int,
        stream: KvStream,
        *,
        clock: AgentClock,
        scale: ScaleModel,
        on_part_done: Callable[[KvPart], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.index = index
        self.stream = stream
        self.release_lateness_s = 0.0
        #: When the prefill's end was first acted upon here; its last bytes may arrive before anything else is told.
        self.end_actual_s: float | None = None
        self.connections: list[KvConnection] = []
        self._clock = clock
        self._scale = scale
        self._on_part_done = on_part_done
        self._on_lost = on_lost
        self._timer: asyncio.TimerHandle | None = None
        self._baseline: dict[int, TcpCounters] = {}
        self.aborted = False
        head, total = stream.head_bytes, stream.total_bytes
        if stream.mode == "pull":
            parts = [OutgoingPart(KvPart.ALL, 0, total, scale)]
        else:
            parts = [OutgoingPart(KvPart.TAIL, head, total, scale)]
            if head:
                parts.insert(0, OutgoingPart(KvPart.HEAD, 0, head, scale))
        self.parts = {part.part: part for part in parts}

    @property
    def complete(self) -> bool:
        """Whether every part is done."""
        return all(part.done for part in self.parts.values())

    @property
    def first_byte_s(self) -> float:
        """When the first of its KV exists."""
        first_s = self.stream.next_release_s(-math.inf)
        assert first_s is not None  # before everything, something is to come
        return first_s

    @property
    def emulated_bytes(self) -> int:
        """Bytes per rank on the wire, headers included."""
        return sum(part.size_bytes for part in self.parts.values())

    def send(self, which: KvPart, connections: Sequence[KvConnection]) -> None:
        """The part may move now, over these connections (one a rank; none on the fabric `none`)."""
        part = self.parts[which]
        if part.frames is not None or self.aborted:
            return
        part.frames = []
        for rank, connection in enumerate(connections):
            if rank not in self._baseline or self.connections[rank] is not connection:
                self._baseline[rank] = connection.counters()
            header = FrameHeader(self.index, rank, which, part.size_bytes, self.stream.head_bytes > 0)
            frame = Frame(header, self._frame_done, self._frame_lost)
            part.frames.append(frame)
            connection.enqueue(frame)
        self.connections = list(connections)
        self.advance(self._clock.now_s())

    def advance(self, now_s: float) -> None:
        """Release what exists at `now_s`, and come back when the next segment does."""
        if self.aborted:
            return
        if self.end_actual_s is None and now_s >= self.stream.end_s:
            self.end_actual_s = now_s
        for part in self.parts.values():
            self._release(part, now_s)
        if self._timer is not None:
            self._timer.cancel()
        next_s = self._next_release_s(now_s)
        self._timer = None if next_s is None else self._clock.at(next_s, lambda at_s: self._on_timer(at_s, next_s))

    def abort(self) -> None:
        """Give up: frames that are not on the wire are taken back, a frame cut short takes its connection along."""
        self.aborted = True
        if self._timer is not None:
            self._timer.cancel()
        for part in self.parts.values():
            for frame, connection in zip(part.frames or [], self.connections, strict=False):
                connection.withdraw(frame)

    def sender_records(self, request_id: str, prefill: str, decode: str) -> list[Message]:
        """One record per rank, with TCP's account of it."""
        records: list[Message] = []
        for rank, connection in enumerate(self.connections):
            counters = connection.counters() if connection.usable else None
            delta = None if counters is None else counters.since(self._baseline[rank])
            records.append(
                {
                    "type": "record",
                    "of": "sender",
                    "id": request_id,
                    "rank": rank,
                    "prefill": prefill,
                    "decode": decode,
                    "bytes": self.stream.total_bytes,
                    "emulated_bytes": self.emulated_bytes,
                    "source_port": connection.source_port,
                    "uplink": connection.uplink,
                    "retransmits": None if delta is None else delta.retransmits,
                    "rtos": None if delta is None else delta.rtos,
                    "rtt_us": None if delta is None else delta.rtt_us,
                }
            )
        return records

    def _on_timer(self, now_s: float, planned_s: float) -> None:
        self.release_lateness_s = max(self.release_lateness_s, now_s - planned_s)
        self.advance(now_s)

    def _upto_bytes(self, part: OutgoingPart, now_s: float) -> int:
        exist_bytes = self.stream.bytes_at(now_s)
        if exist_bytes >= part.end_bytes:
            return part.size_bytes
        # Rounding to whole emulated bytes must not complete a frame before its KV is complete.
        emulated = self._scale.emulated_bytes(exist_bytes) - part.first_emulated_bytes
        return released_bytes(max(min(emulated, part.size_bytes - 1), 0), part.size_bytes)

    def _release(self, part: OutgoingPart, now_s: float) -> None:
        if part.frames is None or part.released_bytes == part.size_bytes:
            return
        part.released_bytes = max(part.released_bytes, self._upto_bytes(part, now_s))
        for frame, connection in zip(part.frames, self.connections, strict=True):
            connection.release(frame, part.released_bytes)
        if not part.frames and part.released_bytes == part.size_bytes:
            self._finish(part)

    def _next_release_s(self, now_s: float) -> float | None:
        waiting = [
            part for part in self.parts.values() if part.frames is not None and part.released_bytes < part.size_bytes
        ]
        at_s: float | None = now_s
        while waiting and at_s is not None:
            at_s = self.stream.next_release_s(at_s)
            if at_s is not None and any(self._upto_bytes(part, at_s) > part.released_bytes for part in waiting):
                return at_s
        return None

    def _frame_done(self, frame: Frame) -> None:
        part = self.parts[frame.header.part]
        if part.frames is not None and all(each.done for each in part.frames) and not part.done and not self.aborted:
            self._finish(part)

    def _finish(self, part: OutgoingPart) -> None:
        part.done = True
        self._on_part_done(part.part)

    def _frame_lost(self, frame: Frame, reason: str) -> None:
        if not self.aborted:
            self._on_lost(reason)
