"""Files as bytes and lines of UTF-8 text: plain, gzip or zstd by content, streamed, never held as a whole.

Only regular files are opened, so that nothing waits: what is read here is hashed and read again. Whatever a damaged or
foreign file does to the libraries below comes out as one TextError with file, line, cause and remedy.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from inputs.errors import InputError
from inputs.magic import GZIP, foreign, is_tar, is_zstd
from inputs.packed import BadContent, Gunzipped, Unzstd
from inputs.regular_file import NoFile, opened

# A row of 10^6 tokens in 16-token blocks is under a megabyte; a file without line ends must not fill the memory.
MAX_LINE_BYTES: Final = 16 * 2**20
_START_BYTES: Final = 4_096
_BOM: Final = b"\xef\xbb\xbf"
#: UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS: Final = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


class TextError(InputError):
    """A file that cannot be read, or a line of it: `problem` says why without the place."""

    def __init__(self, path: str | Path, line: int | None, problem: str) -> None:
        self.path, self.line, self.problem = Path(path), line, problem
        super().__init__(f"{path}:{line}: {problem}" if line is not None else f"{path}: {problem}")


class At:
    """The place a reader is at: the lines that were read, for the message of what is wrong in the next one."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.line = path, 0


@contextmanager
def refusing(at: At) -> Iterator[None]:
    """Turns what the system and a broken file raise into an TextError with file and line."""
    try:
        yield
    except BadContent as error:
        raise TextError(at.path, at.line + 1, str(error)) from error
    except (OSError, EOFError) as error:
        said = getattr(error, "strerror", None) or error
        raise TextError(at.path, at.line + 1, f"cannot be read ({said})") from error


def open_bytes(path: Path) -> io.BufferedReader:
    """The file's content, unpacked as it is read. Close it. Raises TextError, BadContent and OSError: use it within
    `refusing`."""
    try:
        plain, size_bytes = opened(path)
    except NoFile as error:
        raise TextError(path, None, error.problem) from None
    file = plain
    try:
        start = file.peek(_START_BYTES)
        if start[:2] == GZIP:
            file = io.BufferedReader(Gunzipped(plain, size_bytes))
        elif is_zstd(start):
            file = io.BufferedReader(Unzstd(plain, size_bytes))
        if file is not plain:
            start = file.peek(_START_BYTES)
            if start[:2] == GZIP or is_zstd(start):
                raise BadContent("compressed twice; unpack it once first")
        if known := foreign(start):
            raise BadContent(known)
    except BaseException:
        file.close()
        raise
    return file


def head(path: Path, size: int = 2**20) -> bytes:
    """The first bytes of the content, unpacked; fewer where the rest cannot be read, which a reader of lines says with
    its line. Raises TextError."""
    found = b""
    with refusing(At(path)), open_bytes(path) as file:
        try:
            while piece := file.read1(size - len(found)):
                found += piece
        except BadContent:
            if not found:
                raise
    return found


def lines(path: Path, at: At | None = None) -> Iterator[tuple[int, str]]:
    r"""(line number from 1, text) of each line, with its line end (\n or \r\n). Raises TextError."""
    at = at or At(path)
    with refusing(at), open_bytes(path) as file:
        start = file.peek(_START_BYTES)
        refuse_encoding(start)
        if is_tar(start):
            raise BadContent("a tar archive; unpack it first: tar -xf FILE")
        while data := file.readline(MAX_LINE_BYTES + 1):
            if at.line == 0:
                data = without_mark(data)
            if len(data) > MAX_LINE_BYTES:
                ends = f"; {CARRIAGE_RETURNS}" if b"\r" in data else ""
                raise BadContent(f"a line of over {MAX_LINE_BYTES:,} bytes is no row{ends}")
            text = decoded(data, data[-1:] == b"\n")
            at.line = line = at.line + 1
            yield line, text


CARRIAGE_RETURNS: Final = r"it has line ends of \r alone; write it with \n: tr '\r' '\n' < FILE > OTHER"


def without_mark(data: bytes) -> bytes:
    """Without the marks of UTF-8 that Windows programs begin a file with (two, where it went through two)."""
    while data.startswith(_BOM):
        data = data[len(_BOM) :]
    return data


def decoded(data: bytes, ended: bool) -> str:
    """UTF-8 as text. Raises BadContent. `ended`: more of the file follows, so a cut character is none."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not ended and error.reason == "unexpected end of data":
            raise BadContent("ends in the middle of a character; is the file complete?") from None
        raise BadContent(
            f"not UTF-8 (byte 0x{data[error.start]:02x}, as in Latin-1 or GB 18030); convert it: "
            "iconv -f WINDOWS-1252 -t UTF-8 FILE > OTHER"
        ) from None
    if "\0" in text:
        raise BadContent("a zero byte, which no text has: the file is damaged or no text; get it again")
    return text


def refuse_encoding(start: bytes) -> None:
    """Raises BadContent for UTF-16 and UTF-32, by their mark or by where the zero bytes of plain letters stand."""
    for mark, name in _MARKS:
        if start.startswith(mark):
            raise BadContent(f"not UTF-8 but {name}; convert it: iconv -f {name} -t UTF-8 FILE > OTHER")
    quarter = len(start) // 4
    if quarter < 4:
        return
    # which bytes of four are zeros
    zeros = "".join("0" if start[i::4].count(0) > 0.9 * quarter else "x" for i in range(4))
    names = {"x000": "UTF-32LE", "000x": "UTF-32BE", "x0x0": "UTF-16LE", "0x0x": "UTF-16BE"}
    if zeros in names:
        name = names[zeros]
        raise BadContent(f"not UTF-8 but {name}; convert it: iconv -f {name} -t UTF-8 FILE > OTHER")
