"""Moments: never early, and not late by a tick of epoll."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ryu.lib import hub

from controllers.ryu_app.timing import WAKE_S, Alarm, RunClock, sleep_until

pytestmark = pytest.mark.timed


def kept_waiting_s() -> float:
    """Seconds that this thread could have run and had no processor, since it started."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


def test_a_sleep_is_never_early_and_mostly_late_by_less_than_a_millisecond() -> None:
    """But for what others who had the processor made it late."""
    lateness_s, ours_s = [], []
    for number in range(60):
        waited_s = kept_waiting_s()
        deadline_s = time.monotonic() + 0.001 + number * 0.000137
        sleep_until(deadline_s)
        lateness_s.append(time.monotonic() - deadline_s)
        ours_s.append(lateness_s[-1] - (kept_waiting_s() - waited_s))
    assert min(lateness_s) >= 0
    assert statistics.median(ours_s) < 0.001


def test_a_sleep_lets_others_run() -> None:
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            hub.sleep(0)

    other = hub.spawn(tick)
    during = []
    for _ in range(20):  # one of them has the processor to itself
        before = ticks
        sleep_until(time.monotonic() + 0.003)
        during.append(ticks - before)
    hub.kill(other)
    assert max(during) > 10


def test_the_run_clock_counts_real_seconds_of_the_cluster() -> None:
    t0_s = time.monotonic() - 10
    clock = RunClock(t0_s, time_dilation=4)
    before_s = time.monotonic()
    now_s = clock.now_s()
    after_s = time.monotonic()
    assert (before_s - t0_s) / 4 <= now_s <= (after_s - t0_s) / 4
    assert clock.monotonic_s(now_s) == pytest.approx(t0_s + 4 * now_s)
    assert RunClock(after_s + 100, 1).now_s() < 0


class Ringing:
    """An alarm that notes when it rings."""

    def __init__(self) -> None:
        self.rung_s: list[float] = []
        self.woken_s: list[float] = []
        self.alarm = Alarm(lambda: self.rung_s.append(time.monotonic()), lambda: self.woken_s.append(time.monotonic()))
        self.greenlet = hub.spawn(self.alarm.run)


@pytest.fixture
def ringing() -> Iterator[Ringing]:
    made = Ringing()
    hub.sleep(0)
    yield made
    hub.kill(made.greenlet)


def test_an_alarm_rings_once_and_not_early(ringing: Ringing) -> None:
    at_s = time.monotonic() + 0.01
    ringing.alarm.set(at_s)
    hub.sleep(0.05)
    (rung_s,) = ringing.rung_s
    assert rung_s >= at_s


def test_an_alarm_can_be_moved_earlier_and_later(ringing: Ringing) -> None:
    start_s = time.monotonic()
    ringing.alarm.set(start_s + 60)
    hub.sleep(0.002)
    ringing.alarm.set(start_s + 0.2)
    hub.sleep(0.002)
    ringing.alarm.set(start_s + 0.25)
    while not ringing.rung_s:
        hub.sleep(0.002)
        assert time.monotonic() < start_s + 30
    hub.sleep(0.02)
    (rung_s,) = ringing.rung_s
    assert rung_s >= start_s + 0.25


def test_an_alarm_can_be_called_off(ringing: Ringing) -> None:
    ringing.alarm.set(time.monotonic() + 0.1)
    hub.sleep(0.001)
    ringing.alarm.set(None)
    hub.sleep(0.15)
    assert ringing.rung_s == []


def test_an_alarm_set_while_it_rings_rings_again(ringing: Ringing) -> None:
    def ring() -> None:
        ringing.rung_s.append(time.monotonic())
        if len(ringing.rung_s) < 3:
            ringing.alarm.set(time.monotonic() + 0.002)

    ringing.alarm._ring = ring
    start_s = time.monotonic()
    ringing.alarm.set(start_s)
    while len(ringing.rung_s) < 3:
        hub.sleep(0.002)
        assert time.monotonic() < start_s + 30


def test_an_alarm_wakes_once_shortly_before_it_rings_and_not_for_a_moment_that_has_come(ringing: Ringing) -> None:
    at_s = time.monotonic() + 0.05
    ringing.alarm.set(at_s)
    hub.sleep(0.1)
    (woken_s,), (rung_s,) = ringing.woken_s, ringing.rung_s
    assert at_s - WAKE_S - 0.002 < woken_s < at_s <= rung_s
    ringing.alarm.set(time.monotonic())
    hub.sleep(0.01)
    assert (len(ringing.woken_s), len(ringing.rung_s)) == (1, 2)


def test_an_alarm_that_is_moved_wakes_for_its_new_moment(ringing: Ringing) -> None:
    start_s = time.monotonic()
    ringing.alarm.set(start_s + 60)
    hub.sleep(0.002)
    ringing.alarm.set(start_s + 0.05)
    hub.sleep(0.1)
    (woken_s,) = ringing.woken_s
    assert start_s + 0.05 - WAKE_S - 0.002 < woken_s < start_s + 0.05
