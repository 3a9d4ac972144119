"""gzip and zstd, unpacked as they are read: in little memory, never into much more than the file promises.

The libraries' own readers take a frame that was cut for one that has ended (zstd), and say of bytes behind the data
that the file is not gzipped. These say which it was, and what to do.
"""

from __future__ import annotations

import io
import zlib
from typing import IO, Any, ClassVar, Final, Protocol

import zstandard

from inputs.magic import GZIP, ZSTD, foreign, is_skippable

#: What a compressed file may always become, and how many times its own size beyond that. Traces pack 3- to 40-fold.
FREE_BYTES: Final = 256 * 2**20
MAX_RATIO: Final = 200
#: The window that `zstd -d` takes without an option.
_MAX_WINDOW_BYTES: Final = 2**27
_ZSTD_HEADER_BYTES: Final = 18
_CUT: Final = "the compressed data end in the middle; is the file complete?"


class BadContent(Exception):
    """Content that cannot be read: the cause and the remedy. Whoever knows the place makes an InputError of it."""


class _Frame(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _Unpacked(io.RawIOBase):
    """The content of compressed frames, one after the other. Raises BadContent behind the last byte that is right."""

    piece_bytes: ClassVar[int]
    tool: ClassVar[str]

    def __init__(self, file: IO[bytes], size_bytes: int) -> None:
        self._file = file
        self._most_bytes = max(FREE_BYTES, MAX_RATIO * size_bytes)
        self._given_bytes = 0
        self._input = b""
        self._content = memoryview(b"")
        self._frame: _Frame | None = None
        self._error: BadContent | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        filled = 0
        while filled < len(buffer):
            if not self._content and not self._more():
                break
            size = min(len(buffer) - filled, len(self._content))
            buffer[filled : filled + size] = self._content[:size]
            self._content = self._content[size:]
            filled += size
        if not filled and self._error is not None:
            raise self._error
        return filled

    def close(self) -> None:
        self._file.close()
        super().close()

    def _more(self) -> bool:
        """Whether there is more content: an error waits until what came before it was given."""
        if self._error is not None:
            return False
        try:
            self._content = memoryview(self._unpack())
        except BadContent as error:
            self._error = error
        return bool(self._content)

    def _unpack(self) -> bytes:
        """The next content; nothing at the end."""
        while True:
            if self._frame is None:
                self._frame = self._begin()
                if self._frame is None:
                    return b""
            if not self._fill(1):
                raise BadContent(_CUT)
            try:
                content = self._frame.decompress(self._input)
            except (zlib.error, zstandard.ZstdError) as error:
                raise BadContent(f"the compressed data are damaged ({error}); get the file again") from error
            self._input = b""
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
            self._given_bytes += len(content)
            if self._given_bytes > self._most_bytes:
                raise BadContent(
                    f"unpacks to over {self._most_bytes // 2**20} MiB (at most {MAX_RATIO} times its size, or "
                    f"{FREE_BYTES // 2**20} MiB); if that is right, unpack it first: {self.tool} -dc FILE > OTHER"
                )
            if content:
                return content

    def _fill(self, size: int) -> bool:
        """Have `size` bytes of input, as far as there are as many; whether there are."""
        while len(self._input) < size and (piece := self._file.read(self.piece_bytes)):
            self._input += piece
        return len(self._input) >= size

    def _begin(self) -> _Frame | None:
        """What unpacks the frame that the input begins with, None at the end of the file."""
        raise NotImplementedError

    def _behind(self) -> BadContent:
        known = foreign(self._input)
        return BadContent(
            f"bytes behind the compressed data ({self._input[:8]!r}{'' if known is None else ', ' + known}); "
            f"look at what {self.tool} -dc FILE > OTHER makes of it, and give that"
        )


class Gunzipped(_Unpacked):
    piece_bytes = 16_384  # of which deflate makes at most 1,032 times as much
    tool = "gzip"

    def _begin(self) -> _Frame | None:
        while self._fill(2) or self._input:
            if self._input[:2] == GZIP:
                return zlib.decompressobj(16 + zlib.MAX_WBITS)
            if not self._given_bytes or self._input.strip(b"\0"):
                raise self._behind()
            self._input = b""  # tapes and block devices pad with zeros, and gzip takes them
        return None


class Unzstd(_Unpacked):
    piece_bytes = 1_024  # a frame of nothing but repeats grows 30,000-fold
    tool = "zstd"

    def _begin(self) -> _Frame | None:
        while self._fill(_ZSTD_HEADER_BYTES) or self._input:
            if is_skippable(self._input):
                self._skip()
                continue
            if self._input[:4] != ZSTD:
                raise BadContent(_CUT) if ZSTD.startswith(self._input) else self._behind()
            try:
                frame = zstandard.get_frame_parameters(self._input)
            except zstandard.ZstdError as error:
                cut = len(self._input) < _ZSTD_HEADER_BYTES
                raise BadContent(_CUT if cut else f"the compressed data are damaged ({error})") from error
            if frame.window_size > _MAX_WINDOW_BYTES:
                long = f"--long={(frame.window_size - 1).bit_length()}"
                raise BadContent(
                    f"compressed with a window of {frame.window_size // 2**20} MiB (zstd {long}); unpack it with "
                    f"zstd -d {long} it first"
                )
            if frame.dict_id:
                raise BadContent(
                    f"compressed with the dictionary {frame.dict_id}; unpack it first: zstd -d -D DICTIONARY FILE"
                )
            return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()
        return None

    def _skip(self) -> None:
        if len(self._input) < 8:
            raise BadContent(_CUT)
        left = 8 + int.from_bytes(self._input[4:8], "little")
        while left:
            if not self._fill(1):
                raise BadContent(_CUT)
            dropped = min(left, len(self._input))
            self._input, left = self._input[dropped:], left - dropped
