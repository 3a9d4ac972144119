"""Metrics: failures stay in the denominator, nothing undefined is zero, no percentile that n cannot support."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from results.metrics import metrics
from results.records.schema import CIRCUITS, REQUESTS, TRANSFERS, TTFT_PARTS


def request(number, ttft_s=1.0, status="completed", prefix="a", **changes):
    """A request whose TTFT is 80 % prefill and 20 % exposed transfer."""
    row = {
        "id": f"{prefix}-{number}",
        "tenant": "a",
        "arrival_s": float(number),
        "new_tokens": 100,
        "cached_tokens": 900,
    }
    row |= {"status": status, "migrated": True}
    if status == "completed":
        row |= {"ttft_s": ttft_s, "prefill_s": 0.8 * ttft_s, "transfer_exposed_s": 0.2 * ttft_s, "queue_s": 0.0}
        row |= {"circuit_wait_s": 0.0, "control_s": 0.0, "return_s": 0.0, "first_token_s": number + ttft_s}
        row |= {"prefill_end_s": number + 0.8 * ttft_s, "last_byte_s": number + ttft_s}
    return row | changes


def requests(*rows):
    return REQUESTS.frame(rows)


def summarise(frame, circuits=None, fabric="eps", duration_s=1.0, **options):
    settings = {"name": "f", "seed": 1, "substrate": "emulation", "ttft_multiple": 5, "verdict": "valid"} | options
    return metrics.summarise(
        frame, circuits, fabric=fabric, prefill_duration_s=lambda new, cached: duration_s, **settings
    )


# Percentiles


@pytest.mark.parametrize("percent", [50, 90, 95, 99])
def test_every_percentile_of_one_sample_is_that_sample(percent):
    assert metrics.percentile([3.0], percent) == 3.0


@pytest.mark.parametrize(("percent", "expected"), [(50, 1.5), (90, 1.9), (95, 1.95), (99, 1.99)])
def test_two_samples_are_interpolated(percent, expected):
    assert metrics.percentile([2.0, 1.0], percent) == pytest.approx(expected)


@pytest.mark.parametrize(("percent", "expected"), [(50, 50.5), (90, 90.1), (95, 95.05), (99, 99.01)])
def test_a_hundred_samples_have_the_known_percentiles(percent, expected):
    # 1..100: the q-th lies at 1 + 99 q; an index off by one gives 51, 91, 96 or 100
    assert metrics.percentile(list(range(100, 0, -1)), percent) == pytest.approx(expected)


@pytest.mark.parametrize(("samples", "said"), [([], "no samples"), ([1.0, float("nan")], "1 of 2 samples")])
def test_a_percentile_of_nothing_or_of_nan_is_refused(samples, said):
    with pytest.raises(ValueError, match=said):
        metrics.percentile(samples, 50)


@pytest.mark.parametrize(("percent", "least"), [(50, 10), (90, 50), (95, 100), (99, 500)])
def test_a_percentile_needs_five_samples_beyond_it(percent, least):
    assert metrics.supports(least, percent)
    assert not metrics.supports(least - 1, percent)


def test_p99_of_71_samples_is_undefined_and_says_why():
    ttft = metrics.ttft_statistics(requests(*(request(i, ttft_s=1 + i) for i in range(71))))
    assert (ttft.n, ttft.p99, ttft.p95) == (71, None, None)
    assert ttft.p50 == 36.0
    assert ttft.p90 == pytest.approx(64.0)
    assert ttft.null_reasons["p99"] == "n = 71 is too small: p99 needs n (1 - q) >= 5, that is n >= 500"
    assert set(ttft.null_reasons) == {"p95", "p99"}


# Denominators


def test_failed_and_unfinished_requests_stay_in_the_denominator_of_attainment():
    frame = requests(request(0), request(1), request(2, status="failed"), request(3, status="unfinished"))
    summary = summarise(frame)
    assert summary.slo_attainment == 0.5
    counted = summary.requests
    assert (counted.offered, counted.completed, counted.failed, counted.unfinished) == (4, 2, 1, 1)
    assert counted.offered == counted.completed + counted.failed + counted.unfinished


def test_a_request_that_failed_after_its_first_token_is_a_miss_however_fast_that_token_was():
    assert summarise(requests(request(0), request(1, status="failed") | {"ttft_s": 0.1})).slo_attainment == 0.5


def test_attainment_cannot_rise_because_slow_requests_fail():
    slow = [request(i, ttft_s=9.0) for i in range(5)]
    failed = [request(i, status="failed") for i in range(5)]
    fast = [request(i) for i in range(5, 10)]
    assert summarise(requests(*slow, *fast)).slo_attainment == summarise(requests(*failed, *fast)).slo_attainment == 0.5


def test_when_everything_failed_each_figure_is_null_with_a_reason_and_none_is_zero():
    summary = summarise(requests(*(request(i, status="failed", migrated=None) for i in range(20))))
    ttft = summary.ttft_s
    assert ttft.n == 0
    assert [ttft.mean, ttft.p50, ttft.p90, ttft.p95, ttft.p99] == [None] * 5
    assert set(ttft.null_reasons) == {"mean", "p50", "p90", "p95", "p99"}
    assert ttft.null_reasons["mean"] == "none of 20 measured requests completed"
    assert (summary.ttft_exposed_share, summary.hidden_share, summary.migrated_share) == (None, None, None)
    assert set(summary.ttft_parts_s) == set(TTFT_PARTS)
    assert set(summary.ttft_parts_s.values()) == {None}
    assert summary.slo_attainment == 0.0  # twenty offered, twenty missed


def test_a_run_without_requests_has_no_attainment():
    summary = summarise(requests())
    assert summary.slo_attainment is None
    assert summary.requests.offered == 0
    assert summary.ttft_s.null_reasons["p50"] == "no measured requests were offered"


def test_an_unknown_status_is_refused():
    with pytest.raises(ValueError, match="unknown status 'lost'"):
        metrics.counts(requests(request(0, status="lost")))


def test_warm_up_requests_are_left_out_of_every_figure_and_counted():
    measured = [request(i) for i in range(10)]
    warm_up = [request(i, ttft_s=100.0, prefix="warmup-a", migrated=False) for i in range(10)]
    with_warm_up, without = summarise(requests(*warm_up, *measured)), summarise(requests(*measured))
    assert with_warm_up.requests.warmup == 10
    assert with_warm_up.model_copy(update={"requests": without.requests}) == without


# TTFT


def test_ttft_counts_from_the_intended_arrival_and_so_contains_the_lag_of_a_late_sender():
    from results.metrics.merge import merge

    offered = {"id": "a-0", "tenant": "a", "session": "", "arrival_s": 1.0, "new_tokens": 1, "cached_tokens": 0}
    records = [
        {"of": "request", "id": "a-0", "sent_s": 3.0, "status": "completed", "first_token_s": 4.0},
        {"of": "prefill", "id": "a-0", "received_s": 3.0, "start_s": 3.0, "end_s": 3.5, "head_moves": True},
    ]
    merged = merge(records, [], [offered], kind="none").requests
    assert metrics.ttft_statistics(merged).mean == 3.0
    assert merged.loc[0, "control_s"] == 2.0


def test_the_mean_parts_add_up_to_the_mean_ttft():
    summary = summarise(requests(*(request(i, ttft_s=1.0 + i) for i in range(12))))
    assert sum(summary.ttft_parts_s.values()) == pytest.approx(summary.ttft_s.mean)


def test_the_exposed_share_is_a_ratio_of_sums_not_a_mean_of_ratios():
    short = request(0, ttft_s=1.0, transfer_exposed_s=0.5, prefill_s=0.5)
    long = request(1, ttft_s=9.0, transfer_exposed_s=0.0, prefill_s=8.5, circuit_wait_s=0.5)
    assert metrics.exposed_share(requests(short, long)) == pytest.approx(0.1)


def test_the_queue_the_control_and_the_return_are_not_exposed():
    late = request(0, ttft_s=10.0, queue_s=4.0, prefill_s=3.0, control_s=1.0, return_s=1.0, transfer_exposed_s=1.0)
    assert metrics.exposed_share(requests(late)) == pytest.approx(0.1)


def test_a_transfer_is_hidden_up_to_a_tenth_of_the_prefill():
    on_time = request(0, prefill_s=1.0, prefill_end_s=1.0, last_byte_s=1.1)
    late = request(1, prefill_s=1.0, prefill_end_s=1.0, last_byte_s=1.1001)
    stayed = request(2, migrated=False, prefill_s=1.0, prefill_end_s=1.0, last_byte_s=9.0)
    failed = request(3, status="failed")
    assert metrics.hidden_share(requests(on_time, late, stayed, failed)) == 0.5


def test_nothing_migrated_leaves_the_hidden_share_undefined():
    assert metrics.hidden_share(requests(request(0, migrated=False))) is None


def test_the_migrated_share_is_of_the_requests_whose_decode_was_chosen():
    rows = [request(0), request(1, migrated=False), request(2), request(3, status="failed", migrated=None)]
    assert metrics.migrated_share(requests(*rows)) == pytest.approx(2 / 3)


# SLO


def test_each_tenant_has_its_own_limit_from_the_median_of_its_offered_prefills():
    # Tenant a: T = 1, 1, 10, limit 5. Tenant b: T = 2, limit 10. The failed one still counts in the median.
    rows = [request(0, ttft_s=5.0), request(1, ttft_s=5.01), request(2, status="failed", new_tokens=1000)]
    rows += [request(3, ttft_s=9.0, tenant="b", new_tokens=200)]
    overall, by_tenant = metrics.slo_attainment(requests(*rows), lambda new, cached: new / 100, multiple=5)
    assert overall == 0.5
    assert by_tenant == {"a": pytest.approx(1 / 3), "b": 1.0}


def test_the_limit_comes_from_the_model_and_not_from_what_was_measured():
    frame = requests(*(request(i, ttft_s=50.0) for i in range(10)))
    assert metrics.slo_attainment(frame, lambda new, cached: 1.0, multiple=5)[0] == 0.0


# Circuits and transfers


def test_switches_and_reuses_are_counted_of_measured_windows_that_were_live():
    def window(number, request="a-0", live_at_s: float | None = 1.0, needs_switch=True):
        return {"window": number, "request": request, "live_at_s": live_at_s, "needs_switch": needs_switch}

    circuits = CIRCUITS.frame(
        [
            window(1),
            window(2, needs_switch=False),
            window(3, needs_switch=False),
            window(4, live_at_s=None),
            window(5, "warmup-1"),
        ]
    )
    summary = summarise(requests(request(0)), circuits, fabric="ocs")
    assert (summary.switches, summary.reuses) == (1, 2)
    assert summarise(requests(request(0)), None, fabric="eps").switches is None


def test_a_transfer_faster_than_its_line_is_found():
    def transfer(rank, size, seconds):
        return {"request": "a-0", "rank": rank, "bytes": size, "first_byte_s": 1.0, "last_byte_s": 1.0 + seconds}

    # 100 GB/s on a 50 GB/s line: all bytes over half of their time
    frame = TRANSFERS.frame(
        [transfer(0, 10_000_000_000, 0.1), transfer(1, 10_000_000_000, 0.2), transfer(2, 1_000_000, 0.0)]
    )
    found = metrics.faster_than_line(frame, 50e9, allowance_bytes=1_000_000)
    assert len(found) == 1
    assert found[0].startswith("transfer a-0 rank 0: 1e+10 B in 0.1 s")
    assert len(metrics.faster_than_line(frame, 50e9, allowance_bytes=999_999)) == 2


def test_a_summary_holds_numbers_that_json_can_hold():
    text = summarise(requests(*(request(i) for i in range(3)))).model_dump_json()
    assert "NaN" not in text
    assert '"p99":null' in text
    assert isinstance(summarise(requests(request(0))).ttft_s.mean, float)
    assert not isinstance(summarise(requests(request(0))).ttft_s.mean, np.floating)


def test_frames_with_missing_columns_are_refused_by_name():
    with pytest.raises(ValueError, match="requests: missing column tenant"):
        REQUESTS.conform(pd.DataFrame({"id": ["a"]}))
    with pytest.raises(ValueError, match="requests: no such column: ttft"):
        REQUESTS.frame([{"ttft": 1.0}])


def test_a_tail_on_the_circuit_of_its_own_head_is_no_reuse():
    rows = [
        {"window": 0, "request": "a", "part": "head", "live_at_s": 1.0, "needs_switch": True},
        {"window": 1, "request": "a", "part": "tail", "live_at_s": 1.2, "needs_switch": False},
        {"window": 2, "request": "b", "part": "head", "live_at_s": 2.0, "needs_switch": False},
        {"window": 3, "request": "b", "part": "tail", "live_at_s": 2.2, "needs_switch": True},
        {"window": 4, "request": "c", "part": "tail", "live_at_s": 3.0, "needs_switch": False},
    ]
    assert metrics.switches_and_reuses(CIRCUITS.frame(rows)) == (2, 2)
