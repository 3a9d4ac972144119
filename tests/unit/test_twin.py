"""The twin against closed forms: the worked timelines, and what must hold of every fabric."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from twin_cases import EPS, OCS, R, experiment, ttft_ms, turn, twin

from emulation.plan.fabric_plan import DRAIN_S as EMULATION_DRAIN_S
from experiments.schema.spec import load
from simulation.constants import Constants
from simulation.twin import DRAIN_S, Twin
from workloads.flow_hash import hashed_uplink

T_MS, LAYER_MS, ALL_MS = 190.8682, 0.025031, 121.4236
STANDS = {"p0": "d0"}
SPEED = Path(__file__).resolve().parents[2] / "experiments" / "twin-speed.yaml"


def test_the_ceiling_is_the_prefill_itself(tmp_path):
    for transfer in ("pull", "layerwise"):
        assert ttft_ms(twin(experiment(tmp_path, {"name": "c", "kind": "none"}, transfer=transfer), turn("r1"))) == [
            190.868
        ]


@pytest.mark.parametrize(
    ("transfer", "stand", "expected"),
    [
        ("layerwise", STANDS, 190.893),
        ("pull", STANDS, 312.292),
        ("layerwise", {}, 190.893),  # tau is hidden by the prefill
        ("pull", {}, 312.292),
    ],
)
def test_v1_v2_one_turn_over_circuits(tmp_path, transfer, stand, expected):
    assert ttft_ms(twin(experiment(tmp_path, OCS, transfer=transfer), turn("r1"), stand=stand)) == [expected]


def test_a_prefill_shorter_than_tau_does_not_hide_it(tmp_path):
    # 60 new tokens: T = 18.6 ms; in pull the circuit is live at 25 ms, and the bytes follow
    short = turn("r1", new=60, cached=60_000)
    case = experiment(tmp_path, OCS)
    live_ms = max(25.0, 1e3 * case.timing.duration_s(60, 60_000))
    assert live_ms == 25.0
    assert ttft_ms(twin(case, short)) == [round(live_ms + 1e3 * case.kv.rank_bytes(60_060) / R, 3)]


def test_a_circuit_that_stands_before_the_clock_needs_no_tau(tmp_path):
    case = experiment(tmp_path, OCS)
    expected_ms = 1e3 * (case.timing.duration_s(60, 60_000) + case.kv.rank_bytes(60_060) / R)
    assert ttft_ms(twin(case, turn("r1", new=60, cached=60_000), stand=STANDS)) == [round(expected_ms, 3)]


def test_a_prefill_instance_is_free_again_when_its_first_token_is_out(tmp_path):
    case = experiment(tmp_path, {"name": "c", "kind": "none"}, prefill_instances=2)
    result = twin(case, turn("long"), turn("short", 1.0, new=60, cached=0), turn("next", 100.0))
    assert result.frames.requests["prefill"].tolist() == ["p0", "p1", "p1"]


@pytest.mark.parametrize(("transfer", "expected"), [("layerwise", 190.893), ("pull", 337.292)])
def test_without_reservation_pull_pays_tau_after_the_prefill(tmp_path, transfer, expected):
    fabric = OCS | {"commit": "none", "decode_choice": "least-loaded"}
    assert ttft_ms(twin(experiment(tmp_path, fabric, transfer=transfer), turn("r1"))) == [expected]


@pytest.mark.parametrize(("transfer", "second"), [("layerwise", 307.317), ("pull", 428.716)])
def test_v3_two_turns_to_one_decode_instance(tmp_path, transfer, second):
    case = experiment(tmp_path, OCS, transfer=transfer, prefill_instances=2)
    result = twin(case, turn("r1"), turn("r2", 30.0))
    assert ttft_ms(result)[1] == second
    assert result.frames.requests["prefill"].tolist() == ["p0", "p1"]


def test_v3_parts_say_what_the_second_turn_waited_for(tmp_path):
    row = twin(experiment(tmp_path, OCS, prefill_instances=2), turn("r1"), turn("r2", 30.0)).frames.requests.iloc[1]
    assert round(1e3 * row["circuit_wait_s"], 3) == 116.424
    assert round(1e3 * row["transfer_exposed_s"], 3) == 121.424


def test_v4_a_prefill_that_runs_over_keeps_its_circuit(tmp_path):
    late = turn("r1", factor=1 / 1.1)
    for transfer, expected in (("layerwise", 209.980), ("pull", 331.379)):
        assert ttft_ms(twin(experiment(tmp_path, OCS, transfer=transfer, overrun=1.1), late)) == [expected]


def test_v4c_windows_that_are_not_dark_are_pushed(tmp_path):
    case = experiment(tmp_path, OCS, transfer="layerwise", overrun=1.1, prefill_instances=2)
    assert ttft_ms(twin(case, turn("r1", factor=1 / 1.1), turn("r2", 30.0, factor=1 / 1.1))) == [209.980, 326.404]


def test_v5_a_prefill_that_ends_early_starts_its_tail_early(tmp_path):
    case = experiment(tmp_path, OCS, transfer="layerwise", overrun=0.9)
    assert ttft_ms(twin(case, turn("r1", factor=1 / 0.9))) == [171.806]


@pytest.mark.parametrize(
    ("sharing", "transfer", "expected"),
    [(2, "layerwise", 242.847), (2, "pull", 433.716), (3, "layerwise", 364.271), (3, "pull", 555.139)],
)
def test_packet_fabric_at_a_half_and_a_third_of_its_rate(tmp_path, sharing, transfer, expected):
    """As many flows on one uplink, alike: 22.5 and 15 GB/s each."""
    case = experiment(tmp_path, EPS, transfer=transfer, prefill_instances=sharing, decode_instances=sharing)
    assert ttft_ms(twin(case, *(turn(f"r{number}") for number in range(sharing)))) == [expected] * sharing


@pytest.mark.parametrize("gigabytes_per_s", [45.0, 28.0, 10.0])
def test_a_layerwise_turn_ends_with_its_last_layer_or_with_its_last_byte(tmp_path, gigabytes_per_s):
    case = experiment(tmp_path, EPS, transfer="layerwise")
    fraction = gigabytes_per_s / 45.0
    case = case.model_copy(update={"cluster": case.cluster.model_copy(update={"link_gbps": 400 * fraction})})
    expected = max(T_MS + LAYER_MS / fraction, ALL_MS / fraction)
    assert ttft_ms(twin(case, turn("r1"))) == pytest.approx([expected], abs=2e-3)


def test_pull_over_an_idle_link_is_the_prefill_and_then_the_bytes(tmp_path):
    assert ttft_ms(twin(experiment(tmp_path, EPS), turn("r1"))) == [312.292]


def test_adaptive_routing_lets_flows_pass_each_other(tmp_path):
    """Two flows on two pooled uplinks have 45 GB/s each, whatever a hash would have said; on one they share."""
    case = experiment(tmp_path, EPS | {"uplinks": 2}, prefill_instances=2, decode_instances=2)
    adaptive = case.fabrics[0].model_copy(update={"routing": "adaptive"})
    case = case.model_copy(update={"fabrics": [adaptive]})
    assert ttft_ms(twin(case, turn("r0"), turn("r1"))) == [312.292, 312.292]


@pytest.mark.parametrize("routing", ["adaptive", "srpt"])
def test_four_ranks_over_a_pool_of_two_uplinks_take_twice_as_long(tmp_path, routing):
    case = experiment(tmp_path, EPS | {"uplinks": 2, "routing": routing}, gpus_per_instance=4)
    result = twin(case, turn("r1"))
    assert ttft_ms(result) == [433.716]
    assert len(result.frames.transfers) == 4
    assert result.links.groupby("role")["goodput_bps"].max().to_dict() == {
        "gpu-nic": 360e9,
        "leaf-to-gpu": 360e9,
        "uplink": 720e9,
        "downlink": 720e9,
    }


def test_uplinks_are_those_of_the_agents_hash_and_recorded_ones_go_first(tmp_path):
    case = experiment(tmp_path, EPS | {"uplinks": 4, "ecmp_seed": 7}, gpus_per_instance=2)
    turns = [turn(f"r{number}", 1_000.0 * number) for number in range(8)]
    transfers = twin(case, *turns).frames.transfers
    assert transfers["uplink"].tolist() == [
        hashed_uplink(7, (request, str(rank)), 4)
        for request, rank in zip(transfers["request"], transfers["rank"], strict=True)
    ]
    recorded = {(one.id, rank): 3 - rank for one in turns for rank in (0, 1)}
    assert twin(case, *turns, uplinks=recorded).frames.transfers["uplink"].tolist() == [3, 2] * 8


def test_a_transfer_ends_with_its_slowest_rank(tmp_path):
    """r0 and r1 meet on rank 0's uplink only; what each waits for is rank 0."""
    case = experiment(tmp_path, EPS | {"uplinks": 4}, prefill_instances=2, decode_instances=2, gpus_per_instance=2)
    uplinks = {("r0", 0): 0, ("r1", 0): 0, ("r0", 1): 1, ("r1", 1): 2}
    result = twin(case, turn("r0"), turn("r1"), uplinks=uplinks)
    assert ttft_ms(result) == [433.716, 433.716]
    ends_ms = [round(1e3 * value, 3) for value in result.frames.transfers["last_byte_s"]]
    assert ends_ms == [433.716, 312.292] * 2


def test_transfers_of_a_pair_that_keeps_its_connection_follow_each_other(tmp_path):
    first, second = turn("r1", new=100), turn("r2", new=100)
    shared = twin(experiment(tmp_path, EPS), first, second)
    kept = twin(experiment(tmp_path, EPS | {"ecmp_unit": "pair"}), first, second)
    case = experiment(tmp_path, EPS)
    t_ms, b_ms = 1e3 * case.timing.duration_s(100, 65_600), 1e3 * case.kv.rank_bytes(65_700) / R
    assert ttft_ms(kept) == pytest.approx([t_ms + b_ms, t_ms + 2 * b_ms], abs=2e-3)
    # side by side the first is slowed down from the second's start on, and both end by the same moment
    assert ttft_ms(shared) == pytest.approx([t_ms + b_ms + (b_ms - t_ms), t_ms + 2 * b_ms], abs=2e-3)


@pytest.mark.parametrize("routing", ["ecmp", "adaptive", "srpt"])
def test_every_byte_that_was_to_move_crossed_each_tier_once(tmp_path, routing):
    fabric = EPS | {"uplinks": 3, "routing": routing}
    case = experiment(tmp_path, fabric, prefill_instances=3, decode_instances=3, gpus_per_instance=2)
    result = twin(case, *(turn(f"r{number}", 40.0 * number) for number in range(9)))
    whole = result.frames.transfers["bytes"].sum()
    assert whole == 9 * 2 * case.kv.rank_bytes(66_700)
    for role in ("gpu-nic", "uplink", "downlink", "leaf-to-gpu"):
        assert result.links.loc[result.links["role"] == role, "tx_bytes"].sum() == pytest.approx(whole, abs=20)


def test_constants_add_up(tmp_path):
    constants = Constants(request_s=0.001, control_s=0.002, return_s=0.003)
    quick = ttft_ms(twin(experiment(tmp_path, EPS), turn("r1"), constants=constants))
    assert quick == [round(312.292 + 1 + 3, 3)]  # control is hidden by the prefill
    told = dataclasses.replace(constants, live_told_s=0.004, switch_excess_s=0.005)
    assert ttft_ms(twin(experiment(tmp_path, OCS), turn("r1"), constants=told)) == [round(316.292 + 4 + 5, 3)]


def test_an_excess_the_scheduler_knows_of_is_hidden(tmp_path):
    known = Constants(calibrated_excess_s=0.005, switch_excess_s=0.005)
    assert ttft_ms(twin(experiment(tmp_path, OCS), turn("r1"), constants=known)) == [312.292]


def test_what_is_under_way_when_the_drain_ends_is_unfinished(tmp_path):
    # T = 0.2 s for each of 400 turns on one instance: 76 s of work, and the last arrives at once
    result = twin(experiment(tmp_path, EPS), *(turn(f"r{number}") for number in range(400)))
    status = result.frames.requests["status"].value_counts().to_dict()
    assert status["completed"] == pytest.approx(45_000 / T_MS, abs=2)
    assert status["unfinished"] == 400 - status["completed"]
    assert result.frames.unaccounted == 0


def test_the_drain_is_the_emulations():
    assert DRAIN_S == EMULATION_DRAIN_S


def test_a_long_queue_is_not_looked_at_again_for_every_arrival_behind_it(tmp_path):
    # admission, start, last chunk and end of a prefill and its first token are moments; the queue's length is none
    short = [turn(f"r{number}", new=60, cached=0) for number in range(200)]
    assert twin(experiment(tmp_path, {"name": "c", "kind": "none"}), *short).actions <= 8 * len(short)


def test_a_rank_that_waits_for_its_connection_when_the_run_ends_has_sent_nothing(tmp_path):
    """r0 and r1 share rank 0's uplink, so when the drain ends r2 has the connection of rank 1 and not of rank 0."""
    cluster = {"prefill_instances": 2, "decode_instances": 2, "gpus_per_instance": 2}
    case = experiment(tmp_path, EPS | {"ecmp_unit": "pair", "uplinks": 3}, **cluster)
    slow = case.model_copy(update={"cluster": case.cluster.model_copy(update={"link_gbps": 2.9})})  # 30 s a rank alone
    uplinks = {("r0", 0): 0, ("r1", 0): 0, ("r0", 1): 1, ("r1", 1): 2, ("r2", 0): 0, ("r2", 1): 1}
    turns = [turn(f"r{number}", new=100, cached=120_000) for number in range(3)]
    transfers = twin(slow, *turns, uplinks=uplinks).frames.transfers
    sent = list(zip(transfers["request"], transfers["rank"], strict=True))
    assert sent == [("r0", 0), ("r0", 1), ("r1", 0), ("r1", 1), ("r2", 1)]


@pytest.mark.parametrize("profile", ["tracelab", "agentx"])
@pytest.mark.parametrize("gpus", [128, 256])
def test_nodes_of_eight_gpus_at_the_papers_sizes(profile, gpus):
    """Two instances of four ranks a node: a circuit joins the same half of a prefill's and a decode's node."""
    halves = [f"cluster.{role}_instances={gpus // 8}" for role in ("prefill", "decode")]
    case = load(SPEED, [*halves, "workload.window_s=2", "workload.warmup_s=1", f"workload.tenants.0.profile={profile}"])
    requests = case.requests(1)
    # with few requests each decode may serve one prefill only, so that all pairs would agree by chance
    assert case.shape.reachable["p1"] == [f"d{number}" for number in range(1, gpus // 8, 2)]
    means = {}
    for fabric in case.fabrics:
        result = Twin(case, fabric, 1, requests).run()
        assert set(result.frames.requests["status"]) == {"completed"}
        if fabric.kind != "none":
            assert len(result.frames.transfers) == 4 * len(requests)
            ends = result.frames.transfers[["prefill", "decode"]].map(lambda name: int(name[1:]) % 2)
            assert fabric.kind == "eps" or (ends["prefill"] == ends["decode"]).all()
        means[fabric.name] = result.frames.requests["ttft_s"].mean()
    assert means["ceiling"] <= means["ocs-25ms"]
    assert means["ceiling"] <= means["eps-2to1-adaptive"] <= means["eps-2to1-ecmp"]
