"""What crosses between agents: JSON lines on the host network, KV frames on the KV fabric. Pure, no socket.

A KV frame is a 24-byte header and payload that nobody reads. Its length counts the header. A transfer is one frame per
part: `all` in pull; `head` (where the prefix crosses) and `tail` layer-wise, so that on a kept connection the head of
the next request may pass before the tail of this one.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

MAGIC = b"HGKV"
_HEADER = struct.Struct("!4sIHHQI")
HEADER_BYTES = _HEADER.size
MAX_LINE_BYTES = 1 << 20
MAX_FRAME_BYTES = 1 << 40

Message = dict[str, Any]


class WireError(ValueError):
    """The peer sent something that is no frame or no message."""


class KvPart(IntEnum):
    """Which part of a request's KV a frame carries; the values are the low flag bits on the wire."""

    HEAD = 1
    TAIL = 2
    ALL = 3

    @property
    def label(self) -> str:
        """The name the northbound API uses."""
        return self.name.lower()

    @property
    def is_last(self) -> bool:
        """Whether a transfer is complete with this part."""
        return self is not KvPart.HEAD


_HEAD_MOVED = 4  # flag: the prefix crossed too, in this frame or an earlier one


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """One frame: `index` is the request's line in the requests file, `size_bytes` counts the header."""

    index: int
    rank: int
    part: KvPart
    size_bytes: int
    head_moves: bool

    def pack(self) -> bytes:
        """The 24 bytes on the wire."""
        flags = int(self.part) | (_HEAD_MOVED if self.head_moves else 0)
        return _HEADER.pack(MAGIC, self.index, self.rank, flags, self.size_bytes, 0)

    @classmethod
    def unpack(cls, raw: bytes) -> "FrameHeader":
        """Parse 24 bytes; WireError says which field is wrong and its value."""
        magic, index, rank, flags, size_bytes, reserved = _HEADER.unpack(raw)
        if magic != MAGIC:
            raise WireError(f"frame starts with {magic!r} instead of {MAGIC!r}")
        if flags & 3 == 0 or flags > 7 or reserved != 0:
            raise WireError(f"frame of request {index} has flags {flags:#x} and reserved {reserved:#x}")
        if not HEADER_BYTES <= size_bytes <= MAX_FRAME_BYTES:
            raise WireError(f"frame of request {index} says {size_bytes} bytes, outside {HEADER_BYTES}..2^40")
        return cls(index, rank, KvPart(flags & 3), size_bytes, bool(flags & _HEAD_MOVED))


@dataclass(frozen=True, slots=True)
class FrameEvent:
    """A frame whose header arrived (`ended` False) or whose last byte arrived (`ended` True)."""

    header: FrameHeader
    ended: bool


class FrameReader:
    """Finds frames in a byte stream that arrives in pieces of any size."""

    def __init__(self) -> None:
        self._partial_header = b""
        self._header: FrameHeader | None = None
        self._missing_bytes = 0

    @property
    def between_frames(self) -> bool:
        """Whether the stream may end here without cutting a frame."""
        return self._header is None and not self._partial_header

    @property
    def missing_bytes(self) -> int:
        """Bytes until something ends: the frame the stream stands in, or the header before the next."""
        return HEADER_BYTES - len(self._partial_header) if self._header is None else self._missing_bytes

    @property
    def position(self) -> str:
        """Where in a frame the stream stands, for an error."""
        if self._header is None:
            return f"{len(self._partial_header)} bytes into a header"
        arrived = self._header.size_bytes - self._missing_bytes
        return f"{arrived} bytes into a frame of {self._header.size_bytes} of request {self._header.index}"

    def feed(self, piece: memoryview) -> Iterator[FrameEvent]:
        """Yield the frames that begin or end within `piece`. WireError: a header is malformed."""
        while len(piece):
            if self._header is None:
                needed = HEADER_BYTES - len(self._partial_header)
                self._partial_header += bytes(piece[:needed])
                piece = piece[needed:]
                if len(self._partial_header) < HEADER_BYTES:
                    return
                self._header = FrameHeader.unpack(self._partial_header)
                self._partial_header = b""
                self._missing_bytes = self._header.size_bytes - HEADER_BYTES
                yield FrameEvent(self._header, ended=False)
            else:
                taken = min(len(piece), self._missing_bytes)
                self._missing_bytes -= taken
                piece = piece[taken:]
            if self._missing_bytes == 0:
                header, self._header = self._header, None
                yield FrameEvent(header, ended=True)


def encode_line(message: Message) -> bytes:
    """One JSON object on one line."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


class LineSplitter:
    """Cuts a byte stream into JSON objects, one a line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Message]:
        """The messages complete with `piece`, in order. WireError: not JSON, no object, or an endless line."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise WireError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [self._decode(line) for line in lines if line.strip()]

    @staticmethod
    def _decode(line: bytes) -> Message:
        try:
            message = json.loads(line)
        except ValueError as error:
            raise WireError(f"not JSON: {line[:120]!r} ({error})") from error
        if not isinstance(message, dict):
            raise WireError(f"not a JSON object: {line[:120]!r}")
        return message
