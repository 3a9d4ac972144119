"""Orders of events that once went wrong: each refused, or ended with every port free again."""

from __future__ import annotations

import itertools

import pytest
from reservation_cases import REACHABLE, TAU_S, demand, reservations

from controllers.core.demand import Demand, DuplicateRequest, EventError, OutOfOrder, UnknownRequest
from controllers.core.placement import PacketPlacement
from controllers.core.reservations import Reservations
from controllers.decode_choices.by_load import LeastLoaded
from controllers.decode_choices.by_network import CircuitAware


@pytest.mark.parametrize(
    "make",
    [lambda: reservations("pull"), lambda: PacketPlacement(REACHABLE, transfer="pull", decode_choice=LeastLoaded())],
)
def test_events_out_of_order_are_refused_and_change_nothing(make):
    core = make()
    with pytest.raises(UnknownRequest):
        core.prefill_started("r0", 0.1, 0.0)
    core.admitted(demand("r0"), 0.0)
    with pytest.raises(DuplicateRequest):
        core.admitted(demand("r0"), 0.0)
    with pytest.raises(OutOfOrder):
        core.last_chunk_started("r0", 0.1, 0.0)
    with pytest.raises(OutOfOrder):
        core.transfer_done("r0", "all", 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    core.last_chunk_started("r0", 0.1, 0.0)
    with pytest.raises(OutOfOrder):
        core.transfer_done("r0", "head", 0.5)
    with pytest.raises(EventError, match="p9"):
        core.admitted(demand("r1", prefill="p9"), 0.0)


def test_a_request_that_dies_in_the_dark_keeps_its_ports_until_the_switch_is_over():
    core = reservations("layerwise")
    core.admitted(demand("r0"), 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    (window,) = core.due(0.0)
    core.expire("r0", "agent killed", 0.010)
    assert window.state == "dark"
    assert core.live(window.id, 0.025).state == "expired"
    assert core.standing() == {"p0": window.decode}
    assert all(not calendar.windows for calendar in core.timetable.calendars.values())


def test_a_refused_switch_frees_both_ports_and_ends_the_request():
    core = reservations("layerwise")
    core.admitted(demand("r0"), 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    (window,) = core.due(0.0)
    core.refuse(window.id, "barrier timed out", 0.030)
    assert (window.state, window.reason) == ("refused", "barrier timed out")
    assert core.requests.get("r0").state == "done"
    assert core.requests.unfinished[window.decode] == 0


def test_without_reuse_only_the_same_request_finds_its_circuit_standing():
    core = reservations("layerwise", reuse=False)
    for request_id in ("r0", "r1"):
        core.admitted(demand(request_id), 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    core.last_chunk_started("r0", 0.1, 0.0)
    head, tail = core.windows.values()
    assert (head.needs_switch, tail.needs_switch) == (True, False)
    core.prefill_started("r1", 0.3, 0.2)
    assert core.windows[2].needs_switch


def test_a_new_prediction_books_a_window_that_is_not_dark_anew():
    core = reservations("pull")
    core.admitted(demand("r0"), 0.0)
    core.prefill_started("r0", 0.2, 0.0)
    core.last_chunk_started("r0", 0.2, 0.0)
    core.last_chunk_started("r0", 0.3, 0.1)
    old, new = core.windows.values()
    assert (old.state, new.state) == ("released", "booked")
    assert new.live_s == pytest.approx(0.3)


def test_a_circuit_aware_choice_prefers_a_standing_circuit_to_an_idle_decode():
    core = reservations("pull")
    core.stand({"p0": "d1"})
    core.admitted(demand("r0"), 0.0)
    core.prefill_started("r0", 0.2, 0.0)
    assert core.last_chunk_started("r0", 0.2, 0.0).decode == "d1"


def test_affinity_leaves_the_head_where_the_session_was_served():
    core = PacketPlacement(REACHABLE, transfer="layerwise", decode_choice=LeastLoaded())
    moves = []
    for request_id in ("r0", "r1", "r2"):
        core.admitted(Demand(request_id, "t", "s", "p0", 1000, 10, 1, 0.1, None), 0.0)
        placement = core.prefill_started(request_id, 0.1, 0.0)
        core.last_chunk_started(request_id, 0.1, 0.1)
        for part in ("head", "tail") if placement.head_moves else ("tail",):
            core.transfer_done(request_id, part, 0.1)
        moves.append((placement.decode, placement.head_moves))
    assert moves == [("d0", True), ("d1", True), ("d0", True)]


def test_a_shorter_prediction_leaves_a_dark_window_time_for_its_data():
    core = reservations("layerwise")
    core.admitted(demand("r0", migrates=False), 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    core.last_chunk_started("r0", 0.03, 0.0)
    (window,) = core.due(core.next_due_s())
    core.last_chunk_started("r0", 0.0, 0.0051)
    assert window.state == "dark"
    assert window.end_s >= window.live_s + window.data_s


def test_nothing_is_booked_over_a_tail_that_is_live_behind_its_head():
    """The tail's plan may still lie in the future when the head ends early; its ports are taken all the same."""
    core = Reservations(
        {"p0": ("d0",), "p1": ("d0",)},
        rate_bytes_per_s=1e9,
        reconfiguration_s=0.0,
        decode_choice=CircuitAware(),
        transfer="layerwise",
    )
    core.admitted(demand("r0"), 0.0)
    core.prefill_started("r0", 0.01, 0.0)
    core.last_chunk_started("r0", 0.01, 0.0)
    for window in core.due(0.0):
        if window.state == "dark":
            core.live(window.id, 0.0)
    core.due(0.0)
    head, tail = core.windows.values()
    assert (head.state, tail.state) == ("live", "live")
    core.transfer_done("r0", "head", head.end_s - 0.004)
    core.admitted(Demand("r1", "t", "", "p1", 1_000_000, 10_000, 125, 0.1, True), head.end_s - 0.004)
    core.prefill_started("r1", head.end_s + 0.1, head.end_s - 0.004)
    assert core.windows[2].start_s >= tail.end_s


def test_a_prefill_that_ends_before_its_head_has_moved_leaves_the_tail_its_time():
    """The tail is live along with the head, and a new prediction of the prefill's end lies before the head's."""
    core = reservations("layerwise", commit="admission")
    core.admitted(demand("r0", head_bytes=150_000_000), 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    for window in core.due(0.0):
        core.live(window.id, TAU_S)
    core.due(TAU_S)
    head, tail = core.windows.values()
    assert (head.state, tail.state) == ("live", "live")
    core.last_chunk_started("r0", 0.02, TAU_S)
    assert tail.start_s >= head.end_s
    assert tail.end_s == pytest.approx(tail.start_s + tail.data_s)
    core.admitted(demand("r1", "p1"), TAU_S)
    core.admitted(demand("r2", "p2"), TAU_S)
    calendar = core.timetable.calendars[head.decode].windows
    assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(calendar))
