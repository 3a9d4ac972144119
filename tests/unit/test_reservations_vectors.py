"""The worked timelines: V1 to V6 and V8, to the printed digits, from the pure core, and the baseline without
reservation."""

from __future__ import annotations

import dataclasses

import pytest
from virtual_circuits import Turn, VirtualCircuits

from controllers.commit_rules.no_reservation import NoReservation
from controllers.core.calendar import Ask
from controllers.core.reservations import Reservations
from controllers.core.timetable import Timetable
from controllers.decode_choices.by_network import CircuitAware
from workloads.kv import kv_model
from workloads.prefill import TIMINGS, Chunk

KV = kv_model("llama-3.1-70b", tp=4)
TIMING = TIMINGS["h100-tp4"]
PLAN = TIMING.plan(1_100, 65_600, KV.layers)
R = 45e9


def circuits(
    transfer: str, *, prefills=("p1",), decodes=("d1",), stands=None, commit: type[Reservations] = Reservations
) -> VirtualCircuits:
    core = commit(
        {prefill: decodes for prefill in prefills},
        rate_bytes_per_s=R,
        reconfiguration_s=0.025,
        decode_choice=CircuitAware(),
        transfer=transfer,
    )
    core.stand(stands or {})
    return VirtualCircuits(core, KV, transfer, R)


def turn(request_id: str, prefill: str, start_ms: float = 0.0, factor: float = 1.0) -> Turn:
    """The worked turn; `factor` scales its actual duration, the prediction stays the model's."""
    chunks = tuple(Chunk(c.new_tokens, c.start_s * factor, c.end_s * factor) for c in PLAN.chunks)
    return Turn(request_id, prefill, start_ms / 1e3, dataclasses.replace(PLAN, chunks=chunks), PLAN)


def ttft_ms(run: VirtualCircuits, one: Turn) -> float:
    return round(run.last_byte_ms[one.id] - one.start_s * 1e3, 3)


def test_v1_layerwise_over_a_standing_circuit_hides_the_whole_transfer():
    run, r1 = circuits("layerwise", stands={"p1": "d1"}), turn("r1", "p1")
    run.run([r1])
    assert run.log == [
        (0.0, "r1", "head", "live"),
        (119.421, "r1", "head", "done"),
        (188.891, "r1", "tail", "live"),
        (190.893, "r1", "tail", "done"),
    ]
    assert ttft_ms(run, r1) == 190.893


def test_v1_pull_over_a_standing_circuit_adds_the_whole_transfer():
    run, r1 = circuits("pull", stands={"p1": "d1"}), turn("r1", "p1")
    run.run([r1])
    assert run.log == [(190.868, "r1", "all", "live"), (312.292, "r1", "all", "done")]
    assert ttft_ms(run, r1) == 312.292


def test_v2_layerwise_pays_tau_once_and_hides_it():
    run, r1 = circuits("layerwise"), turn("r1", "p1")
    run.run([r1])
    assert run.log == [
        (0.0, "r1", "head", "dark"),
        (25.0, "r1", "head", "live"),
        (144.421, "r1", "head", "done"),
        (188.891, "r1", "tail", "live"),
        (190.893, "r1", "tail", "done"),
    ]
    assert ttft_ms(run, r1) == 190.893


def test_v2_pull_reconfigures_while_the_prefill_still_runs():
    run, r1 = circuits("pull"), turn("r1", "p1")
    run.run([r1])
    assert run.log == [(165.868, "r1", "all", "dark"), (190.868, "r1", "all", "live"), (312.292, "r1", "all", "done")]
    assert ttft_ms(run, r1) == 312.292


def test_v3_layerwise_the_second_request_does_not_fit_in_the_gap_and_waits_for_the_decode_port():
    run = circuits("layerwise", prefills=("p1", "p2"))
    r1, r2 = turn("r1", "p1"), turn("r2", "p2", 30.0)
    run.run([r1, r2])
    assert [entry for entry in run.log if entry[1] == "r2"] == [
        (190.893, "r2", "head", "dark"),
        (215.893, "r2", "head", "live"),
        (215.893, "r2", "tail", "live"),  # its window follows the head's without a gap: [335.314, 337.317]
        (335.314, "r2", "head", "done"),
        (337.317, "r2", "tail", "done"),
    ]
    assert [milliseconds(window) for window in run.core.windows.values() if window.request_id == "r2"] == [
        pytest.approx((190.893, 215.893, 335.314), abs=1e-3),
        pytest.approx((335.314, 335.314, 337.317), abs=1e-3),
    ]
    assert (ttft_ms(run, r1), ttft_ms(run, r2)) == (190.893, 307.317)


def test_v3_pull_the_second_request_reconfigures_when_the_decode_port_is_free():
    run = circuits("pull", prefills=("p1", "p2"))
    r1, r2 = turn("r1", "p1"), turn("r2", "p2", 30.0)
    run.run([r1, r2])
    assert [entry for entry in run.log if entry[1] == "r2"] == [
        (312.292, "r2", "all", "dark"),
        (337.292, "r2", "all", "live"),
        (458.716, "r2", "all", "done"),
    ]
    assert (ttft_ms(run, r1), ttft_ms(run, r2)) == (312.292, 428.716)


def test_v4a_a_late_prefill_alone_extends_its_window():
    run, r1 = circuits("layerwise"), turn("r1", "p1", factor=1.1)
    run.run([r1])
    assert ttft_ms(run, r1) == 209.980


def test_v4c_a_late_prefill_keeps_its_circuit_and_pushes_the_windows_not_yet_dark():
    run = circuits("layerwise", prefills=("p1", "p2"))
    r1, r2 = turn("r1", "p1", factor=1.1), turn("r2", "p2", 30.0)
    run.run([r1, r2])
    assert (354.401, "r2", "head", "done") in run.log
    assert (356.404, "r2", "tail", "done") in run.log
    assert (ttft_ms(run, r1), ttft_ms(run, r2)) == (209.980, 326.404)


def test_v4_pull_a_late_prefill_sends_from_its_end():
    run, r1 = circuits("pull"), turn("r1", "p1", factor=1.1)
    run.run([r1])
    assert ttft_ms(run, r1) == 331.379


def test_v5_an_early_prefill_starts_its_tail_early():
    run, r1 = circuits("layerwise"), turn("r1", "p1", factor=0.9)
    run.run([r1])
    assert run.log[-2:] == [(169.804, "r1", "tail", "live"), (171.806, "r1", "tail", "done")]
    assert ttft_ms(run, r1) == 171.806


def test_an_early_prefill_in_pull_reconfigures_at_once_when_its_ports_are_idle():
    run, r1 = circuits("pull"), turn("r1", "p1", factor=0.8)
    run.run([r1])  # ends at 152.695, before the dark time that was booked for 165.868
    assert run.log[0] == (152.695, "r1", "all", "dark")
    assert ttft_ms(run, r1) == pytest.approx(152.695 + 25 + 121.424, abs=2e-3)


def test_an_early_prefill_never_starts_on_ports_that_another_circuit_uses():
    run = circuits("pull", prefills=("p1", "p2"))
    r1, r2 = turn("r1", "p1"), turn("r2", "p2", 30.0, factor=0.5)
    run.run([r1, r2])
    assert (312.292, "r2", "all", "dark") in run.log


def test_without_reservation_layerwise_holds_its_ports_from_the_first_byte_to_the_last():
    run, r1 = circuits("layerwise", commit=NoReservation), turn("r1", "p1")
    run.run([r1])
    head, tail = run.core.windows.values()
    assert (head.start_s, tail.end_s) == (0.0, pytest.approx(0.190893, abs=1e-6))
    assert head.end_s == tail.start_s, "one circuit, held without a gap"
    assert run.log[-1] == (190.893, "r1", "tail", "done")
    assert ttft_ms(run, r1) == 190.893


def test_without_reservation_pull_is_dark_after_the_prefill():
    run, r1 = circuits("pull", commit=NoReservation), turn("r1", "p1")
    run.run([r1])
    assert run.log == [(190.868, "r1", "all", "dark"), (215.868, "r1", "all", "live"), (337.292, "r1", "all", "done")]
    assert ttft_ms(run, r1) == 337.292


def timetable_with_a_reuse_window() -> tuple[Timetable, object, object]:
    """A(p1,d1) [0,100] and B(p1,d1) [300,400], booked as reuse; times in ms as seconds / 1000."""
    table = Timetable({"p1": ["d1"], "p2": ["d1"]}, dark_s=0.025, reuse=True)
    table.stand({"p1": "d1"})
    a = table.book("p1", "d1", "all", Ask("A", 0.100, 0.0, 0.0))
    b = table.book("p1", "d1", "all", Ask("B", 0.100, 0.300, 0.0))
    assert not a.needs_switch
    assert not b.needs_switch
    return table, a, b


def milliseconds(window) -> tuple[float, float, float]:
    return round(window.start_s * 1e3, 6), round(window.live_s * 1e3, 6), round(window.end_s * 1e3, 6)


def test_v6_a_booking_goes_before_a_reuse_window_that_can_be_given_tau():
    table, _, b = timetable_with_a_reuse_window()
    inserted = table.book("p2", "d1", "all", Ask("C", 0.050, 0.0, 0.110))
    assert milliseconds(inserted) == (110.0, 135.0, 185.0)
    assert b.needs_switch
    assert milliseconds(b) == (275.0, 300.0, 400.0)


def test_v6_a_booking_that_leaves_no_room_for_tau_goes_behind():
    table, _, b = timetable_with_a_reuse_window()
    behind = table.book("p2", "d1", "all", Ask("C", 0.150, 0.0, 0.110))
    assert milliseconds(behind) == (400.0, 425.0, 575.0)
    assert not b.needs_switch
    assert milliseconds(b) == (300.0, 300.0, 400.0)


@pytest.mark.parametrize(
    ("data_ms", "stranger", "own"),
    [(120, (125.0, 150.0, 270.0), (275.0, 300.0, 400.0)), (145, (400.0, 425.0, 570.0), (300.0, 300.0, 400.0))],
)
def test_without_reuse_another_request_of_the_same_pair_takes_the_circuit_from_its_owner(data_ms, stranger, own):
    """V6 between two parts of one request: the circuit is the same, but not whose it is."""
    table = Timetable({"p1": ["d1"]}, dark_s=0.025, reuse=False)
    table.book("p1", "d1", "head", Ask("A", 0.100, 0.0, 0.0))
    tail = table.book("p1", "d1", "tail", Ask("A", 0.100, 0.300, 0.0))
    assert not tail.needs_switch
    inserted = table.book("p1", "d1", "all", Ask("B", data_ms / 1e3, 0.0, 0.0))
    assert (milliseconds(inserted), milliseconds(tail)) == (stranger, own)


def test_cancelling_the_window_that_set_a_circuit_up_gives_tau_back_to_its_successor():
    table = Timetable({"p1": ["d1"]}, dark_s=0.025, reuse=True)
    first = table.book("p1", "d1", "all", Ask("A", 0.100, 0.0, 0.0))
    second = table.book("p1", "d1", "all", Ask("B", 0.100, 0.0, 0.0))
    assert milliseconds(second) == (125.0, 125.0, 225.0)
    table.end(first, "expired", "its request died", 0.0)
    assert second.needs_switch
    assert milliseconds(second) == (100.0, 125.0, 225.0)


@pytest.mark.parametrize("now_ms", [0.0, 110.0])
def test_cancelling_too_late_for_tau_delays_the_successor(now_ms):
    table = Timetable({"p1": ["d1"]}, dark_s=0.025, reuse=True)
    first = table.book("p1", "d1", "all", Ask("A", 0.010, 0.0, 0.0))
    second = table.book("p1", "d1", "all", Ask("B", 0.100, 0.100, 0.0))
    assert milliseconds(second) == (100.0, 100.0, 200.0)
    table.end(first, "expired", "its request died", now_ms / 1e3)
    expected = (75.0, 100.0, 200.0) if now_ms == 0.0 else (110.0, 135.0, 235.0)
    assert milliseconds(second) == expected


@pytest.mark.parametrize(("began_ms", "late_ms"), [(75.0, 0.0), (82.0, 7.0)])
def test_a_window_knows_by_how_much_it_began_after_its_plan(began_ms, late_ms):
    table = Timetable({"p1": ["d1"]}, dark_s=0.025, reuse=True)
    window = table.book("p1", "d1", "all", Ask("A", 0.100, 0.100, 0.0))
    table.settle(began_ms / 1e3)
    assert table.start_due(began_ms / 1e3) == [window]
    assert (window.state, round(window.late_s * 1e3, 6)) == ("dark", late_ms)


def test_v8_a_last_chunk_shorter_than_tau_waits_for_tau():
    run = circuits("pull")
    plan = TIMING.plan(2_100, 65_600, KV.layers)
    last_chunk_ms = plan.last_chunk_start_s * 1e3
    assert (plan.duration_s - plan.last_chunk_start_s) * 1e3 < 25.0
    run.run([Turn("r1", "p1", 0.0, plan, plan)])
    assert run.log[0] == (round(last_chunk_ms, 3), "r1", "all", "dark")
    assert run.log[1] == (round(last_chunk_ms + 25.0, 3), "r1", "all", "live")
