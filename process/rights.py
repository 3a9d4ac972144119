"""What a process of ours may do once it needs root no more: nothing. Linux only; constants are from linux/prctl.h and
linux/capability.h.

    identity = unprivileged()        before: who to be
    give_up(identity)                what was opened before stays open; there is no way back
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

#: A user id that owns nothing and that nobody is given: the last one that Debian reserves before `nobody`, which other
#: programs' processes share.
NOBODY_ELSE = 65533
CAP_NET_RAW = 13
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 1, 24, 8, 38
_PR_CAP_AMBIENT, _AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 47, 2, 4
_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


class RightsError(RuntimeError):
    """Rights could not be given up: says which, and why. Whoever catches it must end."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a process becomes. The ids it has already: it gives up its capabilities alone."""

    uid: int
    gid: int


def unprivileged(environment: Mapping[str, str] | None = None) -> Identity | None:
    """Whom our processes become: who called sudo, else a user that owns nothing; None where we are not root.

    In a user namespace that has no such id they stay who they are, which is nobody that is root outside.
    """
    if os.geteuid():
        return None
    environment = os.environ if environment is None else environment
    uid, gid = environment.get("SUDO_UID", ""), environment.get("SUDO_GID", "")
    if uid.isdecimal() and gid.isdecimal() and int(uid) and int(gid):
        wanted = Identity(int(uid), int(gid))
    else:
        wanted = Identity(NOBODY_ELSE, NOBODY_ELSE)
    mapped = _is_mapped("uid", wanted.uid) and _is_mapped("gid", wanted.gid)
    return wanted if mapped else Identity(os.getuid(), os.getgid())


def _is_mapped(kind: str, number: int) -> bool:
    """Whether this user namespace has an id; a kernel without them has every one."""
    try:
        lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
    except FileNotFoundError:
        return True
    return any(int(first) <= number < int(first) + int(count) for first, _, count in map(str.split, lines))


def give_up(identity: Identity, keep: Collection[int] = ()) -> None:
    """Become `identity`, with no capability but those to `keep`, no other groups, and no way to ever have more.

    The kernel forgets whose death ends us: `die_with` comes after it. It is the calling thread that gives up: raises
    RightsError where there are others, and where something cannot be given up.
    """
    if len(threads := os.listdir("/proc/self/task")) > 1:
        raise RightsError(f"{len(threads)} threads are running: only one could give up its rights")
    try:
        for capability in set(range(64)) - set(keep):  # those that the kernel has not got are refused
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        _checked(_libc.prctl(_PR_SET_KEEPCAPS, 1 if keep else 0, 0, 0, 0))
        if (os.getuid(), os.getgid()) != (identity.uid, identity.gid):
            os.setgroups([])
            os.setresgid(identity.gid, identity.gid, identity.gid)
            os.setresuid(identity.uid, identity.uid, identity.uid)
        _libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)
        _set_capabilities(keep)
        for capability in keep:  # so that they outlive an exec
            _checked(_libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, capability, 0, 0))
        _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    except OSError as error:
        raise RightsError(
            f"cannot become user id {identity.uid} without rights: {error.strerror}; run it as root, outside of an "
            "unprivileged container"
        ) from error
    if os.getresuid() != (identity.uid,) * 3 or os.getresgid() != (identity.gid,) * 3:
        raise RightsError(f"still user ids {os.getresuid()} and group ids {os.getresgid()}, not {identity}")


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that made it ends; exit at once if `parent_pid` has gone."""
    if _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent_pid:
        os._exit(1)


def _set_capabilities(keep: Collection[int]) -> None:
    mask = sum(1 << capability for capability in keep)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)(low, low, low, high, high, high)))


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
