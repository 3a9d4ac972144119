"""The soak's own arithmetic: which blows fall, and what counts as left behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time

from scripts import soak


def test_the_blows_are_those_of_the_seed_and_reach_every_part_with_every_signal() -> None:
    found = soak.blows(400, 1, 9.0)
    assert found == soak.blows(400, 1, 9.0) != soak.blows(400, 2, 9.0)
    assert {blow.part for blow in found} == {"", *soak.PARTS}
    assert {blow.number for blow in found} == set(soak.SIGNALS)
    assert all(0 <= blow.at_s <= 9 for blow in found)
    assert not [blow for blow in found if blow.fabric == "packets" and blow.part.startswith("ovs")]


def test_what_is_new_is_left_and_what_was_there_is_not() -> None:
    before = soak.Machine.now()
    assert before.since(before) == []
    now = dataclasses.replace(
        before, namespaces=before.namespaces | {"hg1-gw"}, links=before.links | {"x"}, mounts=before.mounts | {"/m"},
        runs=before.runs | {"r"}, hurried="1" if before.hurried != "1" else "0",
    )  # fmt: skip
    assert now.since(before)[:4] == ["namespace hg1-gw", "link x", "mount /m", "run directory r"]
    assert now.since(before)[4].startswith("rcu_expedited is ")
    assert before.since(now)[:4] == [f"rcu_expedited is {before.hurried}"], "what others removed is not left"


def test_a_process_that_a_run_started_is_known_by_its_mark() -> None:
    mark = f"{os.getpid()}-test"
    environment = os.environ | {soak.MARK: mark}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as process:
        until_s = time.monotonic() + 10
        while [pid for pid, _ in soak.marked(mark)] != [process.pid]:
            assert time.monotonic() < until_s
        assert process.stdin is not None
        process.stdin.close()
    assert not list(soak.marked(mark))


def test_the_table_counts_how_runs_ended() -> None:
    blow = soak.Blow("circuits", "the run", signal.SIGHUP, 1.0)
    rounds = [soak.Round(blow, 129, True), soak.Round(blow, 129, True), soak.Round(blow, 0, False), soak.Round(blow)]
    lines = soak.table(rounds).splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines] == ["struck", "nothing", "the"]
    assert lines[1].endswith("0 (1), hung (1)")
    assert lines[2].endswith("SIGHUP   129 (2)")
