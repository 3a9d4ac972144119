"""What a fabric's parts are told, and the rounds in which connections are opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulation.plan.fabric_plan import FabricPlan, rounds
from experiments.schema.spec import load

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
DEMO, SLICE = EXPERIMENTS / "demo.yaml", EXPERIMENTS / "paper" / "slice.yaml"


def plan(index: int, *overrides: str) -> FabricPlan:
    experiment = load(DEMO, overrides)
    return FabricPlan(experiment, experiment.fabrics[index], seed=1, requests=())


@pytest.mark.parametrize(("prefills", "decodes", "at_most"), [(4, 3, 4), (4, 4, 4), (1, 3, 3), (3, 1, 3), (16, 16, 16)])
def test_rounds_hold_every_pair_once_and_no_instance_twice(prefills, decodes, at_most):
    reachable = {f"p{i}": [f"d{j}" for j in range(decodes)] for i in range(prefills)}
    found = rounds(reachable)
    assert sorted(pair for one in found for pair in one.items()) == sorted(
        (prefill, decode) for prefill, peers in reachable.items() for decode in peers
    )
    assert all(len(set(one.values())) == len(one) for one in found)
    assert len(found) <= at_most


def test_the_demo_emulates_36_megabit_per_second_of_goodput():
    assert plan(0).kv_goodput_bps == pytest.approx(36e6)


def test_time_dilation_slows_the_links():
    assert plan(0, "scale.time_dilation=4").kv_goodput_bps == pytest.approx(9e6)


@pytest.mark.parametrize(("dilation", "rto_min_ms"), [(1, 40), (2, 80), (4, 160)])
def test_a_timeout_is_longer_than_a_queue_that_drains_slowly(dilation, rto_min_ms):
    slowed = plan(0, f"scale.time_dilation={dilation}")
    routes = slowed.cluster().nodeInfo("p0")["routes"]
    assert {route.rto_min_ms for route in routes if route.prefix.startswith("10.64.")} == {rto_min_ms}


def test_a_faster_link_keeps_the_shortest_timeout():
    assert plan(0, "scale.rate_scale=1e-3").rto_min_ms == 40


SRPT = "fabrics=[{name: s, kind: eps, oversubscription: 2, routing: srpt}]"


@pytest.mark.parametrize(
    ("overrides", "rto_min_ms", "follows", "windows"),
    [
        ((), 40, False, 4),
        (("scale.time_dilation=4",), 160, True, 4),
        ((SRPT,), 5000, False, 8),
        ((SRPT, "scale.time_dilation=4"), 5000, False, 8),
    ],
)
def test_queue_window_and_timeout_are_those_of_the_wiring(overrides, rto_min_ms, follows, windows):
    told = plan(0, *overrides)
    cluster = told.cluster()
    (kv_route,) = (route for route in cluster.nodeInfo("p0")["routes"] if route.prefix.startswith("10.64."))
    assert kv_route.rto_min_ms == told.rto_min_ms == rto_min_ms
    assert kv_route.window_bytes == told.window_bytes == 64_000
    assert told.rto_follows_window == follows
    assert told.queue_bytes == pytest.approx(64_000 * windows * 1514 / 1448, rel=0.01)


@pytest.mark.parametrize(
    ("overrides", "window_bytes"),
    [
        (("scale.rate_scale=1e-3",), 640_000),
        # eight links of 10 us there and back: 80 us of 4.5 MB/s
        (("cluster.link_delay_us=10",), 64_360),
        # dilated four times, the delay is four times as long and the rate a quarter
        (("cluster.link_delay_us=10", "scale.time_dilation=4"), 64_360),
    ],
)
def test_a_window_keeps_a_link_busy_at_any_rate_and_over_any_delay(overrides, window_bytes):
    told = plan(0, *overrides)
    assert told.window_bytes == window_bytes
    for kind in (0, 1):
        routes = plan(kind, *overrides).cluster().nodeInfo("d0")["routes"]
        assert {route.window_bytes for route in routes if route.prefix.startswith("10.64.")} == {window_bytes}


@pytest.mark.parametrize(("dilation", "daemons"), [(1, 2), (2, 1), (4, 1)])
def test_circuits_that_are_too_much_for_one_switch_get_two(dilation, daemons):
    experiment = load(SLICE, [f"scale.time_dilation={dilation}"])
    assert FabricPlan(experiment, experiment.fabrics[-1], seed=1, requests=()).switch_daemons == daemons


def test_a_controller_of_circuits_is_told_the_planes_and_of_packets_none():
    circuits = plan(1)
    told = circuits.controller(circuits.cluster(), unixctls={"plane0": "/x.ctl"}, log=Path("/log"))
    assert told["fabric"]["reconfiguration_s"] == 0.025
    assert set(told["planes"][0]["ports"]) == {"p0", "p1", "p2", "p3", "d0", "d1", "d2"}
    packets = plan(0)
    told = packets.controller(packets.cluster(), unixctls={}, log=Path("/log"))
    assert told["planes"] == []
    assert told["fabric"]["decode_choice"] == "least-loaded"


def test_tenants_reach_their_own_decodes_at_their_own_gpu_positions_only():
    two = plan(
        1,
        "cluster.prefill_instances=4",
        "cluster.decode_instances=4",
        "cluster.gpus_per_node=2",
        "workload.tenants=[{name: a, source: synthetic-agentic, share: 0.5, load: 0.5},"
        " {name: b, source: synthetic-agentic, share: 0.5, load: 0.5}]",
    )
    assert two.experiment.reachable() == {"p0": ["d0"], "p1": ["d1"], "p2": ["d2"], "p3": ["d3"]}
