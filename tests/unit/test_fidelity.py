"""The verdict: what makes a run degraded or invalid, in words a user can act on."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulation.evidence import gather
from emulation.fabric_plan import FabricPlan
from emulation.fidelity import Evidence, judge
from emulation.machine import MachineUse, MachineWatch
from emulation.scale import ScaleModel
from experiments.spec import load
from results.merge import Frames
from results.schema import CIRCUITS, REQUESTS, TRANSFERS

DEMO = Path(__file__).resolve().parents[2] / "experiments" / "demo.yaml"


def evidence(**changes) -> Evidence:
    scale = ScaleModel(1e-4, changes.pop("time_dilation", 1.0))
    return Evidence(**({"scale": scale, "datapath": "netdev", "completed": 10} | changes))


def use(**changes) -> MachineUse:
    return MachineUse(**({
        "samples": 10, "busiest_core_percent": 20.0, "all_cores_percent": 10.0, "p95_all_cores_percent": 20.0,
        "steal_percent": 0.0, "least_available_memory_bytes": 2**30,
    } | changes))  # fmt: skip


def test_a_quiet_run_is_valid_and_gives_no_reasons():
    verdict = judge(evidence(link_ratios={"p0-d0": 1.01}, arrival_lag_s=[0.001] * 100, machine=use()))
    assert (verdict["verdict"], verdict["reasons"]) == ("valid", [])


@pytest.mark.parametrize(
    ("changes", "expected", "says"),
    [
        ({"link_ratios": {"p0-d0": 0.96}}, "invalid", "goodput error of p0-d0"),
        ({"link_ratios": {"p0-d0": 1.04}}, "invalid", "goodput error of p0-d0"),
        ({"arrival_lag_s": [0.006] * 100}, "invalid", "arrival lag p99 6 ms against 5 ms"),
        ({"faults": ["agent p1 ended (status -9)"]}, "invalid", "agent p1"),
        ({"completed": 0}, "invalid", "no request was completed"),
        ({"unfinished": 1}, "degraded", "unfinished"),
        ({"prefill_lateness_s": [0.006] * 100}, "degraded", "prefill timer lateness"),
        ({"switch_excess_s": [0.006] * 9}, "degraded", "reconfiguration beyond tau"),
        ({"transfers": 99, "transfers_with_rto": 1}, "degraded", "TCP timeout"),
        ({"circuit_rate_ratios": [0.96, 0.96, 1.0]}, "degraded", "rate of long transfers"),
        ({"machine": use(p95_all_cores_percent=96.0)}, "degraded", "CPU"),
        ({"machine": use(steal_percent=6.0)}, "degraded", "hypervisor"),
    ],
)
def test_each_detector_decides_and_says_why(changes, expected, says):
    verdict = judge(evidence(**changes))
    assert verdict["verdict"] == expected
    assert any(says in reason for reason in verdict["reasons"])


def test_one_timeout_in_a_thousand_transfers_does_not_degrade_a_run():
    assert judge(evidence(transfers=1000, transfers_with_rto=1, rtos=1))["verdict"] == "valid"


def test_a_kernel_that_does_not_report_timeouts_says_so_instead_of_zero():
    verdict = judge(evidence(rtos=None))
    assert next(m for m in verdict["measures"] if m["name"] == "TCP timeouts (RTO)")["emulated"] is None
    assert "this kernel does not report TCP timeouts" in verdict["notes"]


def test_dilation_relaxes_the_limit_of_lateness_in_wall_time():
    assert judge(evidence(arrival_lag_s=[0.012] * 100, time_dilation=4.0))["verdict"] == "valid"
    assert judge(evidence(arrival_lag_s=[0.021] * 100, time_dilation=4.0))["verdict"] == "invalid"


def switch(dark_s: float, dark_wait_s: float = 0.025) -> dict:
    return {"event": "switch", "window": 7, "dark_s": dark_s, "steps_s": {"dark_wait": dark_wait_s}}


def gathered(events=(), records=(), dilation: float = 1.0, requests=(), transfers=()) -> Evidence:
    experiment = load(DEMO, [f"scale.time_dilation={dilation}"])
    plan = FabricPlan(experiment, experiment.fabrics[1], 1, ())
    frames = Frames(REQUESTS.frame(requests), TRANSFERS.frame(transfers), CIRCUITS.frame([]))
    return gather(
        plan, datapath="netdev", frames=frames, records=records, errors=[], controller_events=list(events),
        links=[], probe=None, excess_s=0.002, machine=None, faults=[],
    )  # fmt: skip


@pytest.mark.parametrize("dilation", [1.0, 2.0, 4.0])
def test_the_excess_of_a_switch_is_wall_time_whatever_the_dilation(dilation):
    """The log has real seconds: 3 ms of wall time beyond tau are 3 ms / dilation there."""
    found = gathered([switch(0.025 + 0.003 / dilation)], dilation=dilation)
    assert found.switch_excess_s == pytest.approx([0.003])
    assert not found.faults


@pytest.mark.parametrize("event", [switch(0.0249), switch(0.027, dark_wait_s=0.0249)])
def test_a_circuit_live_before_tau_is_a_fault(event):
    (fault,) = gathered([event]).faults
    assert "dark for less than tau: window 7 waited 24.900 ms of 25 ms" in fault


def test_senders_without_a_timeout_count_are_unknown_not_zero():
    assert gathered(records=[{"of": "sender", "rtos": None}]).rtos is None
    known = gathered(records=[{"of": "sender", "rtos": 2}, {"of": "sender", "rtos": 0}])
    assert (known.rtos, known.transfers, known.transfers_with_rto) == (2, 2, 1)


def test_long_transfers_tell_the_rate_of_their_circuit():
    row = {"request": "a", "rank": 0, "bytes": 5_464_064_000, "first_byte_s": 1.0}
    transfers = [
        row | {"emulated_bytes": 546_406, "last_byte_s": 1.0 + 5_464_064_000 / 45e9 / 0.95},
        row | {"rank": 1, "emulated_bytes": 9_000, "last_byte_s": 1.1},
    ]
    assert gathered(transfers=transfers).circuit_rate_ratios == pytest.approx([0.95])


def test_statuses_are_counted():
    row = dict.fromkeys(REQUESTS.columns, None) | {"arrival_s": 0.0, "new_tokens": 1, "cached_tokens": 0, "tenant": "t"}
    requests = [
        row | {"id": str(i), "status": status} for i, status in enumerate(["completed", "unfinished", "failed"])
    ]
    found = gathered(requests=requests)
    assert (found.completed, found.unfinished) == (1, 1)


@pytest.mark.parametrize(("samples", "expected"), [(20, 19.0), (100, 95.0), (1, 1.0)])
def test_the_95th_percentile_of_cpu_samples_is_the_nearest_rank(samples, expected):
    watch = MachineWatch({})
    watch._cores = [[float(number)] for number in range(1, samples + 1)]
    watch._steal, watch._memory = [0.0], [1]
    assert watch.use().p95_all_cores_percent == expected
