"""Stamps of the kernel on the clock of a run."""

import time

import pytest

from emulation.linux import wall_clock
from emulation.linux.wall_clock import ClockOffset, ClockPair, read_clocks


def test_a_clock_that_gains_is_followed_between_the_readings_and_not_beyond() -> None:
    clocks = ClockPair(ClockOffset(100.0, 1000.0), ClockOffset(200.0, 1000.01))
    stamps = {100.0: 1100.0, 150.0: 1150.005, 200.0: 1200.01, 300.0: 1300.01, 50.0: 1050.0}
    for monotonic_s, realtime_s in stamps.items():
        assert clocks.monotonic_s(realtime_s) == pytest.approx(monotonic_s, abs=1e-6)
    assert clocks.stepped_s == 0


def test_a_clock_that_was_set_is_told_from_one_that_gains() -> None:
    assert ClockPair(ClockOffset(0.0, 0.0), ClockOffset(60.0, 0.028)).stepped_s == 0
    assert ClockPair(ClockOffset(0.0, 0.0), ClockOffset(60.0, -0.5)).stepped_s == 0.5


def test_readings_at_one_moment_leave_a_constant_difference() -> None:
    assert ClockPair(ClockOffset(5.0, 7.0), ClockOffset(5.0, 7.0)).monotonic_s(20.0) == 13.0


def test_a_reading_that_was_interrupted_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    moments_ns = iter([0, 2_000_000, 10_000_000, 10_000_200])
    realtimes_ns = iter([1_900_000, 10_000_100])
    monkeypatch.setattr(wall_clock.time, "monotonic_ns", lambda: next(moments_ns))
    monkeypatch.setattr(wall_clock.time, "clock_gettime_ns", lambda clock: next(realtimes_ns))
    assert read_clocks(tries=2) == ClockOffset(0.0100001, 0.0)


def test_the_clocks_of_this_machine_agree_with_themselves() -> None:
    reading = read_clocks()
    assert reading.monotonic_s <= time.monotonic()
    assert ClockPair(reading, read_clocks()).monotonic_s(time.time()) == pytest.approx(time.monotonic(), abs=0.01)
