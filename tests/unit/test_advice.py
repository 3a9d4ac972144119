"""Advice from a load that was measured: what is too much, by how much, and what would make it so; refusals before."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulation import advice, plan_checks
from emulation.advice import Advice, Load
from emulation.fabric_plan import FabricPlan
from experiments.spec import load as load_experiment

DEMO = Path(__file__).resolve().parents[2] / "experiments" / "demo.yaml"


def load(cores_percent: float = 20.0, worst_ratio: float | None = 1.0, timer_ms: float = 0.5) -> Load:
    return Load(144e6, 144e6, worst_ratio, cores_percent, timer_ms / 1e3)


@pytest.mark.parametrize(
    ("found", "needed"),
    [
        (load(), 20 / 75),
        (load(cores_percent=90.0), 90 / 75),
        (load(worst_ratio=0.96), 1.05 / 0.96),
        (load(worst_ratio=0.98), 20 / 75),
        (load(worst_ratio=None, cores_percent=150.0), 2.0),
        (load(timer_ms=20.0), 4.0),
    ],
)
def test_the_worst_of_cores_links_and_timers_says_by_how_much_the_load_must_shrink(found, needed):
    assert found.needed(1.0) == pytest.approx(needed)


def test_a_dilated_clock_allows_later_timers():
    assert load(timer_ms=20.0).needed(4.0) == pytest.approx(1.0)


def plan() -> FabricPlan:
    experiment = load_experiment(DEMO)
    return FabricPlan(experiment, experiment.fabrics[1], 1, ())


def advised(monkeypatch, at_dilation: dict[float, Load]) -> Advice:
    monkeypatch.setattr(advice, "measure", lambda plan, ledger, datapath: at_dilation[plan.scale.time_dilation])
    return advice._advise(plan(), None, "netdev")


def test_a_load_that_the_machine_carries_needs_no_remedy(monkeypatch):
    found = advised(monkeypatch, {1.0: load()})
    assert found.valid
    assert found.sentence() == (
        "ocs-25ms: 144 Mbit/s at once took 20 % of the cores, the slowest link carried 1.000 of its rate, timers were "
        "0.50 ms late (p99): it should be valid here"
    )


def test_the_dilation_is_tried_until_one_does_and_the_rate_scale_is_its_equal(monkeypatch):
    # too much by 1.05 / 0.5, then by 80 / 75: a dilation that is larger than it has to be would cost time
    loads = {1.0: load(99.0, worst_ratio=0.5), 3.0: load(80.0, worst_ratio=0.99), 4.0: load(60.0), 5.0: load(10.0)}
    found = advised(monkeypatch, loads)
    assert (found.valid, found.dilation, found.tried) == (False, 4, loads[4.0])
    assert advised(monkeypatch, loads | {3.0: load(60.0)}).dilation == 3
    assert found.rate_scale == pytest.approx(0.25e-4)
    assert "scale.time_dilation=4 (tried: 60 % of the cores) or scale.rate_scale=2.5e-05" in found.sentence()


def test_what_no_dilation_makes_valid_is_said_so(monkeypatch):
    for ratio in (0.9, 0.05):  # every try brings little; the first one says that 21 would be needed
        found = advised(monkeypatch, dict.fromkeys([1.0, *map(float, range(2, 17))], load(100.0, worst_ratio=ratio)))
        assert (found.valid, found.dilation) == (False, None)
    assert "nor with a time_dilation up to 16" in found.sentence()


def test_a_machine_that_others_are_using_is_not_judged(monkeypatch):
    monkeypatch.setattr(advice, "_busy_percent", lambda wait_s: 61.0)
    with pytest.raises(advice.MachineBusy, match="other programs have 61 % of the cores: end them"):
        advice.advise(load_experiment(DEMO), None, "netdev")


def test_a_congestion_control_that_the_kernel_has_not_got_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(plan_checks, "congestion_control_works", lambda name: name == "cubic")
    assert plan_checks.refusals(load_experiment(DEMO)) == []
    (line,) = plan_checks.refusals(load_experiment(DEMO, ["fabrics.1.congestion_control=dctcp"]))
    assert line.startswith("fabrics.1.congestion_control: this kernel has no 'dctcp'; modprobe tcp_dctcp, or choose")
