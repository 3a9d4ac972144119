"""The Mooncake reader and the replay of a slice: every rule of the format, and every refusal with its line."""

import gzip
import json
import math
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workloads.arrivals import arrivals
from workloads.prefill import TIMINGS, PrefillTiming
from workloads.seeds import stream
from workloads.tenants import TenantSpec
from workloads.traces import mooncake
from workloads.traces.replay import replay, spread_ties
from workloads.traces.trace import Trace, TraceError, TraceReport, TraceRow

CONVERSATION = Path(__file__).parents[3] / "shared" / "data" / "mooncake" / "conversation_trace.jsonl.gz"
needs_conversation = pytest.mark.skipif(
    not CONVERSATION.exists(), reason="the Mooncake conversation trace (shared/data/mooncake) is not on this machine"
)
# A token takes a millisecond: the prefill time of a row is its new tokens.
MILLISECOND = PrefillTiming(0.0, 1.0, 0.0, 0.0)


def row(timestamp, input_length, hash_ids, **more):
    return {"timestamp": timestamp, "input_length": input_length, "output_length": 1, "hash_ids": hash_ids, **more}


@pytest.fixture
def write(tmp_path):
    def write(*rows):
        path = tmp_path / "trace.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in rows))
        return path

    return write


def test_times_are_milliseconds_and_the_first_one_is_subtracted(write):
    trace = mooncake.read(write(row(1_700_000_000_000, 10, [1]), row(1_700_000_001_500, 10, [2])))
    assert [r.time_s for r in trace.rows] == [0.0, 1.5]
    assert trace.report.origin == 1_700_000_000_000
    assert trace.report.span_s == 1.5
    assert trace.report.mean_rate_per_s == pytest.approx(2 / 1.5)


def test_leading_run_of_seen_blocks_is_cached_and_a_block_behind_a_miss_is_not(write):
    trace = mooncake.read(write(row(0, 1536, [1, 2, 3]), row(1, 2048, [1, 9, 3, 4])))
    assert trace.rows[1].cached_tokens == 512
    assert trace.rows[1].new_tokens == 1536


def test_at_least_one_token_is_computed_when_every_block_was_seen(write):
    trace = mooncake.read(write(row(0, 1000, [1, 2]), row(1, 1000, [1, 2]), row(2, 1024, [1, 2])))
    assert [r.cached_tokens for r in trace.rows] == [0, 999, 1023]
    assert [r.new_tokens for r in trace.rows] == [1000, 1, 1]


def test_ids_are_opaque_and_keep_all_64_bits(write):
    ids = [7, 7 + 2**32, "7", 2**64 - 1]
    trace = mooncake.read(write(*(row(i, 512, [hash_id]) for i, hash_id in enumerate(ids))))
    assert [r.cached_tokens for r in trace.rows] == [0, 0, 0, 0]


def test_gzip_is_recognised_by_content(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(gzip.compress(json.dumps(row(0, 10, [1])).encode()))
    assert len(mooncake.read(path).rows) == 1


def test_rows_over_the_context_limit_are_dropped_counted_and_do_not_enter_the_cache(write):
    path = write(row(0, 1536, [1, 2, 3]), row(1, 512, [1]), row(2, 600, [1, 5]))
    trace = mooncake.read(path, max_context_tokens=1000)
    assert trace.report.dropped == {"longer than 1000 tokens": 1}
    assert (trace.report.rows_read, trace.report.rows_kept) == (3, 2)
    assert [r.cached_tokens for r in trace.rows] == [0, 512]
    assert any("dropped 1 rows" in line for line in trace.report.lines())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(1, 1024, [1, 2, 3]), "3 hash_ids for input_length 1024, which has 2 blocks"),
        (row(1, 1025, [1, 2]), "3 blocks of 512"),
        (row(-1, 10, [1]), "-1"),
        ('{"timestamp": NaN, "input_length": 10, "hash_ids": [1]}', "NaN"),
        ('{"timestamp": Infinity, "input_length": 10, "hash_ids": [1]}', "Infinity"),
        ('{"timestamp": 1e999, "input_length": 10, "hash_ids": [1]}', "inf"),
        (row("1", 10, [1]), "no number of milliseconds"),
        (row(True, 10, [1]), "no number of milliseconds"),
        (row(1, 0, []), "at least 1 token"),
        (row(1, 10.5, [1]), "whole number"),
        (row(1, 10, [1.0]), "float"),
        (row(1, 10, 1), "hash_ids"),
        ({"timestamp": 1, "input_length": 10}, "no hash_ids"),
        ("[1, 2]", "a list where"),
        ("{", "not JSON"),
    ],
)
def test_a_row_outside_the_format_is_refused_with_file_and_line(write, bad, message):
    path = write(row(0, 10, [1]), "", bad)
    with pytest.raises(TraceError) as error:
        mooncake.read(path)
    assert str(error.value).startswith(f"{path}:3: ")
    assert message in str(error.value)


def test_unsorted_times_are_refused_with_both_values(write):
    path = write(row(5, 10, [1]), row(4, 10, [2]))
    with pytest.raises(TraceError, match=r":2: timestamp 4 ms comes after 5 ms"):
        mooncake.read(path)


def test_missing_empty_and_cut_files_are_refused(tmp_path, write):
    with pytest.raises(TraceError, match="no such file"):
        mooncake.read(tmp_path / "nothing.jsonl")
    with pytest.raises(TraceError, match="no rows"):
        mooncake.read(write())
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(json.dumps(row(0, 10, [1])).encode() * 100)[:-20])
    with pytest.raises(TraceError, match="complete"):
        mooncake.read(cut)


def test_a_wrong_unit_is_refused(write):
    # 5,000 rows a second apart, written in seconds and read as milliseconds.
    with pytest.raises(TraceError, match=r"in ms the trace has 1e\+03 requests per s over 5 s.*time_unit: s"):
        mooncake.read(write(*(row(second, 10, [second]) for second in range(5000))))
    assert not mooncake.read(write(row(0, 10, [1]), row(300, 10, [2]))).report.warnings


@needs_conversation
def test_conversation_trace_has_its_published_shape():
    report = mooncake.read(CONVERSATION).report
    assert report.rows_read == report.rows_kept == 12_031
    assert report.span_s == 3_536.999
    assert report.distinct_times == 1_180
    assert report.token_hit_rate == pytest.approx(0.374, abs=0.0005)
    assert report.tick_s == 3.0
    assert not report.warnings


def rows_at(*times_s, new_tokens=1000):
    return [TraceRow(time_s, new_tokens, 0, "", i + 1) for i, time_s in enumerate(times_s)]


def trace_of(rows):
    times = sorted({r.time_s for r in rows})
    report = TraceReport("t.jsonl", "mooncake", "ms", 0.0, times[-1], len(rows), len(rows), {}, len(times), 1.0, 0, 0.0)
    return Trace(rows, report)


def cut(times_s, *, new_tokens=1000, **options):
    settings = {"load": None, "instances": 1, "timing": MILLISECOND, "window_s": 10.0, "warmup_s": 0.0}
    return replay(trace_of(rows_at(*times_s, new_tokens=new_tokens)), times_s, **(settings | options))


def test_ties_are_spread_in_order_within_their_tick_and_others_stay():
    rows = rows_at(0.0, 0.0, 0.0, 3.0, 6.0, 6.0)
    times_s = spread_ties(rows, 3.0, stream(1, "ties"))
    assert times_s == sorted(times_s)
    assert len(set(times_s)) == 6
    assert all(0.0 <= time_s < 3.0 for time_s in times_s[:3])
    assert times_s[3] == 3.0
    assert all(6.0 <= time_s < 9.0 for time_s in times_s[4:])


def test_ties_do_not_reach_beyond_a_near_next_row():
    times_s = spread_ties(rows_at(0.0, 0.0, 0.001), 3.0, stream(1, "ties"))
    assert times_s[1] < 0.001


def test_without_a_load_the_trace_keeps_its_rate():
    slice_ = cut([float(i) for i in range(30)], warmup_s=5.0)
    assert slice_.time_factor == 1.0
    assert slice_.offset_s == 5.0
    assert [arrival_s for arrival_s, _ in slice_.warmup] == [0, 1, 2, 3, 4]
    assert [arrival_s for arrival_s, _ in slice_.measured] == [float(i) for i in range(5, 15)]


def test_a_load_of_half_the_recorded_one_stretches_the_time_axis_twice():
    # A second of prefill each second: a load of 1 on one instance.
    slice_ = cut([float(i) for i in range(30)], load=0.5, warmup_s=4.0)
    assert slice_.time_factor == pytest.approx(2.0)
    assert [arrival_s for arrival_s, _ in slice_.measured] == pytest.approx([4, 6, 8, 10, 12])
    # Warm-up arrivals are stretched by the same factor.
    assert [arrival_s for arrival_s, _ in slice_.warmup] == pytest.approx([0, 2])


def test_twice_the_recorded_load_replays_twice_as_fast():
    slice_ = cut([float(i) for i in range(30)], load=2.0)
    assert slice_.time_factor == pytest.approx(0.5)
    assert len(slice_.measured) == 20


def test_warm_up_covers_its_share_of_the_scaled_trace():
    slice_ = cut([float(i) for i in range(30)], load=0.5, offset_s=12.0, warmup_s=4.0)
    # 4 s of run are 2 s of trace.
    assert [r.time_s for _, r in slice_.warmup] == [10.0, 11.0]
    assert [arrival_s for arrival_s, _ in slice_.warmup] == pytest.approx([0, 2])


def test_offset_chooses_where_the_measured_window_starts():
    slice_ = cut([float(i) for i in range(30)], offset_s=12.0, warmup_s=2.0)
    assert [r.time_s for _, r in slice_.measured] == [float(i) for i in range(12, 22)]
    assert [r.time_s for _, r in slice_.warmup] == [10.0, 11.0]


@given(
    st.lists(st.floats(0.5, 1.0), min_size=40, max_size=80),
    st.lists(st.integers(1, 400), min_size=81, max_size=81),
    st.floats(0.05, 0.3),
)
def test_load_is_met_to_within_half_a_request_and_windows_hold(gaps_s, tokens, load):
    times_s = [sum(gaps_s[:i]) for i in range(len(gaps_s) + 1)]
    rows = [TraceRow(t, n, 0, "", i) for i, (t, n) in enumerate(zip(times_s, tokens, strict=False))]
    # The second half alone holds enough, so that a start with room for the warm-up exists.
    assume(sum(r.new_tokens for r in rows[len(rows) // 2 :]) / 1e3 > 10.0 * load)
    options = {"load": load, "instances": 1, "timing": MILLISECOND, "window_s": 10.0, "warmup_s": 1.0}
    slice_ = replay(trace_of(rows), times_s, **options)
    work_s = math.fsum(r.new_tokens for _, r in slice_.measured) / 1e3
    assert abs(work_s - 10.0 * load) <= 0.2 + 1e-9 or len(slice_.measured) == 1
    assert all(1.0 <= arrival_s < 11.0 for arrival_s, _ in slice_.measured)
    assert all(0.0 <= arrival_s < 1.0 for arrival_s, _ in slice_.warmup)
    arrivals_s = [arrival_s for arrival_s, _ in [*slice_.warmup, *slice_.measured]]
    assert arrivals_s == sorted(arrivals_s)


def test_a_trace_that_is_too_short_says_what_it_holds():
    with pytest.raises(TraceError, match="no window of 10 s"):
        cut([0.0, 1.0, 2.0])
    with pytest.raises(TraceError, match=r"holds 3 s of prefill .* is 10 s; lower load"):
        cut([0.0, 1.0, 2.0], load=1.0)


def test_an_offset_without_room_for_the_warm_up_is_refused():
    with pytest.raises(TraceError, match="raise offset_s or lower warmup_s"):
        cut([float(i) for i in range(30)], offset_s=2.0, warmup_s=5.0)


def test_replayed_requests_have_no_session_and_a_report_of_the_slice(write):
    path = write(*(row(1000 * i, 1000, [2 * i, 2 * i + 1]) for i in range(60)))
    tenant = TenantSpec("chat", "mooncake", path=str(path), load=None)
    run = arrivals([tenant], prefill_instances=1, timing=MILLISECOND, window_s=10, warmup_s=3, seed=1, median_error=0.0)
    assert {r.session for r in run.requests} == {""}
    assert [r.id for r in run.requests[:4]] == [*(f"warmup-chat-{i:06d}" for i in range(3)), "chat-000000"]
    assert run.reports[0].offered_load == pytest.approx(1.0)
    assert run.reports[0].trace is not None


def tied(write, **options):
    path = write(*(row(3000 * (i // 5), 1000, [2 * i, 2 * i + 1]) for i in range(60)))
    tenant = TenantSpec("chat", "mooncake", path=str(path), **options)
    run = arrivals([tenant], prefill_instances=1, timing=MILLISECOND, window_s=9, warmup_s=0, seed=1, median_error=0.0)
    return [r.arrival_s for r in run.requests], run.reports[0]


def test_ties_are_spread_by_default_and_the_report_says_so(write):
    arrivals_s, report = tied(write)
    assert len(set(arrivals_s)) == len(arrivals_s)
    assert "spread over the tick of 3 s" in report.notes[0]


def test_ties_can_be_kept(write):
    arrivals_s, report = tied(write, ties="keep")
    assert arrivals_s == [0.0] * 5 + [3.0] * 5 + [6.0] * 5
    assert report.notes == ()


@needs_conversation
def test_conversation_slice_offers_the_load_of_its_tenant():
    tenant = TenantSpec("mooncake", "mooncake", load=0.5, offset_s=1800, path=str(CONVERSATION))
    h100 = TIMINGS["h100-tp4"]
    run = arrivals([tenant], prefill_instances=4, timing=h100, window_s=40, warmup_s=5, seed=1, median_error=0.0)
    assert run.reports[0].offered_load == pytest.approx(0.5, abs=0.05)
    assert run.reports[0].measured_requests > 100
