"""Merging agents' and controller's records: TTFT parts from timestamps, every offered request once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.metrics.merge import circuits_frame, merge
from results.metrics.ttft_parts import ttft_parts
from results.records.schema import TTFT_PARTS

OFFERED = {"id": "a-0", "tenant": "a", "session": "s", "arrival_s": 10.0, "new_tokens": 1100, "cached_tokens": 65600}


def gateway(**changes):
    record = {"type": "record", "of": "request", "id": "a-0", "tenant": "a", "arrival_s": 10.0, "sent_s": 10.001}
    return record | {"prefill": "p0", "first_token_s": 10.330, "status": "completed", "reason": ""} | changes


def prefill(**changes):
    record = {"type": "record", "of": "prefill", "id": "a-0", "prefill": "p0", "received_s": 10.002}
    record |= {"start_s": 10.004, "start_actual_s": 10.005, "end_s": 10.195, "end_actual_s": 10.196}
    record |= {"chunks": 1, "decode": "d1", "head_moves": True, "decided_s": 10.1, "told_live": []}
    return record | changes


def transfer(**changes):
    record = {"type": "record", "of": "transfer", "id": "a-0", "decode": "d1", "rank": 0, "bytes": 546}
    return record | {"first_byte_s": 10.2, "last_byte_s": 10.326, "connection": "10.1.0.2:40001"} | changes


def row(kind, *records, **options):
    return merge(records, [], [OFFERED], kind=kind, **options).requests.iloc[0]


def parts(merged):
    return {part: pytest.approx(merged[part], abs=1e-9) for part in TTFT_PARTS}


def test_over_packets_the_time_after_the_prefill_is_exposed_transfer():
    merged = row("eps", gateway(), prefill(), transfer())
    assert parts(merged) == {
        "queue_s": 0.003,
        "prefill_s": 0.191,
        "circuit_wait_s": 0.0,
        "transfer_exposed_s": 0.130,
        "control_s": 0.002,
        "return_s": 0.004,
    }
    assert merged["ttft_s"] == pytest.approx(0.330)


def test_over_packets_the_time_until_the_decode_is_known_is_control():
    merged = row("eps", gateway(), prefill(decided_s=10.206), transfer())
    assert merged["control_s"] == pytest.approx(0.002 + 0.010)
    assert merged["transfer_exposed_s"] == pytest.approx(0.120)


def test_over_circuits_dark_time_waits_an_untold_circuit_is_control_and_the_rest_is_transfer():
    # prefill ends 10.196; live at 10.221 after a dark time; the sender knows at 10.222
    merged = row("ocs", gateway(), prefill(told_live=[["all", 10.221, 10.222, 10.326]]), transfer())
    assert merged["circuit_wait_s"] == pytest.approx(0.025)
    assert merged["control_s"] == pytest.approx(0.002 + 0.001)
    assert merged["transfer_exposed_s"] == pytest.approx(0.104)


def test_time_between_two_live_windows_waits_for_a_circuit():
    told = [["head", 10.1, 10.1, 10.216], ["tail", 10.246, 10.247, 10.326]]
    merged = row("ocs", gateway(), prefill(told_live=told), transfer())
    assert merged["circuit_wait_s"] == pytest.approx(0.030)
    assert merged["transfer_exposed_s"] == pytest.approx(0.020 + 0.079)
    assert merged["control_s"] == pytest.approx(0.002 + 0.001)


def test_nothing_before_the_prefill_ends_is_exposed():
    told = [["head", 10.005, 10.006, 10.125], ["tail", 10.19, 10.19, 10.196]]
    merged = row("ocs", gateway(first_token_s=10.2), prefill(told_live=told), transfer(last_byte_s=10.196))
    assert (merged["circuit_wait_s"], merged["transfer_exposed_s"]) == (0.0, 0.0)
    assert merged["control_s"] == pytest.approx(0.002)


def test_the_last_byte_closes_the_last_live_window_whatever_the_sender_says():
    # The sender handed its last byte to the kernel at 10.300; the receiver had it at 10.326, over a live circuit.
    merged = row("ocs", gateway(), prefill(told_live=[["all", 10.196, 10.196, 10.300]]), transfer())
    assert merged["circuit_wait_s"] == pytest.approx(0.0, abs=1e-12)
    assert merged["transfer_exposed_s"] == pytest.approx(0.130)


def test_a_window_that_its_sender_never_finished_lasts_until_the_last_byte():
    merged = row("ocs", gateway(), prefill(told_live=[["all", 10.206, 10.206, None]]), transfer())
    assert merged["circuit_wait_s"] == pytest.approx(0.010)
    assert merged["transfer_exposed_s"] == pytest.approx(0.120)


def test_a_window_told_of_after_the_last_byte_carried_nothing():
    told = [["head", 10.196, 10.196, 10.300], ["tail", 10.327, 10.328, None]]
    merged = row("ocs", gateway(), prefill(told_live=told), transfer())
    assert merged["transfer_exposed_s"] == pytest.approx(0.130)
    assert merged["circuit_wait_s"] == pytest.approx(0.0, abs=1e-12)


def test_a_second_circuit_nobody_knows_of_yet_is_no_control_while_the_first_one_carries():
    told = [["head", 10.196, 10.196, 10.280], ["tail", 10.250, 10.260, 10.326]]
    merged = row("ocs", gateway(), prefill(told_live=told), transfer())
    assert merged["transfer_exposed_s"] == pytest.approx(0.130)
    assert merged["control_s"] == pytest.approx(0.002)


def test_without_a_fabric_kv_arrives_when_the_prefill_ends():
    merged = row("none", gateway(first_token_s=10.2), prefill())
    assert merged["last_byte_s"] == merged["prefill_end_s"] == 10.196
    assert merged["return_s"] == pytest.approx(0.004)
    assert merged["transfer_exposed_s"] == 0.0


def test_a_late_timer_belongs_to_the_parts_and_the_planned_time_stands_in_where_there_is_no_timer():
    assert row("eps", gateway(), prefill(), transfer())["prefill_start_s"] == 10.005
    simulated = prefill(start_actual_s=None, end_actual_s=None)
    assert row("eps", gateway(), simulated, transfer())["prefill_start_s"] == 10.004


def test_kv_that_arrives_before_a_late_prefill_end_makes_no_negative_part():
    merged = row("eps", gateway(first_token_s=10.2), prefill(), transfer(last_byte_s=10.1955))
    assert merged["transfer_exposed_s"] == 0.0
    assert merged["return_s"] == pytest.approx(0.004)


def test_the_slowest_rank_ends_a_transfer():
    records = [gateway(), prefill(), transfer(last_byte_s=10.3), transfer(rank=1, last_byte_s=10.326)]
    assert row("eps", *records, ranks=2)["last_byte_s"] == 10.326


def test_every_offered_request_appears_once_and_the_silent_ones_are_counted():
    offered = [OFFERED, OFFERED | {"id": "a-1"}, OFFERED | {"id": "a-2"}]
    records = [gateway(), prefill(), transfer(), gateway(id="a-1", first_token_s=None, status="failed", reason="reset")]
    frames = merge(records, [], offered, kind="eps")
    assert list(frames.requests["id"]) == ["a-0", "a-1", "a-2"]
    assert list(frames.requests["status"]) == ["completed", "failed", "unfinished"]
    assert list(frames.requests["reason"]) == ["", "reset", "unaccounted for: no record of it from the gateway"]
    assert frames.unaccounted == 1
    assert frames.requests["ttft_s"].isna().tolist() == [False, True, True]


def test_a_request_offered_twice_is_refused():
    with pytest.raises(ValueError, match="offered twice: a-0"):
        merge([], [], [OFFERED, OFFERED], kind="eps")


@pytest.mark.parametrize(
    ("records", "kind", "said"),
    [
        ([gateway(), gateway(), prefill(), transfer()], "eps", "two request records"),
        ([gateway(), prefill()], "eps", "completed, but no record holds its last_byte_s"),
        ([gateway(), prefill(), transfer()], "ocs", "never told of a live one"),
        ([gateway(first_token_s=10.25), prefill(), transfer()], "eps", "times run backwards"),
        ([gateway(first_token_s=None), prefill(), transfer()], "eps", "completed without a first token"),
        ([gateway(status="done"), prefill(), transfer()], "eps", "status 'done'"),
        ([gateway(), prefill(), transfer(), transfer(id="b-9")], "eps", "request b-9: a transfer record"),
    ],
)
def test_records_that_contradict_each_other_are_said_and_not_repaired(records, kind, said):
    frames = merge(records, [], [OFFERED], kind=kind)
    assert len(frames.inconsistencies) == 1
    assert said in frames.inconsistencies[0]


def test_a_completed_request_with_a_rank_missing_has_no_parts():
    frames = merge([gateway(), prefill(), transfer()], [], [OFFERED], kind="eps", ranks=2)
    assert frames.inconsistencies == ["request a-0: completed with 1 of 2 ranks on record"]
    assert frames.requests[list(TTFT_PARTS)].isna().all(axis=None)
    assert frames.requests.loc[0, "ttft_s"] == pytest.approx(0.330)


def test_consistent_records_leave_nothing_to_say():
    frames = merge([gateway(), prefill(), transfer()], [], [OFFERED], kind="eps", ranks=1)
    assert (frames.inconsistencies, frames.unaccounted) == ([], 0)


def test_a_transfer_holds_real_and_emulated_bytes_and_what_its_sender_saw():
    sender = {"type": "record", "of": "sender", "id": "a-0", "rank": 0, "retransmits": 2, "rtos": 1, "uplink": 0}
    merged = merge([gateway(), prefill(), transfer(), sender], [], [OFFERED], kind="eps", rate_scale=1e-4)
    sent = merged.transfers.iloc[0]
    assert (sent["bytes"], sent["emulated_bytes"], sent["prefill"], sent["decode"]) == (5_460_000, 546, "p0", "d1")
    assert (sent["source_port"], sent["uplink"], sent["retransmits"], sent["rtos"]) == (40001, 0, 2, 1)


def test_where_sender_and_receiver_differ_the_receiver_is_believed():
    sender = {
        "type": "record",
        "of": "sender",
        "id": "a-0",
        "rank": 0,
        "bytes": 9,
        "emulated_bytes": 9,
        "source_port": 41000,
    }
    frames = merge([gateway(), prefill(), transfer(emulated_bytes=546), sender], [], [OFFERED], kind="eps")
    assert frames.transfers.loc[0, ["bytes", "emulated_bytes", "source_port"]].tolist() == [546, 546, 40001]
    frames = merge([gateway(), prefill(), transfer(connection=None), sender], [], [OFFERED], kind="eps")
    assert frames.transfers.loc[0, "source_port"] == 41000


def test_a_transfer_that_says_both_sizes_is_taken_at_its_word():
    both = transfer(bytes=5_464_064, emulated_bytes=546)
    assert merge([both], [], [OFFERED], kind="eps", rate_scale=1e-4).transfers.loc[0, "bytes"] == 5_464_064


def window(t_s, state, **changes):
    event = {
        "event": "window",
        "t_s": t_s,
        "window": 7,
        "request": "a-0",
        "part": "all",
        "prefill": "p0",
        "decode": "d1",
    }
    return (
        event
        | {"state": state, "start_s": 0.0, "live_s": 0.025, "end_s": 0.1, "needs_switch": True, "reason": ""}
        | changes
    )


STEPS = {
    "remove": 1e-3,
    "barrier": 2e-3,
    "purge": 3e-3,
    "dark_wait": 25e-3,
    "install": 4e-3,
    "barrier2": 5e-3,
    "purge2": 6e-3,
}


def test_a_window_becomes_one_row_with_its_times_and_the_steps_of_its_switch():
    events = [
        window(-0.1, "booked"),
        window(0.0, "dark"),
        {"event": "switch", "window": 7, "t_s": 0.03, "steps_s": STEPS, "dark_s": 0.03},
        window(0.030, "live", end_s=0.12),
        window(0.115, "released", end_s=0.12, needs_switch=False, reason="transfer done"),
    ]
    frame = circuits_frame(events)
    assert len(frame) == 1
    only = frame.iloc[0]
    assert (only["state"], only["reason"], only["end_s"]) == ("released", "transfer done", 0.12)
    # Dark at run-clock zero is a time like any other.
    assert (only["dark_at_s"], only["live_at_s"], only["released_at_s"]) == (0.0, 0.030, 0.115)
    assert only["needs_switch"]
    assert {step: only[f"{step}_s"] for step in STEPS} == STEPS


def test_a_reused_circuit_is_never_dark():
    only = circuits_frame([window(1.0, "booked", needs_switch=False), window(1.1, "live", needs_switch=False)]).iloc[0]
    assert not only["needs_switch"]
    assert only[["dark_at_s", "released_at_s", "dark_wait_s"]].isna().all()


@pytest.mark.parametrize("state", ["released", "expired", "refused"])
def test_a_window_is_over_however_it_ended(state):
    only = circuits_frame([window(0.0, "dark"), window(0.2, state)]).iloc[0]
    assert (only["state"], only["released_at_s"]) == (state, 0.2)


def test_a_run_without_windows_has_an_empty_table_of_the_right_columns():
    frame = circuits_frame([])
    assert len(frame) == 0
    assert "purge2_s" in frame.columns


# Microseconds, and a few of them, so that windows often touch, nest and coincide.
MOMENTS = st.integers(0, 40)
WINDOWS = st.lists(st.tuples(MOMENTS, MOMENTS, MOMENTS).map(sorted), max_size=4)


@settings(max_examples=400)
@given(
    times=st.lists(MOMENTS, min_size=6, max_size=6).map(sorted),
    windows=WINDOWS,
    kind=st.sampled_from(["eps", "ocs", "none"]),
    decided=st.none() | MOMENTS,
)
def test_the_parts_always_add_up_to_ttft_and_none_is_negative(times, windows, kind, decided):
    if kind == "none":
        times[4] = times[3]
    told_live = [["all", *each] for each in windows]
    split = ttft_parts(*map(float, times), kind=kind, told_live=told_live, decided_s=decided)
    assert set(split) == set(TTFT_PARTS)
    assert sum(split.values()) == pytest.approx(times[5] - times[0], abs=1e-12)
    assert min(split.values()) >= -1e-12
