"""Whether a machine keeps time, and how long a packet test that failed waits for one that does."""

from collections.abc import Callable

import machine_pace
import pytest
from machine_pace import LATE_LOOKS, LATE_S, LINK_SHARE, NoReferenceLinkError, Patience, Ticks, unfit

START = Ticks(work=0, stolen=0, all=0)


class Machine:
    """What the witnesses say next; each look and each pause passes on a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.late_s: list[float] = []
        self.link_share, self.work, self.stolen = 1.0, 0, 0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def wakes_late_by_s(self) -> float:
        return self.late_s.pop(0) if self.late_s else LATE_S / 2

    def ticks(self) -> Ticks:
        return Ticks(round(self.work * self.now_s), self.stolen, 100 + round(100 * self.now_s))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(machine_pace.time, "monotonic", lambda: found.now_s)
    monkeypatch.setattr(machine_pace.time, "sleep", found.sleep)
    monkeypatch.setattr(machine_pace, "wakes_late_by_s", found.wakes_late_by_s)
    monkeypatch.setattr(machine_pace, "reference_link_share", lambda: found.link_share)
    monkeypatch.setattr(Ticks, "now", found.ticks)
    return found


def test_a_machine_that_keeps_time_is_fit_and_not_waited_for(machine: Machine) -> None:
    assert unfit(START) is None
    patience, before_s = Patience(300.0), machine.now_s
    patience.wait()
    assert machine.now_s - before_s == pytest.approx(machine_pace.LOOK_S)
    assert patience.left_s == pytest.approx(300.0 - machine_pace.LOOK_S)


def late(machine: Machine) -> None:
    machine.late_s += [LATE_S / 2, 2 * LATE_S] * 4


def slow(machine: Machine) -> None:
    machine.link_share = LINK_SHARE - 0.01


def stolen(machine: Machine) -> None:
    machine.stolen = 6


@pytest.mark.parametrize(
    ("disturb", "said"),
    [(late, "1.0 ms late"), (slow, "carries 0.96 of its rate"), (stolen, "the hypervisor took 6 % of the processors")],
)
def test_each_witness_is_heard(machine: Machine, disturb: Callable[[Machine], None], said: str) -> None:
    disturb(machine)
    assert said in (unfit(START) or "")


@pytest.mark.parametrize("disturb", [late, slow])
def test_what_is_late_while_programs_work_may_be_late_because_of_ours(
    machine: Machine, disturb: Callable[[Machine], None]
) -> None:
    disturb(machine)
    machine.work = 20  # a fifth of the processors' time
    assert unfit(START) is None
    patience = Patience(18.0)
    patience.wait()
    assert patience.left_s == 0.0, "a place to measure is one at rest"


def test_what_is_late_once_is_late_by_chance(machine: Machine) -> None:
    machine.late_s += [2 * LATE_S] * (LATE_LOOKS - 1)
    assert unfit(START) is None


def test_where_no_link_can_be_made_the_other_witnesses_are_heard(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> float:
        raise NoReferenceLinkError("ip link add v: exit status 2: RTNETLINK answers: File exists")

    monkeypatch.setattr(machine_pace, "reference_link_share", refuse)
    with pytest.warns(UserWarning, match="cannot be told: ip link add v: exit status 2: RTNETLINK answers"):
        assert unfit(START) is None
    late(machine)
    with pytest.warns(UserWarning, match="File exists"):
        assert "1.0 ms late" in (unfit(START) or "")


def test_patience_is_for_all_tests_together(machine: Machine) -> None:
    machine.late_s += [0.002, 0.002, 0.0001, *[0.002] * 9]
    patience = Patience(18.0)
    patience.wait()
    assert patience.left_s == pytest.approx(18.0 - 2 * machine_pace.PAUSE_S - 3 * machine_pace.LOOK_S)
    patience.wait()
    assert patience.left_s == 0.0
    before_s = machine.now_s
    patience.wait()
    assert machine.now_s == before_s, "it has no patience left"


def test_lateness_is_what_one_sleep_in_twenty_takes_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, late_s = [0.0], [0.004] * 20 + [0.0001] * 280  # a fifteenth of them late
    monkeypatch.setattr(machine_pace.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(machine_pace.time, "sleep", lambda s: now.__setitem__(0, now[0] + s + late_s.pop()))
    assert machine_pace.wakes_late_by_s() == pytest.approx(0.004)
