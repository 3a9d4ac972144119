"""Prefill durations and plans against the worked timelines (times in ms there)."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.prefill import TIMINGS, PrefillTiming

H100 = TIMINGS["h100-tp4"]
FIT = Path(__file__).parents[3] / "shared" / "data" / "h100_prefill_fit" / "fit.json"
TURNS = st.tuples(st.integers(1, 20_000), st.integers(0, 120_000))


def test_median_turn_takes_190_868_ms():
    assert H100.duration_s(1_100, 65_600) == pytest.approx(0.19086824, abs=1e-12)


def test_one_layer_of_the_median_turn_takes_2_38585_ms():
    plan = H100.plan(1_100, 65_600, 80)
    assert plan.layer_end_s(0, 0) == pytest.approx(2.38585e-3, abs=5e-9)


def test_t0_is_paid_once_over_three_chunks():
    plan = H100.plan(5_000, 61_700, 80)
    assert [chunk.new_tokens for chunk in plan.chunks] == [2_048, 2_048, 904]
    assert plan.duration_s == pytest.approx(0.820556, abs=1e-9)
    # One t0 for each chunk would make it 838.196 ms.
    alone = sum(H100.duration_s(n, c) for n, c in [(2_048, 61_700), (2_048, 61_700 + 2_048), (904, 61_700 + 4_096)])
    assert alone == pytest.approx(0.838196, abs=1e-9)
    assert plan.chunks[0].duration_s == pytest.approx(H100.duration_s(2_048, 61_700), abs=1e-12)


def test_short_last_chunk_of_52_tokens_is_shorter_than_a_25_ms_switch():
    plan = H100.plan(2_100, 65_600, 80)
    assert plan.chunks[-1].new_tokens == 52
    expected_ms = 0.0586 * 52 + 1.616e-6 * 52 * (65_600 + 2_048 + 26)
    assert plan.duration_s - plan.last_chunk_start_s == pytest.approx(expected_ms / 1e3, abs=1e-12)
    assert expected_ms < 25


def test_floor_holds_for_a_short_prompt_and_is_paid_in_the_first_chunk():
    timing = PrefillTiming(8.82, 0.0586, 1.616e-6, 18.0, chunk_tokens=10)
    assert timing.duration_s(20, 0) == 0.018
    first, second = timing.plan(20, 0, 80).chunks
    assert second.duration_s == pytest.approx((0.0586 * 10 + 1.616e-6 * 10 * 15) / 1e3, abs=1e-12)
    assert first.duration_s == pytest.approx(0.018 - second.duration_s, abs=1e-12)


@given(TURNS, st.integers(1, 4096))
def test_chunks_are_contiguous_and_add_up_to_the_duration_exactly(turn, chunk_tokens):
    timing = PrefillTiming(8.82, 0.0586, 1.616e-6, 18.0, chunk_tokens)
    plan = timing.plan(*turn, 80)
    assert plan.chunks[0].start_s == 0
    assert all(before.end_s == after.start_s for before, after in pairwise(plan.chunks))
    assert all(chunk.start_s < chunk.end_s for chunk in plan.chunks)
    assert plan.duration_s == timing.duration_s(*turn)
    assert sum(chunk.new_tokens for chunk in plan.chunks) == turn[0]


@given(TURNS)
def test_walking_the_layer_ends_visits_every_layer_once(turn):
    plan = H100.plan(*turn, 8)
    ends, now_s = [], 0.0
    while (next_s := plan.next_layer_s(now_s)) is not None:
        before = plan.token_layers_ready(now_s)
        assert plan.token_layers_ready((now_s + next_s) / 2) == before
        assert plan.token_layers_ready(next_s) > before
        ends.append(next_s)
        now_s = next_s
    assert len(ends) == 8 * len(plan.chunks)
    assert ends[-1] == plan.duration_s
    assert plan.new_tokens_ready(now_s) == turn[0]


def test_after_half_of_the_layers_of_one_chunk_half_of_its_tokens_are_ready():
    plan = H100.plan(1_100, 65_600, 80)
    assert plan.new_tokens_ready(plan.duration_s / 2) == 550
    assert plan.new_tokens_ready(0.0) == 0


@pytest.mark.parametrize(("new_tokens", "cached_tokens"), [(0, 100), (-1, 0), (1, -1)])
def test_a_prefill_without_new_tokens_is_refused(new_tokens, cached_tokens):
    with pytest.raises(ValueError, match="at least 1 new"):
        H100.duration_s(new_tokens, cached_tokens)


@pytest.mark.parametrize("field", ["t0_ms", "a_ms_per_token", "b_ms_per_token2", "floor_ms"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_timing_that_is_no_time_is_refused(field, value):
    fields = {"t0_ms": 8.82, "a_ms_per_token": 0.0586, "b_ms_per_token2": 1e-6, "floor_ms": 18.0, field: value}
    with pytest.raises(ValueError, match=field):
        PrefillTiming(**fields)


@pytest.mark.skipif(not FIT.exists(), reason="the measured fit (shared/data/h100_prefill_fit) is not on this machine")
def test_timings_are_the_measured_fit():
    fit = json.loads(FIT.read_text())
    tile, ideal = fit["tile_attention(default)"], fit["ideal_attention(FA3 asymptotic; lower bound)"]
    assert H100.t0_ms == pytest.approx(tile["t0_ms"], rel=0.005)
    assert H100.a_ms_per_token == pytest.approx(tile["a_ms_per_tok"], rel=0.005)
    assert H100.b_ms_per_token2 == pytest.approx(fit["b_tuned_to_190ms_at(1100,65600)"], rel=0.005)
    assert TIMINGS["h100-tp4-low"].b_ms_per_token2 == pytest.approx(ideal["b_ms_per_tok2"], rel=0.005)
    assert TIMINGS["h100-tp4-mid"].b_ms_per_token2 == pytest.approx(tile["b_ms_per_tok2"], rel=0.005)
