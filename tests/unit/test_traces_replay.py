"""Replaying traces: sessions keep their think time, a speed-up scales every time, copies multiply the rate, and a large
file is read only as far as its slice needs."""

import itertools
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import trace_samples
from trace_samples import CALLS, GAP_S

from workloads.arrivals import arrivals
from workloads.prefill import PrefillTiming
from workloads.tenant_requests import traced_requests
from workloads.tenants import TenantSpec
from workloads.traces import slices
from workloads.traces.prefixes import PrefixCache
from workloads.traces.trace import TraceError

ROOT = Path(__file__).parents[2]
# A token takes a millisecond: the prefill time of a row is its new tokens.
MILLISECOND = PrefillTiming(0.0, 1.0, 0.0, 0.0)


def run(path, source="auto", *, window_s=10.0, warmup_s=0.0, seed=1, instances=1, **options):
    tenant = TenantSpec("t", source, path=str(path), **options)
    return arrivals(
        [tenant],
        prefill_instances=instances,
        timing=MILLISECOND,
        window_s=window_s,
        warmup_s=warmup_s,
        seed=seed,
        median_error=0.0,
    )


def gaps_by_session(requests):
    times = defaultdict(list)
    for request in requests:
        times[request.session].append(request.arrival_s)
    return {session: np.diff(at_s) for session, at_s in times.items()}


@pytest.fixture
def turns(tmp_path):
    """200 sessions of ten calls each, 4 s apart, like AgentX's turns table. Call k has 1,000 + k tokens, a second of
    prefill."""
    rows = [f"s{s},{4 * k},{1000 + k},1,0,{1000 + k}" for s in range(200) for k in range(10)]
    path = tmp_path / "turns.csv"
    path.write_text("\n".join(["trace,t_s,in_tokens,out_tokens,cached_tokens,new_tokens", *rows, ""]))
    return path


def test_sessions_without_arrival_times_keep_their_think_time(turns):
    found = run(turns, load=0.5, window_s=300.0, instances=4)
    gaps = np.concatenate(list(gaps_by_session(found.requests).values()))
    assert len(gaps) > 100
    assert gaps == pytest.approx(4.0)


def test_a_speed_up_divides_think_times_and_arrivals_alike(turns, tmp_path):
    gaps = np.concatenate(list(gaps_by_session(run(turns, load=0.5, window_s=300.0, speedup=2.0).requests).values()))
    assert gaps == pytest.approx(2.0)
    path = trace_samples.write("bailian", tmp_path)
    plain, fast = (run(path, window_s=10.0, speedup=speedup) for speedup in (1.0, 2.0))
    assert [r.arrival_s for r in plain.requests] == pytest.approx([GAP_S * i for i in range(20)])
    assert [r.arrival_s for r in fast.requests] == pytest.approx([GAP_S * i / 2 for i in range(40)])
    assert fast.reports[0].time_factor == 0.5


def test_a_load_on_recorded_arrivals_scales_think_times_by_the_same_factor(tmp_path):
    found = run(trace_samples.write("tracelab-rounds", tmp_path), window_s=50.0, load=1.2)
    factor = found.reports[0].time_factor
    assert factor != 1.0
    gaps = np.concatenate(list(gaps_by_session(found.requests).values()))
    assert len(gaps)
    assert gaps == pytest.approx(12 * GAP_S * factor)


def test_sessions_are_under_way_when_the_window_opens(turns):
    # Each session lasts 36 s. Of the calls in a window of 8 s, one in ten is a session's first, as in the whole trace.
    found = run(turns, load=0.5, window_s=8.0, instances=80)
    calls = [r.new_tokens - 1_000 for r in found.requests]
    assert len(calls) == pytest.approx(0.5 * 8 * 80, rel=0.2)
    assert {calls.count(k) > 0 for k in range(10)} == {True}
    assert calls.count(0) / len(calls) == pytest.approx(0.1, abs=0.05)


def test_synthesised_starts_offer_the_load_of_the_tenant(turns):
    found = run(turns, load=0.5, window_s=2_000.0, instances=4)
    assert found.reports[0].offered_load == pytest.approx(0.5, rel=0.08)
    assert any("session starts are synthesised" in note and "seed 1" in note for note in found.reports[0].notes)


def test_synthesised_starts_depend_on_the_seed_only(turns):
    def of(**options):
        return [(r.arrival_s, r.session) for r in run(turns, load=0.5, **options).requests if not r.warmup]

    assert of() == of()
    assert of() != of(seed=2)
    assert [(round(t - 3.0, 9), s) for t, s in of(warmup_s=3.0)] == [(round(t, 9), s) for t, s in of()]


def test_the_warm_up_of_synthesised_sessions_has_sessions_of_its_own(turns):
    found = run(turns, load=0.8, window_s=20.0, warmup_s=20.0, instances=4).requests
    warm, measured = {r.session for r in found if r.warmup}, {r.session for r in found if not r.warmup}
    assert warm
    assert measured
    assert not warm & measured
    assert all(r.arrival_s < 20.0 for r in found if r.warmup)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one"),
        ({"load": 0.5, "offset_s": 1.0}, "remove offset_s"),
        ({"load": 0.5, "copies": 2}, "remove copies"),
        ({"load": 0.5, "windows": "per-seed"}, "remove windows"),
    ],
)
def test_what_sessions_without_arrival_times_cannot_do_is_refused(turns, options, message):
    with pytest.raises(TraceError, match=message):
        run(turns, **options)


def test_a_load_and_a_speed_up_of_recorded_arrivals_contradict_each_other(tmp_path):
    with pytest.raises(TraceError, match="leave one out"):
        run(trace_samples.write("azure-2023", tmp_path), load=0.5, speedup=2.0)


def test_affinity_is_refused_for_a_trace_that_turns_out_to_have_no_sessions(tmp_path):
    with pytest.raises(TraceError, match="affinity needs sessions and a azure trace has none"):
        run(trace_samples.write("azure-2023", tmp_path), migrate="affinity")


def test_copies_multiply_the_rate_and_keep_every_row(tmp_path):
    path = trace_samples.write("vidur", tmp_path)
    found = run(path, window_s=30.0, copies=3)
    assert len(found.requests) == 3 * CALLS
    arrivals_s = [r.arrival_s for r in found.requests]
    assert np.diff(arrivals_s).max() <= GAP_S
    assert all(a <= b for a, b in itertools.pairwise(arrivals_s))
    # Copy 1 is shifted by a third of the 30 s, 20 rows: its first row arrives 10 s in.
    assert sorted(r.new_tokens for r in found.requests if r.arrival_s == 10.0) == [2_000, 4_000, 6_000]
    assert any("3 copies of the trace are superposed" in note for note in found.reports[0].notes)


def test_a_trace_too_short_for_its_load_says_that_copies_help_and_they_do(tmp_path):
    path = trace_samples.write("splitwise", tmp_path)
    with pytest.raises(TraceError, match="superpose copies"):
        run(path, window_s=60.0, load=1.0, instances=10)
    found = run(path, window_s=60.0, load=1.0, instances=10, copies=3)
    assert found.reports[0].offered_load == pytest.approx(1.0, abs=0.02)


def test_copies_have_sessions_of_their_own(tmp_path):
    found = run(trace_samples.write("bailian", tmp_path), window_s=30.0, copies=2)
    assert {r.session for r in found.requests} == {f"{i}{suffix}" for i in range(12) for suffix in ("", "#1")}


@pytest.mark.parametrize("copies", [1, 3])
def test_with_windows_per_seed_each_seed_sees_the_trace_turned_by_a_shift_of_its_own(tmp_path, copies):
    path = trace_samples.write("vidur", tmp_path)

    def of(seed):
        found = run(path, window_s=30.0, copies=copies, windows="per-seed", seed=seed)
        return [(r.arrival_s, r.new_tokens) for r in found.requests]

    assert of(1) == of(1)
    assert of(1) != of(2)
    for seed in (1, 2):  # every row of every copy is there once, whatever the shift
        assert len(of(seed)) == copies * CALLS
        assert sorted(n for _, n in of(seed)) == sorted(n for _, n in of(3))


def test_a_large_file_is_read_as_far_as_the_slice_needs_and_gives_the_same_slice(tmp_path, monkeypatch):
    path = tmp_path / "long.csv"
    rows = "".join(f"{i / 10},{100 + i % 7},1\n" for i in range(20_000))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    options = {"load": 0.5, "offset_s": 700.0, "warmup_s": 2.0}
    whole = run(path, **options)
    monkeypatch.setattr(slices, "_FIRST_TRY_ROWS", 64)
    monkeypatch.setattr(slices, "_ROWS_BEFORE_OFFSET", 256)
    traced_requests.cache_clear()
    part = run(path, **options)
    assert part.requests == whole.requests
    assert whole.reports[0].trace.rows_read == 20_000
    assert part.reports[0].trace.rows_read < 8_000
    assert any("read as far as the slice needs" in line for line in part.reports[0].lines())
    free = run(path, load=0.5, warmup_s=2.0)
    assert free.reports[0].trace.rows_read < 1_000


def test_ties_of_a_large_file_are_spread_as_if_it_were_read_whole(tmp_path, monkeypatch):
    path = tmp_path / "ties.csv"
    rows = "".join(f"{i // 4},{100 + i % 7},1\n" for i in range(4_000))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    whole = run(path, load=0.5, warmup_s=2.0)
    monkeypatch.setattr(slices, "_FIRST_TRY_ROWS", 8)
    traced_requests.cache_clear()
    part = run(path, load=0.5, warmup_s=2.0)
    assert part.requests == whole.requests
    assert part.reports[0].trace.rows_read < 400


def test_dense_block_ids_cost_a_bit_and_others_are_exact():
    cache = PrefixCache()
    cache.add(range(100_000))
    cache.add(["a", -1, 2**63, 2**64 - 1])
    assert len(cache._bits) < 2 * 100_000 / 8
    assert not [i for i in cache._others if isinstance(i, int) and 0 <= i < 2**40]
    assert cache.leading_hits([0, 99_999, "a", -1, 2**63, 2**64 - 1, 100_000, 5]) == 6
    assert cache.leading_hits([2**63 + 1]) == cache.leading_hits(["0"]) == cache.leading_hits([-2]) == 0
    sparse = PrefixCache()
    sparse.add([10**12 + 10**7 * i for i in range(100)])
    assert len(sparse._bits) == 0
    assert sparse.leading_hits([10**12 + 10**7 * i for i in range(100)]) == 100
