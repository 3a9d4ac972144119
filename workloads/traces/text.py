"""Trace files as bytes, lines and table rows: plain, gzip or zstd by content, streamed, never held as a whole.

Whatever a damaged or foreign file does to the decompressors and parsers below comes out as one TraceError.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NoReturn, cast

import zstandard

from workloads.traces.trace import TraceError

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
# A row of 10^6 tokens in 16-token blocks is under a megabyte; a file without line ends must not fill the memory.
MAX_LINE_CHARS: Final = 16 * 2**20


class At:
    """The place a parser is at, for the message of an error that a library raises."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.line = path, 0


@contextmanager
def refusing(at: At) -> Iterator[None]:
    """Turns what a broken file makes the libraries raise into a TraceError with file and line."""
    try:
        yield
    except FileNotFoundError:
        raise TraceError(at.path, None, "no such file; give the trace's path") from None
    except IsADirectoryError:
        raise TraceError(at.path, None, "a directory; give the trace's file") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, zstandard.ZstdError) as error:
        raise TraceError(at.path, at.line + 1, f"cannot be read ({error}); is the file complete?") from error


class _ZstdFile(io.RawIOBase):
    """The content of zstd frames, one after the other. The library's own reader takes a frame that was cut for one
    that has ended; this one raises EOFError."""

    # A frame of nothing but repeats grows 30,000-fold: a small piece at a time keeps what it becomes small.
    _PIECE_BYTES: Final = 1024

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._data = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._data:
            piece = self._file.read(self._PIECE_BYTES)
            if not piece:
                if self._frame is not None:
                    raise EOFError("the compressed file ends in the middle")
                return 0
            self._data = memoryview(self._decompress(piece))
        size = min(len(buffer), len(self._data))
        buffer[:size] = self._data[:size]
        self._data = self._data[size:]
        return size

    def _decompress(self, piece: bytes) -> bytes:
        found = []
        while piece:
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            found.append(self._frame.decompress(piece))
            piece = b""
            if self._frame.eof:
                piece, self._frame = self._frame.unused_data, None
        return b"".join(found)

    def close(self) -> None:
        self._file.close()
        super().close()


def open_bytes(path: Path) -> IO[bytes]:
    """The file's content, decompressed as it is read. Close it; raises what the decompressors raise."""
    file = path.open("rb")
    try:
        magic = file.read(4)
        file.seek(0)
        if magic[:2] == _GZIP_MAGIC:
            # GzipFile does not close a file it was given; opened by name, it closes its own.
            file.close()
            return cast("IO[bytes]", gzip.open(path, "rb"))
        if magic == _ZSTD_MAGIC:
            return io.BufferedReader(_ZstdFile(file))
    except BaseException:
        file.close()
        raise
    return file


def head(path: Path, size: int = 2**20) -> bytes:
    """The first bytes of the content, decompressed."""
    with refusing(At(path)), open_bytes(path) as file:
        return file.read(size)


def lines(path: Path, at: At | None = None) -> Iterator[tuple[int, str]]:
    """(line number from 1, text) of each line, with its line end. Raises TraceError."""
    at = at or At(path)
    with refusing(at), open_bytes(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig") as text:
        while line := text.readline(MAX_LINE_CHARS):
            at.line += 1
            if len(line) == MAX_LINE_CHARS:
                raise TraceError(path, at.line, f"a line of over {MAX_LINE_CHARS} characters is no row of a trace")
            yield at.line, line


def parse_json(text: str, path: str | Path, line: int | None) -> Any:
    """One JSON value. Refuses NaN and infinities, which JSON does not have. Raises TraceError."""

    def refuse_constant(name: str) -> NoReturn:
        raise TraceError(path, line, f"{name} is no JSON number; remove or repair the row")

    try:
        return json.loads(text, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        message = f"not JSON ({error.msg} at column {error.colno})"
    except (ValueError, RecursionError) as error:
        # An integer of thousands of digits, or brackets nested as deep.
        if isinstance(error, TraceError):
            raise
        message = f"no row of a trace ({error})"
    raise TraceError(path, line, f"{message}; the row is malformed or the file is of another format")


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line of a JSON lines file that is not blank. Raises TraceError."""
    for line, text in lines(path):
        if not text.strip():
            continue
        record = parse_json(text, path, line)
        if not isinstance(record, dict):
            raise TraceError(path, line, f"a {type(record).__name__} where the format has an object per line")
        yield line, record


def table(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[int, list[str]]]:
    """(line number, the cells of `columns` then of `optional`) of each row of a CSV file with a header.

    Columns are found by name, whatever their case and order; an optional one that the file does not have gives empty
    cells. Raises TraceError for a missing column or a row with more or fewer cells than the header.
    """
    at = At(path)
    reader = csv.reader((text for _, text in lines(path, at)), strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        if missing := [name for name in columns if name.lower() not in header]:
            raise TraceError(path, 1, f"no column {', '.join(missing)}; the format has {', '.join(columns)}")
        places = [header.index(name.lower()) for name in columns]
        extra = [header.index(name.lower()) if name.lower() in header else None for name in optional]
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise TraceError(
                    path, reader.line_num, f"{len(cells)} cells where the header has {len(header)}; is the row cut?"
                )
            yield (
                reader.line_num,
                [cells[i] for i in places] + ["" if i is None else cells[i] for i in extra],
            )
    except csv.Error as error:
        raise TraceError(path, max(at.line, 1), f"not a CSV row ({error}); remove or repair the row") from error
