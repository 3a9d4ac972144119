"""What a process gives up, and whom it becomes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from process import rights
from process.rights import NOBODY_ELSE, Identity, RightsError, give_up, unprivileged

ROOT = Path(__file__).resolve().parents[2]
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")
GIVES_UP = """
import os, sys; sys.path.insert(0, sys.argv[1])
from process.rights import Identity, die_with, give_up
give_up(Identity({uid}, {uid}), keep={keep})
for line in open("/proc/self/status"):
    if line.split(":")[0] in ("Uid", "Groups", "NoNewPrivs", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        print(line.strip())
{then}
"""


def given_up(then: str = "", *, uid: int = NOBODY_ELSE, keep: tuple[int, ...] = ()) -> str:
    code = GIVES_UP.format(uid=uid, keep=keep, then=then)
    done = subprocess.run([sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.stdout


def test_they_become_who_called_sudo_else_a_user_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert unprivileged({"SUDO_UID": "1000", "SUDO_GID": "1001"}) == Identity(1000, 1001)
    nobody = Identity(NOBODY_ELSE, NOBODY_ELSE)
    for environment in ({}, {"SUDO_UID": "0", "SUDO_GID": "0"}, {"SUDO_UID": "-1", "SUDO_GID": "x"}, {"SUDO_UID": "7"}):
        assert unprivileged(environment) == nobody
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert unprivileged({"SUDO_UID": "1000", "SUDO_GID": "1001"}) is None


def test_in_a_user_namespace_without_the_id_they_stay_who_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(rights, "_is_mapped", lambda kind, number: number == 0)
    assert unprivileged({}) == Identity(os.getuid(), os.getgid())


@ROOT_ONLY
def test_nothing_is_kept_and_nothing_comes_back() -> None:
    back = "try:\n    os.setuid(0)\nexcept PermissionError:\n    print('no way back')"
    lines = given_up(back).splitlines()
    assert f"Uid:\t{NOBODY_ELSE}\t{NOBODY_ELSE}\t{NOBODY_ELSE}\t{NOBODY_ELSE}" in lines
    assert "NoNewPrivs:\t1" in lines
    assert [line for line in lines if line.startswith("Cap")] == [
        f"{each}:\t{0:016x}" for each in ("CapPrm", "CapEff", "CapBnd", "CapAmb")
    ]
    assert lines[-1] == "no way back"


@ROOT_ONLY
def test_a_capability_is_kept_through_an_exec() -> None:
    shown = given_up("os.execvp('grep', ['grep', 'CapEff', '/proc/self/status'])", keep=(rights.CAP_NET_RAW,))
    assert shown.splitlines()[-1] == f"CapEff:\t{1 << rights.CAP_NET_RAW:016x}"


@ROOT_ONLY
def test_whoever_stays_root_of_a_user_namespace_keeps_no_capability() -> None:
    lines = given_up(uid=0).splitlines()
    assert f"CapEff:\t{0:016x}" in lines
    assert "NoNewPrivs:\t1" in lines


def test_a_process_with_another_thread_is_refused() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with pytest.raises(RightsError, match="threads are running"):
            give_up(Identity(os.getuid(), os.getgid()))
    finally:
        done.set()
        other.join()
