"""Standard streams that cannot fail: what cannot be written is dropped, and said once, when the command has ended.

A run of minutes does not end because the reader of its table has gone; its artifacts are worth more than its output.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from typing import Any

STDOUT, STDERR = 1, 2


class Dropping(io.RawIOBase):
    """A file descriptor to write to. From the first error on, which it keeps in `error`, it takes everything and writes
    nothing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.error: OSError | None = None

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, content: bytes) -> int:  # type: ignore[override]
        """Write what can be written; says that all was."""
        left = memoryview(content).cast("B")
        while left and self.error is None:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.error = error
        return len(content)


def guard() -> Dropping:
    """Make standard output and error such streams; returns that of the output. Closed ones are opened on /dev/null, so
    that no file of ours takes their numbers; that of the output then has its error at once."""
    closed = _fill()
    out = Dropping(STDOUT)
    if STDOUT in closed:
        out.error = OSError(errno.EBADF, "it is closed")
    sys.stdout, sys.stderr = _text(out), _text(Dropping(STDERR))
    return out


def _fill() -> set[int]:
    closed = set()
    for descriptor in (0, STDOUT, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            closed.add(descriptor)
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            os.set_inheritable(descriptor, True)
    return closed


def _text(raw: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)


def loss(out: Dropping) -> str | None:
    """What to say of the output that was lost, once the command has ended; None where nothing was."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    if out.error is None:
        return None
    return f"standard output cannot be written ({out.error.strerror}): what was printed from there on is lost"
