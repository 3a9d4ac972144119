"""The folder that a sweep's workers of this machine write to, and those that killed sweeps have left.

Whoever lives holds the lock of its folder; a folder that nobody holds was left behind, and `clean` or the next sweep
removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from inputs.owners import of_ours
from sweeps.axes import SweepError

PREFIX = "heliograph-sweep-"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder that is ours alone, and gone afterwards. Raises SweepError where none can be made."""
    try:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _locked(path)
    except OSError as error:
        raise SweepError(f"no folder for the workers can be made ({error}); set TMPDIR to a place with room") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_left() -> list[str]:
    """Remove the folders of sweeps that are gone, where the system keeps temporary files; a line for each."""
    removed = []
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        for path in sorted(Path(place).glob(PREFIX + "*")):
            with contextlib.suppress(OSError):  # another `clean` was faster
                if (lock := _locked(path)) is not None:
                    try:
                        shutil.rmtree(path)  # follows no link
                        removed.append(f"directory {path}")
                    finally:
                        os.close(lock)
    return removed


def _locked(path: Path) -> int | None:
    """A descriptor that holds the folder; None where another does, or where it is none of ours. Raises OSError."""
    descriptor = os.open(path, _OPEN)
    try:
        status = os.fstat(descriptor)
        if not of_ours(status.st_uid) or not stat.S_ISDIR(status.st_mode):
            raise BlockingIOError
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor
