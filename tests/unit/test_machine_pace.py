"""How long a packet test that failed waits for a machine that keeps time."""

import machine_pace
import pytest
from machine_pace import LATE_S, Patience


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Lateness of the next looks; each look and each pause passes on a clock of its own."""
    now, late = [0.0], []
    monkeypatch.setattr(machine_pace.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(machine_pace.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    monkeypatch.setattr(machine_pace, "wakes_late_by_s", lambda: late.pop(0))
    return late


def test_a_machine_that_keeps_time_is_not_waited_for(clock: list[float]) -> None:
    clock += [LATE_S / 2]
    patience = Patience(300.0)
    assert patience.late_s() is None
    assert patience.left_s == 300.0


def test_patience_is_for_all_tests_together(clock: list[float]) -> None:
    clock += [0.002, 0.002, 0.0001, 0.002, 0.003, 0.004, 0.005]
    patience = Patience(18.0)
    assert patience.late_s() is None
    assert patience.left_s == 8.0
    assert patience.late_s() == 0.004
    assert patience.late_s() == 0.005, "it has no patience left"


def test_lateness_is_what_one_sleep_in_twenty_takes_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, late_s = [0.0], [0.004] * 20 + [0.0001] * 280  # a fifteenth of them late
    monkeypatch.setattr(machine_pace.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(machine_pace.time, "sleep", lambda s: now.__setitem__(0, now[0] + s + late_s.pop()))
    assert machine_pace.wakes_late_by_s() == pytest.approx(0.004)
