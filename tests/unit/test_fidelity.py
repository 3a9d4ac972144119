"""The verdict: what makes a run degraded or invalid, in words a user can act on."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulation.monitor.changes import Change
from emulation.monitor.circuit_rules import FlowTable, TableReading
from emulation.monitor.machine import MachineUse, Stop, nearest_rank
from emulation.monitor.observed import Observed
from emulation.monitor.sampler import SamplerCost
from emulation.plan.fabric_plan import FabricPlan
from emulation.scale import ScaleModel
from emulation.verdict.evidence import Evidence, gather
from emulation.verdict.faults import clock_offsets
from emulation.verdict.fidelity import judge
from experiments.schema.spec import load
from results.metrics.merge import Frames
from results.records.schema import CIRCUITS, REQUESTS, TRANSFERS

DEMO = Path(__file__).resolve().parents[2] / "experiments" / "demo.yaml"


def evidence(**changes) -> Evidence:
    scale = ScaleModel(1e-4, changes.pop("time_dilation", 1.0))
    return Evidence(**({"scale": scale, "datapath": "netdev", "completed": 10} | changes))


def use(**changes) -> MachineUse:
    return MachineUse(**({
        "samples": 10, "cores_percent": [20.0, 0.0], "all_cores_percent": 10.0, "p95_all_cores_percent": 20.0,
        "full_core_percent": 0.0, "steal_percent": 0.0, "foreign_percent": 1.0, "p95_foreign_percent": 2.0,
        "least_available_memory_bytes": 2**42,
    } | changes))  # fmt: skip


def seen(**changes) -> Observed:
    return Observed(machine=use(**changes))


def test_a_quiet_run_is_valid_and_gives_no_reasons():
    verdict = judge(evidence(link_ratios={"p0-d0": 1.01}, arrival_lag_s=[0.001] * 100, observed=seen()))
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
        ({"release_lateness_s": [0.006] * 100}, "degraded", "layer release lateness"),
        (
            {"control_rtt_s": {"admitted": [0.001] * 9, "transfer-done": [0.051] * 9}},
            "degraded",
            "control round trip of transfer-done, median 51 ms against 10 ms",
        ),
        ({"window_lateness_s": [0.006] * 9}, "degraded", "window start against plan"),
        ({"observed": seen(p95_all_cores_percent=96.0)}, "degraded", "CPU"),
        ({"observed": seen(steal_percent=6.0)}, "degraded", "hypervisor"),
        ({"observed": seen(foreign_percent=26.0)}, "degraded", "CPU taken by other programs 26 % against 25 %"),
        ({"observed": seen(waiting_percent={"ovs-vswitchd": 26.0})}, "degraded", "time ovs-vswitchd waited for a core"),
        ({"observed": seen(least_available_memory_bytes=0)}, "degraded", "memory in use"),
        ({"observed": Observed(cost=SamplerCost(1.0, 2.1))}, "degraded", "longest time nobody looked 2100 ms"),
        (
            {"observed": Observed(cost=SamplerCost(1.0, 0.1, ("RuleWatch: refused",)))},
            "degraded",
            "watches that ended early 1 against 0: RuleWatch: refused; what they look at was not seen",
        ),
        ({"observed": Observed(unread_rules=("plane0",))}, "degraded", "rules were never read 1 against 0: plane0"),
        ({"audit_gaps": ["a", "b", "c"]}, "degraded", "gaps of the packet audit 3 against 0: a; b; and 1 more"),
    ],
)
def test_each_detector_decides_and_says_why(changes, expected, says):
    verdict = judge(evidence(**changes))
    assert verdict["verdict"] == expected
    assert any(says in reason for reason in verdict["reasons"])


def test_a_run_that_was_looked_at_all_the_while_is_valid():
    looked = Observed(cost=SamplerCost(1.0, 0.1), unread_rules=())
    assert judge(evidence(observed=looked, audit_gaps=[]))["reasons"] == []


def test_one_timeout_in_a_thousand_transfers_does_not_degrade_a_run():
    assert judge(evidence(transfers=1000, transfers_with_rto=1, rtos=1))["verdict"] == "valid"


def test_a_kernel_that_does_not_report_timeouts_says_so_instead_of_zero():
    verdict = judge(evidence(rtos=None))
    assert next(m for m in verdict["measures"] if m["name"] == "TCP timeouts (RTO)")["emulated"] is None
    assert "this kernel does not report TCP timeouts" in verdict["notes"]


def test_dilation_relaxes_the_limit_of_lateness_in_wall_time():
    assert judge(evidence(arrival_lag_s=[0.012] * 100, time_dilation=4.0))["verdict"] == "valid"
    assert judge(evidence(arrival_lag_s=[0.021] * 100, time_dilation=4.0))["verdict"] == "invalid"


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        ({"full_core_percent": 60.0}, "one core was full for 60 % of the time; use time_dilation 7"),
        ({"foreign_percent": 80.0}, "other programs took 80 % of the cores; close them; use time_dilation 7"),
        ({"steal_percent": 30.0}, "the hypervisor took 30 % of the cores; run it on a quiet host; use time_dilation 7"),
    ],
)
def test_a_reason_names_what_took_the_time_and_the_dilation_that_would_do(machine, says):
    (reason, *_) = judge(evidence(arrival_lag_s=[0.031] * 100, observed=seen(**machine)))["reasons"]
    assert reason == f"arrival lag p99 31 ms against 5 ms: {says}"


def test_a_delay_that_no_dilation_makes_good_says_so():
    (reason,) = judge(evidence(arrival_lag_s=[0.5] * 100, observed=seen()))["reasons"]
    assert "no time_dilation of a reasonable size would do" in reason


def test_every_measure_has_both_units_where_it_scales():
    found = judge(evidence(arrival_lag_s=[0.004] * 100, time_dilation=4.0))["measures"]
    lag = next(measure for measure in found if measure["name"] == "arrival lag p99")
    assert [lag[key] for key in ("emulated", "real", "limit", "limit_real")] == pytest.approx([4.0, 1.0, 20.0, 5.0])


def test_an_agent_whose_clock_is_off_is_named_even_if_it_was_right_at_first():
    readings = {"gw": [(101.0, 1.0), (102.0, 2.0)], "p0": [(100.1, 0.1), (101.02, 1.0)], "d0": [(101.0, 1.0004)]}
    assert clock_offsets(readings, 100.0, 1.0) == pytest.approx({"gw": 0.0, "p0": 0.020, "d0": -0.0004})
    (fault,) = gathered(clock_readings=readings).faults
    assert "a clock is wrong: agent p0's is 20.0 ms behind the run's; 1 ms are allowed" in fault
    ahead = gathered(clock_readings={"p0": [(102.0, 1.003)]}, dilation=2.0)
    assert "agent p0's is 6.0 ms ahead of the run's; 2 ms are allowed" in ahead.faults[0]


def test_what_was_seen_and_must_not_happen_is_a_fault():
    observed = Observed(
        machine=use(stops=(Stop("ovs-vswitchd", 103.0, 0.2),)),
        changes=(Change(104.0, "p0 gpu0", "a class was set"), Change(105.0, "p0 gpu0", "a class was set")),
        rules=(
            TableReading(
                "plane0", 101.0, 101.1, FlowTable(frozenset(), False, ("a group, and the controller makes none",))
            ),
        ),
    )
    assert gathered(observed=observed).faults == [
        "a process was stopped: ovs-vswitchd, 3.0 s after the start, for about 0.2 s",
        "the network was changed while the run was on: p0 gpu0: a class was set, 4.0 s after the start",
        "the circuit switches held: plane0: a group, and the controller makes none",
        "the circuit switches lacked: plane0: priority=0,actions=drop, 1.1 s after the start",
    ]


def test_windows_that_began_late_are_measured_against_their_plan():
    events = [{"event": "window", "state": "dark", "late_s": 0.007}, {"event": "window", "state": "released"}]
    assert gathered(events, dilation=2.0).window_lateness_s == pytest.approx([0.014])


def switch(dark_s: float, dark_wait_s: float = 0.025) -> dict:
    return {"event": "switch", "window": 7, "dark_s": dark_s, "steps_s": {"dark_wait": dark_wait_s}}


def gathered(
    events=(), records=(), dilation: float = 1.0, requests=(), transfers=(), observed=None, clock_readings=None
) -> Evidence:
    experiment = load(DEMO, [f"scale.time_dilation={dilation}"])
    plan = FabricPlan(experiment, experiment.fabrics[1], 1, ())
    frames = Frames(REQUESTS.frame(requests), TRANSFERS.frame(transfers), CIRCUITS.frame([]))
    return gather(
        plan, datapath="netdev", frames=frames, records=records, errors=[], controller_events=list(events),
        links=[], probe=None, excess_s=0.002, observed=observed or Observed(), faults=[],
        t0_s=100.0, clock_readings=clock_readings,
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
    assert nearest_rank([float(number) for number in range(1, samples + 1)], 0.95) == expected
