"""Files and directories written so that nobody else decides what is written where, and nobody meets half a file."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from outputs.place import refusal

DIRECTORY_MODE, FILE_MODE = 0o755, 0o644
#: What to do about errors of a file system, where that is not plain from their names.
_REMEDIES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room in your quota there",
    errno.EROFS: "mount it for writing, or choose another place",
    errno.EIO: "the disk fails: choose another place",
    errno.ENOENT: "its folder is gone: choose another place",
    errno.EACCES: "choose a place that you may write",
    errno.ENOMEM: "free some memory",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that readers see what was there before or all of `content`, and a link in its place is replaced
    and never followed. Its mode is 0644 whatever the umask. Raises OSError, also where root would write in a place
    that others can change."""
    _refuse(path.parent)
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")  # nobody can lay a link there beforehand
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), FILE_MODE)
        os.replace(temporary, path)
    except BaseException:  # an interrupt leaves no half file either
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def make_directory(path: Path, *, exist_ok: bool = False) -> None:
    """Make a directory and those above it that are missing, each with mode 0755 whatever the umask. Raises OSError,
    also where root would make it in a place that others can change."""
    _refuse(path)
    if path.is_dir():
        if not exist_ok:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        return
    if path.parent != path:
        make_directory(path.parent, exist_ok=True)
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        if not exist_ok or not path.is_dir():  # somebody was quicker, with a directory or with something else
            raise
    else:
        os.chmod(path, DIRECTORY_MODE)


def why(error: OSError) -> str:
    """What an error of a file system is, and the remedy."""
    remedy = _REMEDIES.get(error.errno or 0)
    said = error.strerror or str(error)
    return f"{said}; {remedy}" if remedy else said


def _refuse(place: Path) -> None:
    if reason := refusal(place):
        raise PermissionError(errno.EPERM, reason, str(place))
