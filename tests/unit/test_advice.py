"""Advice from a load that was measured: what is too much, by how much, and what would make it so; refusals before."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from emulation.doctor import forecast as advice
from emulation.doctor import plan_checks
from emulation.doctor.forecast import Advice, Load
from emulation.linux.ledger import RunLedger
from emulation.network.shaping import Shape
from emulation.network.testbed import Testbed, TestbedError
from emulation.plan.fabric_plan import FabricPlan
from emulation.run.components import Parts
from experiments.schema.spec import load as load_experiment
from process.interrupts import interruptible

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


def pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


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
    assert found.sentence().endswith(
        "it will not be valid here; scale.time_dilation=4 (tried: 60 % of the cores) would make it so, and probably "
        "scale.rate_scale=2.5e-05 instead"
    )


def test_where_timers_are_the_limit_only_a_dilation_is_advised(monkeypatch):
    # 20 ms late whatever the load: four times what is allowed, and as much as is allowed of a clock that is as slow
    found = advised(monkeypatch, {1.0: load(timer_ms=20.0), 4.0: load(timer_ms=20.0), 5.0: load(timer_ms=20.0)})
    assert (found.dilation in (4, 5), found.rate_scale) == (True, None)
    assert "rate_scale" not in found.sentence()


def test_where_no_dilation_did_the_largest_that_was_tried_is_named(monkeypatch):
    # every try brings little: four fifths of a core where three quarters are allowed, so 2, 3, 4 and 5 are tried
    little = dict.fromkeys(map(float, range(1, 17)), load(80.0, worst_ratio=0.99))
    found = advised(monkeypatch, little)
    assert (found.valid, found.dilation, found.largest_tried) == (False, None, 5)
    assert found.sentence().endswith("it will not be valid here, nor with scale.time_dilation=5 (4 were tried)")


def test_a_dilation_beyond_the_largest_is_neither_tried_nor_said_to_be_of_no_use(monkeypatch):
    found = advised(monkeypatch, {1.0: load(worst_ratio=0.05)})
    assert (found.valid, found.dilation, found.largest_tried) == (False, None, None)
    assert found.sentence().endswith("not be valid here (it seems to need 21, and none beyond 16 is advised)")


def test_a_dilation_at_which_links_are_too_slow_for_a_shaper_ends_the_search(monkeypatch):
    def measured(plan, ledger, datapath):
        Shape(plan.kv_goodput_bps)
        return load(worst_ratio=0.5)

    monkeypatch.setattr(advice, "measure", measured)
    experiment = load_experiment(DEMO, ["scale.rate_scale=1e-6"])  # 360 kbit/s; a shaper makes 150
    found = advice._advise(FabricPlan(experiment, experiment.fabrics[1], 1, ()), None, "netdev")
    assert (found.valid, found.largest_tried) == (False, None)
    assert "3 cannot be tried: goodput of 1" in found.sentence()


@pytest.mark.parametrize("datapath", ["netdev", "system"])
def test_what_is_loaded_is_the_network_of_a_run(tmp_path, monkeypatch, datapath):
    """With as many switch daemons, and the links' delay."""
    shape = "{prefill_instances: 16, decode_instances: 16, gpus_per_instance: 4, link_delay_us: 50}"
    experiment = load_experiment(DEMO, [f"cluster={shape}"])
    plan = FabricPlan(experiment, experiment.fabrics[1], 1, ())
    built = []

    def build(testbed, *, controller_listens):
        built.append(testbed)
        raise TestbedError("not here: it needs root")

    monkeypatch.setattr(Testbed, "build", build)
    with RunLedger.open("doctor", base=tmp_path) as ledger:
        with pytest.raises(TestbedError):
            advice.measure(plan, ledger, datapath)
        run = Parts(plan, ledger, datapath).testbed
    (loaded,) = built
    assert loaded.nodes() == run.nodes()
    assert loaded.ends() == run.ends()
    assert {end.shape.delay_s for end in loaded.ends() if end.shape} == {2 * 50e-6}, "a circuit is two links"
    assert (
        len({namespace for namespace in loaded.nodes().values() if "-ovs" in namespace})
        == {"netdev": 2, "system": 1}[datapath]
    )


def test_a_signal_to_everybody_at_the_terminal_is_the_parent_s_alone(capfd):
    """Ctrl-C while the load is on: its processes end in order and silently."""

    def interrupted():
        with ProcessPoolExecutor(
            2, mp_context=multiprocessing.get_context("fork"), initializer=advice._be_worker, initargs=(os.getpid(),)
        ) as pool:
            pids = set(pool.map(pid_after, [0.05] * 4))
            waits = [pool.submit(pid_after, 0.5) for _ in range(2)]
            for pid in pids:
                os.kill(pid, signal.SIGINT)
                os.kill(pid, signal.SIGHUP)
                os.kill(pid, signal.SIGQUIT)
            return {wait.result() for wait in waits} <= pids

    with interruptible():
        assert interrupted()
    assert "Traceback" not in capfd.readouterr().err


def test_a_machine_that_others_are_using_is_not_judged(monkeypatch):
    monkeypatch.setattr(advice, "_busy_percent", lambda wait_s: 61.0)
    with pytest.raises(advice.MachineBusy, match="other programs have 61 % of the cores: end them"):
        advice.advise(load_experiment(DEMO), None, "netdev")


def test_a_congestion_control_that_the_kernel_has_not_got_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(plan_checks, "congestion_control_works", lambda name: name == "cubic")
    assert plan_checks.refusals(load_experiment(DEMO)) == []
    (line,) = plan_checks.refusals(load_experiment(DEMO, ["fabrics.1.congestion_control=dctcp"]))
    assert line.startswith("fabrics.1.congestion_control: this kernel has no 'dctcp'; modprobe tcp_dctcp, or choose")
