"""Gateway, prefill and decode agents as real processes on loopback, with a controller that decides by rote."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents_stand_in import AgentsUnderTest, StandInController, a_request, loopback_config

from workloads.prefill import TIMINGS
from workloads.request import Request

Launch = Callable[..., tuple[AgentsUnderTest, StandInController]]

pytestmark = pytest.mark.timed  # agents run in real time, and wait for nobody for ever


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a controller and the agents, and wait until all are ready."""
    opened: list[Any] = []

    def start(requests: list[Request], **options: Any) -> tuple[AgentsUnderTest, StandInController]:
        decodes = [f"d{i}" for i in range(options.get("decodes", 1))]
        circuits = options.get("fabric_kind") == "ocs"
        controller = StandInController(decodes, transfer=options.get("transfer", "pull"), circuits=circuits)
        opened.append(controller)
        agents = AgentsUnderTest(loopback_config(tmp_path, requests, controller.port, **options))
        opened.append(agents)
        agents.wait_for("ready", 1 + options.get("prefills", 1) + len(decodes))
        return agents, controller

    yield start
    for each in reversed(opened):
        each.close()


def run(agents: AgentsUnderTest) -> dict[str, dict[str, Any]]:
    """Start, wait for the gateway's end, stop the others; its records by id."""
    agents.start()
    agents.wait_for("exit", 1)
    assert agents.finish() == 0
    return {record["id"]: record for record in agents.records("request")}


def duration_s(request: Request) -> float:
    return TIMINGS["h100-tp4"].duration_s(request.new_tokens, request.cached_tokens)


FABRICS = [
    ("eps", "pull"),
    ("eps", "layerwise"),
    ("ocs", "pull"),
    ("ocs", "layerwise"),
    ("none", "pull"),
    ("none", "layerwise"),
]


@pytest.mark.parametrize(("kind", "transfer"), FABRICS)
def test_every_request_completes_with_all_its_bytes_on_every_rank(launch: Launch, kind: str, transfer: str) -> None:
    requests = [a_request(i, 0.05 * i, new_tokens=300) for i in range(6)] + [a_request(6, 0.1, cached_tokens=0)]
    agents, controller = launch(requests, prefills=2, decodes=2, ranks=2, fabric_kind=kind, transfer=transfer)
    records = run(agents)
    assert agents.of("error") == []
    assert {record["status"] for record in records.values()} == {"completed"}
    transfers = {(record["id"], record["rank"]): record for record in agents.records("transfer")}
    assert len(transfers) == 14
    for request in requests:
        for rank in range(2):
            assert transfers[request.id, rank]["bytes"] == 81_920 * request.context_tokens
            if kind != "none":
                # Each end of a part is rounded to a whole emulated byte.
                assert transfers[request.id, rank]["emulated_bytes"] == pytest.approx(
                    8.192 * request.context_tokens, abs=1
                )
    done = {(request_id, body["part"]) for request_id, body in controller.events("transfer-done")}
    parts = {"pull": {"all"}, "layerwise": {"head", "tail"}}[transfer]
    expected = {(request.id, part) for request in requests for part in parts}
    assert done == expected - {("r6", "head")}
    assert len(controller.events("transfer-done")) == len(done)
    assert not any(body["failed"] for _, body in controller.events("transfer-done"))


def test_times_of_a_request_are_in_order_and_none_is_early(launch: Launch) -> None:
    requests = [a_request(i, 0.03 * i) for i in range(5)]
    agents, controller = launch(requests)
    records = run(agents)
    prefills = {record["id"]: record for record in agents.records("prefill")}
    transfers = {record["id"]: record for record in agents.records("transfer")}
    for request in requests:
        record, prefill, transfer = records[request.id], prefills[request.id], transfers[request.id]
        times = [
            request.arrival_s,
            record["sent_s"],
            prefill["received_s"],
            prefill["start_s"],
            prefill["start_actual_s"],
            prefill["end_actual_s"],
            transfer["first_byte_s"],
            transfer["last_byte_s"],
            record["first_token_s"],
        ]
        assert times == sorted(times)
        assert prefill["end_s"] - prefill["start_s"] == pytest.approx(duration_s(request))
    events = [name for name, request_id, _ in controller.log if request_id == "r0"]
    assert events == ["admitted", "prefill-started", "last-chunk-started", "transfer-done"]


def test_prefills_of_one_instance_queue_up_and_two_instances_share_a_burst(launch: Launch) -> None:
    requests = [a_request(i, 0.01, new_tokens=500) for i in range(4)]
    agents, _ = launch(requests, prefills=2)
    run(agents)
    prefills = agents.records("prefill")
    by_instance = {name: sorted(p["start_s"] for p in prefills if p["prefill"] == name) for name in ("p0", "p1")}
    for starts in by_instance.values():
        assert len(starts) == 2
        assert starts[1] - starts[0] == pytest.approx(duration_s(requests[0]))


def test_layerwise_head_moves_while_the_prefill_runs_and_pull_waits_for_its_end(launch: Launch) -> None:
    request = a_request(0, 0.05, new_tokens=2000, cached_tokens=20_000)
    for transfer, before_end in (("layerwise", True), ("pull", False)):
        agents, _ = launch([request], transfer=transfer, base=2 if before_end else 3)
        run(agents)
        (moved,), (prefill,) = agents.records("transfer"), agents.records("prefill")
        assert (moved["first_byte_s"] < prefill["end_s"] - duration_s(request) / 2) is before_end
        assert moved["last_byte_s"] >= prefill["end_s"]


def test_a_prefix_that_does_not_migrate_stays(launch: Launch) -> None:
    agents, _ = launch([a_request(0, 0.02, migrates=False)], transfer="layerwise", fabric_kind="ocs")
    run(agents)
    (moved,), (prefill,) = agents.records("transfer"), agents.records("prefill")
    assert (moved["bytes"], prefill["head_moves"]) == (81_920 * 100, False)
    assert [told[0] for told in prefill["told_live"]] == ["tail"]


def test_circuit_connections_are_opened_by_command_and_used(launch: Launch) -> None:
    agents, _ = launch([a_request(i, 0.02 * i) for i in range(3)], ranks=2, fabric_kind="ocs")
    agents.command({"agent": "p0", "type": "connect", "decode": "d0"})
    (answer,) = agents.wait_for("connected", 1)
    assert (answer["agent"], answer["decode"], answer["ok"], answer["error"]) == ("p0", "d0", True, None)
    run(agents)
    ports = {(record["rank"], record["source_port"]) for record in agents.records("sender")}
    assert len(ports) == 2


def test_a_connect_that_nobody_answers_is_reported(launch: Launch) -> None:
    agents, _ = launch([], fabric_kind="ocs")
    agents.command({"agent": "p0", "type": "connect", "decode": "d9"})
    (answer,) = agents.wait_for("connected", 1)
    assert not answer["ok"]
    assert "'d9' is no decode instance; known: p0, d0" in answer["error"]


def test_a_transfer_leaves_from_a_source_port_of_the_uplink_it_hashes_to(launch: Launch) -> None:
    from workloads.flow_hash import hashed_uplink

    pools = [[20_000 + i for i in range(8)], [20_100 + i for i in range(8)]]
    requests = [a_request(i, 0.02 * i) for i in range(10)]
    agents, _ = launch(requests, ecmp_ports={"p0": {"d0": [pools]}}, ecmp_seed=7)
    run(agents)
    senders = {record["id"]: record for record in agents.records("sender")}
    used = [senders[request.id]["source_port"] for request in requests]
    for request, port in zip(requests, used, strict=True):
        uplink = hashed_uplink(7, (request.id, "0"), 2)
        assert senders[request.id]["uplink"] == uplink
        assert port in pools[uplink]
    assert len(set(used)) == len(used)
    assert {sender["uplink"] for sender in senders.values()} == {0, 1}


@pytest.mark.parametrize("event", ["admitted", "prefill-started", "last-chunk-started"])
def test_an_event_the_controller_refuses_fails_its_request_and_no_other(launch: Launch, event: str) -> None:
    agents, controller = launch([a_request(i, 0.05 * i) for i in range(3)])
    controller.refuse[event, "r1"] = 409
    records = run(agents)
    assert [records[f"r{i}"]["status"] for i in range(3)] == ["completed", "failed", "completed"]
    assert f"POST /v1/requests/r1/{event}: 409: refused by rote" in records["r1"]["reason"]
    assert [error["where"] for error in agents.of("error")] == ["request r1"]
    assert ("r1", True) in [(request_id, body["failed"]) for request_id, body in controller.events("transfer-done")]


def test_a_connection_the_controller_drops_fails_the_event_and_the_next_one_connects_anew(launch: Launch) -> None:
    agents, controller = launch([a_request(i, 0.1 * i) for i in range(2)])
    controller.silent.add(("prefill-started", "r0"))
    records = run(agents)
    assert [records["r0"]["status"], records["r1"]["status"]] == ["failed", "completed"]


def test_a_controller_that_is_gone_fails_every_request_with_the_reason_and_nothing_hangs(launch: Launch) -> None:
    agents, controller = launch([a_request(i, 0.3 + 0.05 * i) for i in range(2)], fabric_kind="ocs")
    agents.start()
    controller.close()
    agents.wait_for("exit", 1)
    assert {record["status"] for record in agents.records("request")} <= {"failed", "unfinished"}
    assert agents.finish() == 0


def test_a_lost_grants_stream_fails_what_waits_for_a_grant_and_is_opened_again(launch: Launch) -> None:
    long_prefill = a_request(0, 0.02, new_tokens=12_000)
    agents, controller = launch([long_prefill, a_request(1, 1.2)], fabric_kind="ocs", transfer="layerwise")
    agents.start()
    agents.wait_for("progress", 2)
    controller.cut_streams()
    agents.wait_for("exit", 1)
    assert agents.finish() == 0
    records = {record["id"]: record for record in agents.records("request")}
    assert records["r0"]["status"] == "failed"
    assert "grant may be lost" in records["r0"]["reason"]
    assert records["r1"]["status"] == "completed"
    assert controller.streams_opened == 2


def test_what_is_outstanding_after_the_drain_is_unfinished(launch: Launch) -> None:
    agents, _ = launch([a_request(0, 0.02, new_tokens=40_000)], drain_s=0.3)
    records = run(agents)
    assert records["r0"]["status"] == "unfinished"
    assert records["r0"]["first_token_s"] is None
    (prefill,) = agents.records("prefill")
    assert prefill["start_s"] is not None
    assert prefill["end_actual_s"] is None


def test_time_dilation_stretches_the_wall_clock_and_not_the_records(launch: Launch) -> None:
    request = a_request(0, 0.1, new_tokens=200)
    scale = {"rate_scale": 1e-4, "time_dilation": 4}
    agents, _ = launch([request], run_clock={"time_dilation": 4}, scale=scale)
    records = run(agents)
    (prefill,) = agents.records("prefill")
    assert records["r0"]["sent_s"] == pytest.approx(0.1, abs=0.03)
    assert prefill["end_actual_s"] - prefill["start_actual_s"] == pytest.approx(duration_s(request), abs=0.03)


def test_a_controller_that_decides_nothing_before_the_kv_is_ready_is_told_when_it_is(launch: Launch) -> None:
    requests = [a_request(i, 0.4 * i) for i in range(3)]
    agents, controller = launch(requests, fabric_kind="ocs", transfer="pull")
    controller.first_last_chunk = "undecided"
    records = run(agents)
    assert {record["status"] for record in records.values()} == {"completed"}
    assert agents.of("error") == []
    prefills = {record["id"]: record for record in agents.records("prefill")}
    for request in requests:
        told = [body for request_id, body in controller.events("last-chunk-started") if request_id == request.id]
        assert len(told) == 2
        assert told[1]["predicted_end_s"] == pytest.approx(prefills[request.id]["end_s"])
        assert told[1]["at_s"] >= prefills[request.id]["end_s"]


@pytest.mark.parametrize("transfer", ["pull", "layerwise"])
@pytest.mark.parametrize(("factor", "times"), [(1.3, 2), (1.0, 1), (0.7, 1)])
def test_a_prefill_faster_than_predicted_says_so_when_its_kv_should_be_moving(
    launch: Launch, transfer: str, factor: float, times: int
) -> None:
    request = dataclasses.replace(a_request(0, 0.05), prediction_factor=factor)
    agents, controller = launch([request], fabric_kind="ocs", transfer=transfer)
    controller.first_last_chunk = "gated" if times == 2 else ""
    assert run(agents)["r0"]["status"] == "completed"
    (prefill,) = agents.records("prefill")
    told = [body for _, body in controller.events("last-chunk-started")]
    assert len(told) == times
    if times == 2:
        assert told[1]["predicted_end_s"] == pytest.approx(prefill["end_s"])
        # a pull has nothing to send before the end; a layer-wise tail has to start a little earlier to end with it
        early_s = told[1]["at_s"] - prefill["end_s"]
        assert early_s >= 0 if transfer == "pull" else early_s >= -(prefill["end_s"] - prefill["start_s"])


def test_a_decode_named_at_admission_waits_for_the_prefill_to_start(launch: Launch) -> None:
    requests = [a_request(i, 0.05, new_tokens=500) for i in range(2)]
    agents, controller = launch(requests, fabric_kind="ocs", transfer="pull")
    controller.decides_at_admission = True
    records = run(agents)
    assert {record["status"] for record in records.values()} == {"completed"}
    assert agents.of("error") == []
