"""The prefill queue, the release of KV bytes and load balancing, on the worked timelines."""

from math import inf, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.kv import kv_model
from workloads.prefill import TIMINGS
from workloads.request import Request
from workloads.serving import KvStream, LastChunkStarted, PrefillEnded, PrefillQueue, PrefillStarted

H100 = TIMINGS["h100-tp4"]
LLAMA = kv_model("llama-3.1-70b", tp=4)
T_S = H100.duration_s(1_100, 65_600)
TURNS = st.tuples(st.integers(1, 9_000), st.integers(0, 120_000))


def turn(name, *, new_tokens=1_100, cached_tokens=65_600, factor=1.0):
    return Request(name, "agentic", "s1", 0.0, new_tokens, cached_tokens, True, factor)


def log(events):
    return [(type(event).__name__, event.request.id, event.at_s) for event in events]


def test_single_chunk_prefill_starts_and_starts_its_last_chunk_at_once():
    queue = PrefillQueue(H100, 80)
    queue.submit(turn("r1"), 2.0)
    assert log(queue.advance(2.0)) == [("PrefillStarted", "r1", 2.0), ("LastChunkStarted", "r1", 2.0)]
    assert queue.next_s() == 2.0 + T_S
    assert log(queue.advance(2.0 + T_S)) == [("PrefillEnded", "r1", 2.0 + T_S)]
    assert queue.next_s() is None


def test_second_request_waits_for_the_first_and_starts_at_its_planned_end():
    queue = PrefillQueue(H100, 80)
    queue.submit(turn("r1"), 0.0)
    queue.submit(turn("r2"), 0.1)
    # However late the timer is, nothing shifts.
    assert log(queue.advance(60.0)) == [
        ("PrefillStarted", "r1", 0.0),
        ("LastChunkStarted", "r1", 0.0),
        ("PrefillEnded", "r1", T_S),
        ("PrefillStarted", "r2", T_S),
        ("LastChunkStarted", "r2", T_S),
        ("PrefillEnded", "r2", T_S + T_S),
    ]


def test_idle_instance_starts_a_request_at_its_receipt():
    queue = PrefillQueue(H100, 80)
    queue.submit(turn("r1"), 0.0)
    queue.advance(5.0)
    queue.submit(turn("r2"), 5.0)
    assert queue.next_s() == 5.0


def test_nothing_is_returned_before_its_time():
    queue = PrefillQueue(H100, 80)
    queue.submit(turn("r1"), 1.0)
    assert queue.advance(nextafter(1.0, 0.0)) == []


def test_last_chunk_of_a_long_prefill_starts_when_the_others_are_done():
    queue = PrefillQueue(H100, 80)
    plan = queue.submit(turn("r1", new_tokens=5_000, cached_tokens=61_700), 1.0)
    started, last_chunk, ended = queue.advance(inf)
    assert isinstance(started, PrefillStarted)
    assert started.plan == plan
    assert isinstance(last_chunk, LastChunkStarted)
    assert last_chunk.at_s == 1.0 + plan.chunks[1].end_s
    assert isinstance(ended, PrefillEnded)
    assert ended.at_s == pytest.approx(1.820556)


def test_exact_predictions_are_the_planned_end():
    queue = PrefillQueue(H100, 80)
    queue.submit(turn("r1", new_tokens=5_000, cached_tokens=61_700), 1.0)
    started, last_chunk, ended = queue.advance(inf)
    assert started.predicted_end_s == last_chunk.predicted_end_s == ended.at_s


def test_predictions_stretch_what_is_still_to_run_and_leave_the_prefill_alone():
    queue = PrefillQueue(H100, 80)
    plan = queue.submit(turn("r1", new_tokens=5_000, cached_tokens=61_700, factor=1.1), 1.0)
    started, last_chunk, ended = queue.advance(inf)
    assert ended.at_s == 1.0 + plan.duration_s
    assert started.predicted_end_s == pytest.approx(1.0 + 1.1 * plan.duration_s)
    assert last_chunk.predicted_end_s == pytest.approx(last_chunk.at_s + 1.1 * plan.chunks[-1].duration_s)


def test_head_and_tail_of_the_worked_turn():
    stream = KvStream(H100.plan(1_100, 65_600, 80), LLAMA, "layerwise", 0.0, True)
    assert (stream.head_bytes, stream.tail_bytes) == (5_373_952_000, 90_112_000)
    assert stream.total_bytes == 5_464_064_000


def test_layerwise_head_exists_from_the_prefills_start_and_tail_layer_by_layer():
    stream = KvStream(H100.plan(1_100, 65_600, 80), LLAMA, "layerwise", 3.0, True)
    assert stream.bytes_at(nextafter(3.0, 0.0)) == 0
    assert stream.bytes_at(3.0) == stream.head_bytes
    assert stream.next_release_s(3.0) == pytest.approx(3.0 + T_S / 80)
    assert stream.bytes_at(3.0 + 40.5 * T_S / 80) == stream.head_bytes + 40 * 1_126_400
    assert stream.bytes_at(3.0 + T_S) == stream.total_bytes


def test_eight_of_eighty_layers_are_missing_at_nine_tenths_of_the_prefill():
    stream = KvStream(H100.plan(1_100, 65_600, 80), LLAMA, "layerwise", 0.0, False)
    assert stream.bytes_at(0.9 * T_S) == 81_100_800


def test_pull_releases_everything_at_the_prefills_end_and_nothing_before():
    stream = KvStream(H100.plan(1_100, 65_600, 80), LLAMA, "pull", 3.0, True)
    end_s = 3.0 + T_S
    assert stream.bytes_at(nextafter(end_s, 0.0)) == 0
    assert stream.next_release_s(0.0) == stream.next_release_s(3.1) == end_s
    assert stream.bytes_at(end_s) == stream.total_bytes
    assert stream.next_release_s(end_s) is None


def test_prefix_that_stays_leaves_only_the_tail():
    stream = KvStream(H100.plan(1_100, 65_600, 80), LLAMA, "layerwise", 3.0, False)
    assert stream.head_bytes == 0
    assert stream.bytes_at(3.0) == 0
    assert stream.next_release_s(0.0) == pytest.approx(3.0 + T_S / 80)


@given(TURNS, st.floats(0, 400), st.booleans(), st.sampled_from(["layerwise", "pull"]))
def test_following_the_releases_ends_at_exactly_the_total(tokens, start_s, head_moves, mode):
    plan = H100.plan(*tokens, LLAMA.layers)
    stream = KvStream(plan, LLAMA, mode, start_s, head_moves)
    now_s, moments, sent = -1.0, 0, 0
    while (next_s := stream.next_release_s(now_s)) is not None:
        assert next_s > now_s
        assert stream.bytes_at(next_s) > sent
        now_s, sent, moments = next_s, stream.bytes_at(next_s), moments + 1
    assert (
        sent == stream.total_bytes == LLAMA.rank_bytes(tokens[0]) + (LLAMA.rank_bytes(tokens[1]) if head_moves else 0)
    )
    assert now_s == start_s + plan.duration_s
    layers = 80 * len(plan.chunks)
    assert moments == (1 if mode == "pull" else layers + (1 if stream.head_bytes else 0))


def test_override_that_does_not_divide_still_ends_at_the_total():
    odd = kv_model("llama-3.1-70b", tp=4, bytes_per_token=7)
    stream = KvStream(H100.plan(3, 5, 80), odd, "layerwise", 0.0, True)
    assert stream.bytes_at(1.0) == odd.rank_bytes(5) + odd.rank_bytes(3) == 9 + 6


def test_unknown_transfer_mode_and_foreign_plan_are_refused():
    with pytest.raises(ValueError, match="layerwise, pull"):
        KvStream(H100.plan(1, 1, 80), LLAMA, "push", 0.0, True)
    with pytest.raises(ValueError, match="32 layers"):
        KvStream(H100.plan(1, 1, 32), LLAMA, "pull", 0.0, True)
