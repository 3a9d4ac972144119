"""Moments: never early, and not late by a tick of epoll."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest
from ryu.lib import hub

from controllers.timing import Alarm, RunClock, sleep_until


def test_a_sleep_is_never_early_and_mostly_late_by_less_than_a_millisecond() -> None:
    lateness_s = []
    for number in range(60):
        deadline_s = time.monotonic() + 0.001 + number * 0.000137
        sleep_until(deadline_s)
        lateness_s.append(time.monotonic() - deadline_s)
    assert min(lateness_s) >= 0
    assert statistics.median(lateness_s) < 0.001


def test_a_sleep_lets_others_run() -> None:
    ticks = []

    def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            hub.sleep(0)

    other = hub.spawn(tick)
    sleep_until(time.monotonic() + 0.003)
    hub.kill(other)
    assert len(ticks) > 10


def test_the_run_clock_counts_real_seconds_of_the_cluster() -> None:
    clock = RunClock(time.monotonic() - 10, time_dilation=4)
    assert clock.now_s() == pytest.approx(2.5, abs=0.1)
    assert clock.monotonic_s(clock.now_s()) == pytest.approx(time.monotonic(), abs=0.1)
    assert RunClock(time.monotonic() + 10, 1).now_s() == pytest.approx(-10, abs=0.1)


class Ringing:
    """An alarm that notes when it rings."""

    def __init__(self) -> None:
        self.rung_s: list[float] = []
        self.alarm = Alarm(lambda: self.rung_s.append(time.monotonic()))
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
        assert time.monotonic() < start_s + 10
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
        assert time.monotonic() < start_s + 10
