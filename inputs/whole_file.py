"""A small file read whole: a regular file, of bounded size, UTF-8. Whatever else it is becomes one line."""

from __future__ import annotations

from pathlib import Path

from inputs.errors import InputError
from inputs.regular_file import NoFile, opened


class Unreadable(InputError):
    """A file that cannot be read; `problem` says why without its name, `missing` whether there is none."""

    def __init__(self, path: Path, problem: str, *, missing: bool = False) -> None:
        self.path, self.problem, self.missing = path, problem, missing
        super().__init__(f"{path}: {problem}")


def read_text(path: Path, most_bytes: int) -> str:
    """The text of a file of at most so many bytes. A pipe or a device is refused before it is opened: reading one may
    never end. Raises Unreadable."""
    content = _content(path, most_bytes)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Unreadable(
            path, f"not UTF-8: byte 0x{content[error.start]:02x} in line {line}; save the file as UTF-8"
        ) from None


def _content(path: Path, most_bytes: int) -> bytes:
    try:
        file, _ = opened(path)
        with file:
            content = file.read(most_bytes + 1)
    except NoFile as error:
        raise Unreadable(path, error.problem, missing=error.missing) from None
    except OSError as error:
        raise Unreadable(path, f"cannot be read ({error.strerror or error})") from None
    if len(content) > most_bytes:
        raise Unreadable(path, f"larger than {_size(most_bytes)}; is it the right file?")
    return content


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
