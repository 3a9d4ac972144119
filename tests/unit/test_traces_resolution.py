"""The resolution of a trace is the largest step that all its times meet, never a usual distance between them."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.arrivals import arrivals
from workloads.prefill import TIMINGS
from workloads.tenants import TenantSpec
from workloads.traces.formats import open_trace
from workloads.traces.replay import spread_ties
from workloads.traces.resolution import resolution


def of(times, rows=None):
    """The resolution of times in their unit, each of which has a row, but where `rows` says how many there are."""
    distinct = sorted({time - min(times) for time in times})
    return resolution(distinct, len(times) if rows is None else rows)


@st.composite
def on_a_grid(draw):
    """Ticks that requests met at random, some of them several, without a divisor common to all of them."""
    found = sorted(draw(st.lists(st.integers(0, 400), min_size=20, max_size=80, unique=True)))
    return [*found, found[-1] + 7, found[-1] + 12, found[-1] + 13]


@given(on_a_grid(), st.integers(1, 9_999), st.integers(0, 10**6))
def test_whole_numbers_on_a_grid_have_its_step(ticks, step, start):
    assert of([start + step * tick for tick in ticks]) == step


@given(on_a_grid(), st.integers(400, 9_999), st.data())
def test_a_jitter_far_below_the_step_does_not_hide_it(ticks, step, data):
    jitter = data.draw(st.lists(st.integers(-(step // 250), step // 250), min_size=len(ticks), max_size=len(ticks)))
    # beside the step, one that meets the jittered times as well
    assert of([step * tick + off for tick, off in zip(ticks, jitter, strict=True)]) == pytest.approx(step, rel=0.02)


@given(on_a_grid(), st.integers(1, 999), st.integers(1, 6))
def test_decimal_parts_of_a_unit_are_steps(ticks, parts, places):
    found = of([parts * tick / 10**places for tick in ticks])
    assert found == pytest.approx(parts / 10**places, rel=1e-9)


@given(on_a_grid(), st.sampled_from([0.001, 0.01, 1.0]))
def test_seconds_since_1970_as_binary_fractions_keep_their_step(ticks, step):
    assert of([1_700_000_000 + step * tick for tick in ticks]) == pytest.approx(step)


@given(st.integers(2, 5_000), st.integers(3, 60), st.integers(1, 5), st.integers(0, 10_000))
def test_a_period_is_no_resolution_whatever_its_length(period, requests, burst, start):
    times = [start + period * i for i in range(requests)]
    assert of([*times, *[times[requests // 2]] * burst], rows=requests) == 1


@given(st.integers(0, 10_000), st.integers(1, 10_000), st.integers(1, 10_000))
def test_two_or_three_times_have_the_unit_that_they_are_written_in(start, gap, more):
    assert of([start, start + gap]) == 1
    assert of([start, start + 10 * gap, start + 10 * gap + 10 * more]) == 1


def test_fewer_than_two_times_have_none():
    assert resolution([], 0) == resolution([0.0], 5) == 0.0


def burstgpt(path, seconds):
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens\n" + "".join(f"{second},G,100,10\n" for second in seconds)
    )
    return path


def replayed_at_s(path, **options):
    tenant = TenantSpec("t", "auto", path=str(path), **options)
    settings = {"window_s": 500, "warmup_s": 1, "seed": 1, "median_error": 0.0}
    found = arrivals([tenant], prefill_instances=1, timing=TIMINGS["h100-tp4"], **settings)
    return [request.arrival_s for request in found.requests], found.reports[0]


def test_four_requests_of_one_second_arrive_within_it_in_a_trace_of_one_a_minute(tmp_path):
    minutes = [*range(100, 401, 60), 400, 400, 400, *range(460, 701, 60)]
    arrivals_s, report = replayed_at_s(burstgpt(tmp_path / "t.csv", minutes), offset_s=60)
    burst = [at_s for at_s in arrivals_s if 230 < at_s < 300]
    assert len(burst) == len(set(burst)) == 4
    assert all(241 <= at_s < 242 for at_s in burst)
    assert (report.trace.tick_s, report.trace.gap_s) == (1.0, 60.0)
    assert any("spread over the tick of 1 s" in note for note in report.notes)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3_000), min_size=30, max_size=60, unique=True), st.integers(2, 6))
def test_requests_of_one_second_stay_in_it(tmp_path_factory, seconds, burst):
    seconds = sorted([0, 1, *seconds, *[seconds[0]] * burst, 3_001, 3_002])
    path = burstgpt(tmp_path_factory.mktemp("t") / "t.csv", seconds)
    reading = open_trace(path)
    rows = list(reading)
    spread_s = spread_ties(rows, reading.report().tick_s, np.random.default_rng(1))
    assert Counter(map(int, spread_s)) == Counter(seconds)
    assert len(set(spread_s)) == len(seconds)


def test_a_grid_of_three_seconds_give_or_take_a_millisecond(tmp_path):
    ticks = [0, 3000, 5999, 9000, 12001, 15000, 18000, 20999, 24000, 27000, 29999, 33000]
    rows = [
        {"timestamp": at, "input_length": 10, "output_length": 1, "hash_ids": [1]} for at in ticks for _ in range(8)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reading = open_trace(path)
    assert list(reading)
    assert reading.report().tick_s == 3.0


def test_dates_have_the_resolution_of_their_fractions(tmp_path):
    def tick_s(*stamps):
        path = tmp_path / "t.csv"
        path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{stamp},10,1\n" for stamp in stamps))
        reading = open_trace(path)
        assert list(reading)
        return reading.report().tick_s

    assert tick_s("2024-05-10 00:00:00", "2024-05-10 00:00:07", "2024-05-10 00:00:30") == 1.0
    assert tick_s("2024-05-10 00:00:00.5", "2024-05-10 00:00:07.25", "2024-05-10 00:00:30.125") == pytest.approx(1e-3)


@pytest.mark.parametrize("last", [2.29e-291, 5e-324, 4e-10])
def test_times_nearer_than_the_finest_decimal_have_that_resolution(last):
    assert resolution([0.0, last], 2) == 1e-9
