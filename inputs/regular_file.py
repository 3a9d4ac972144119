"""The opening of a file that is read: a regular one, and never one that would be waited for."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path


class NoFile(Exception):
    """A path that is no file to read: `problem` says why, `missing` whether nothing is there."""

    def __init__(self, problem: str, *, missing: bool = False) -> None:
        self.problem, self.missing = problem, missing
        super().__init__(problem)


def no_file(path: str | Path) -> str | None:
    """Why a path is no file to read (it is not there, a directory, a pipe, a device); None where it is one."""
    try:
        _look(path)
    except NoFile as error:
        return error.problem
    return None


def opened(path: str | Path) -> tuple[BufferedReader, int]:
    """(the file, its bytes). Raises NoFile, and never waits for the other end of a pipe."""
    _look(path)  # before it is opened, which does something to some devices
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise NoFile(f"cannot be read ({error.strerror or error})") from None
    file = open(descriptor, "rb")  # noqa: SIM115 - the caller closes it
    state = os.fstat(descriptor)
    try:
        _judge(state.st_mode)  # something else may have taken its place meanwhile
    except NoFile:
        file.close()
        raise
    return file, state.st_size


def _look(path: str | Path) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise NoFile("no such file", missing=True) from None
    except OSError as error:
        raise NoFile(f"cannot be read ({error.strerror or error})") from None
    except ValueError:  # a zero byte, or half of a surrogate pair
        raise NoFile("no file can have this name") from None
    _judge(mode)


def _judge(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise NoFile("a directory; give a file")
    if stat.S_ISFIFO(mode):
        raise NoFile("a pipe cannot be read; give a file (it is read more than once)")
    if not stat.S_ISREG(mode):
        raise NoFile("a device or a socket cannot be read; give a file")
