"""Namespaces of a run that somebody is in: they live on, with their links, and so they are not said to be removed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from namespaces import inside

from emulation.linux.ledger import LeftBehind, RunLedger, clean, dead_runs
from emulation.linux.netns import NETNS_DIR, batch


def somebody_in(namespace: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [*inside(namespace), "sh", "-c", "echo in; cat"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    return process


def test_who_is_in_a_namespace_is_named_until_he_has_gone(run_base: Path) -> None:
    ledger = RunLedger.open("one", base=run_base)
    names = [f"{ledger.prefix}-{name}" for name in ("a", "b")]
    ledger.namespaces(names)
    batch("ip", f"link add name x netns {names[0]} type veth peer name y netns {names[1]}\n", where="the test")
    guest = somebody_in(names[0])
    try:
        ledger.remove_namespaces(names)  # as a testbed does
        assert not [name for name in os.listdir(NETNS_DIR) if name.startswith(ledger.prefix)]
        with pytest.raises(
            LeftBehind, match=rf"namespace {names[0]} and its links live on in process {guest.pid} \("
        ) as left:
            ledger.close()
        assert names[1] not in str(left.value)
        (dead,) = dead_runs(run_base)
        with pytest.raises(LeftBehind, match=f"process {guest.pid}"):
            clean(dead)
    finally:
        guest.communicate()
    assert clean(dead) == [f"directory {dead}"]


def test_a_namespace_that_was_deleted_under_a_live_run_is_no_trouble(run_base: Path) -> None:
    ledger = RunLedger.open("one", base=run_base)
    names = [f"{ledger.prefix}-{name}" for name in ("a", "b")]
    ledger.namespaces(names)
    batch("ip", f"netns del {names[0]}\n", where="the test")
    assert ledger.close() == [f"namespace {names[1]}"]
