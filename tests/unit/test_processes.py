"""Processes that are stuck are told from those that are only slow."""

import os
import signal
import subprocess
import sys
import time

import pytest

from emulation.linux.processes import Stillness

BUSY = "while True: pass"
IDLE = "import time\nwhile True: time.sleep(0.03)"


pytestmark = pytest.mark.timed  # a process that others keep from running is still too


@pytest.fixture
def process():
    started = []

    def start(code: str) -> int:
        started.append(subprocess.Popen([sys.executable, "-c", code]))
        return started[-1].pid

    yield start
    for child in started:
        child.kill()
        child.wait()


def longest_s(stillness: Stillness, watched_s: float) -> float:
    """The longest stillness seen while looking for some time."""
    deadline_s, longest = time.monotonic() + watched_s, 0.0
    while time.monotonic() < deadline_s:
        longest = max(longest, stillness.seconds())
        time.sleep(0.02)
    return longest


@pytest.mark.parametrize("code", [BUSY, IDLE])
def test_a_process_that_runs_now_and_then_is_not_still(process, code):
    pid = process(code)
    stillness = Stillness(lambda: [pid])
    time.sleep(0.2)
    assert longest_s(stillness, 1.5) < 1.0


def test_a_frozen_process_is_still_until_it_goes_on(process):
    pid = process(IDLE)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.3)
    stillness = Stillness(lambda: [pid])
    assert longest_s(stillness, 1.0) > 0.7
    os.kill(pid, signal.SIGCONT)
    deadline_s = time.monotonic() + 30
    while stillness.seconds() > 0.3:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_one_that_moves_keeps_all_from_being_still(process):
    frozen, idle = process(IDLE), process(IDLE)
    os.kill(frozen, signal.SIGSTOP)
    stillness = Stillness(lambda: [frozen, idle])
    time.sleep(0.2)
    assert longest_s(stillness, 1.5) < 1.0


def test_a_process_that_has_gone_is_still(process):
    stillness = Stillness(lambda: [2**22 + 1])
    assert longest_s(stillness, 0.5) > 0.2
