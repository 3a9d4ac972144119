"""Whose a file is: what somebody else of this machine may have written is nothing that root may run."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from functools import lru_cache


def of_ours(uid: int) -> bool:
    """Whether a user is root, the caller, who called sudo, or the owner of this checkout, whose code runs anyway."""
    sudo = os.environ.get("SUDO_UID", "")
    ours = {0, os.geteuid(), os.getuid(), os.stat(__file__).st_uid}
    return uid in ours or (sudo.isdecimal() and uid == int(sudo))


def who_else(status: os.stat_result) -> str | None:
    """Who besides us may write what has this status, in words; None where nobody may."""
    if not of_ours(status.st_uid):
        return f"it belongs to {_user(status.st_uid)}"
    if status.st_mode & stat.S_IWOTH:
        return "everybody may write to it"
    if status.st_mode & stat.S_IWGRP and not _alone(status.st_gid):
        return f"the group {_group(status.st_gid)} may write to it"
    return None


def _alone(gid: int) -> bool:
    """Whether a group is root's, or the private one of a user of ours: named after them, with nobody else in it."""
    if gid == 0:
        return True
    try:
        found = grp.getgrgid(gid)
        return all(of_ours(pwd.getpwnam(name).pw_uid) for name in {found.gr_name, *found.gr_mem})
    except (KeyError, OSError):
        return False


@lru_cache(maxsize=64)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


@lru_cache(maxsize=64)
def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
