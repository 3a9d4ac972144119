"""Whether root may write at a place: nobody but those it trusts may be able to change what lies there.

A directory of somebody else (`inputs/owners.py`), or one that somebody else may write, could hold a link to any file
of root's by the time it is opened.
In a directory with the sticky bit, such as /tmp, others cannot touch what is ours, so ours may lie below it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from inputs.owners import of_ours, who_else

#: Folders that a virtual machine shares with its host, a line each: they have the host's owners. Written by
#: scripts/vm/provision.sh.
SHARES = Path("/etc/heliograph/shares")
_MOST_LINKS = 40


def refusal(place: Path, *, ours_alone: bool = False) -> str | None:
    """Why root must not write into the directory `place`, which need not be there yet; None where it may, and for any
    other user, who can do no more than his own rights allow. `ours_alone`: nobody else may make files in it, sticky or
    not. Raises OSError."""
    if os.geteuid() != 0:
        return None
    shares = _shares()
    for path, found in _passed(place):
        if path in shares:
            return None
        if stat.S_ISLNK(found.st_mode):
            if not of_ours(found.st_uid):
                return f"{path} is a link of somebody else's, and root would follow it; {_REMEDY}"
            continue
        sticky = found.st_mode & stat.S_ISVTX and of_ours(found.st_uid)
        if sticky and not (ours_alone and path == Path(os.path.realpath(place))):
            continue
        if who := who_else(found):
            return f"{path}: {who}, and root would write there; {_REMEDY}"
    return None


_REMEDY = "choose a place that nobody else can change (its owner: chmod go-w), or run this as its owner, with sudo"


def _shares() -> frozenset[Path]:
    """What root has declared; nothing where anybody else could have."""
    try:
        found = SHARES.stat()
        if found.st_uid != 0 or found.st_mode & 0o022:
            return frozenset()
        return frozenset(Path(line) for line in SHARES.read_text(encoding="utf-8").splitlines() if line)
    except (OSError, ValueError):
        return frozenset()


def _passed(place: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every directory and link that the kernel passes on its way to `place`, as far as it is there. Raises OSError."""
    at, links = Path("/"), 0
    ahead = [*reversed(place.absolute().parts[1:])]
    yield at, os.lstat(at)
    while ahead:
        name = ahead.pop()
        if name == "..":
            at = at.parent
            continue
        try:
            found = os.lstat(at / name)
        except (FileNotFoundError, NotADirectoryError):
            return
        yield at / name, found
        if not stat.S_ISLNK(found.st_mode):
            at /= name
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(place))
        target = Path(os.readlink(at / name))
        if target.is_absolute():
            at = Path("/")
        ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
