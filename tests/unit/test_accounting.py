"""Accounting: what migrated, who kept a decode, and what the ports did, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.schema.spec import load
from results.metrics.accounting import account, account_run, busiest_decode_over_mean, kept_decode_share, with_sizes
from results.metrics.metrics import summarise
from results.records.schema import CIRCUITS, REQUESTS

DEMO = Path(__file__).resolve().parents[2] / "experiments" / "demo.yaml"
RATE = 45e9
HEAD, TAIL = 5_373_952_000, 90_112_000


def part_bytes(new: int, cached: int) -> tuple[int, int]:
    """Per rank of Llama-3.1-70B BF16, TP4."""
    return cached * 81_920, new * 81_920


def request(number, *, prefill="p0", decode="d0", migrated=True, prefix="a", status="completed", tenant="a"):
    return {
        "id": f"{prefix}-{number}",
        "tenant": tenant,
        "arrival_s": float(number),
        "new_tokens": 1_100,
        "cached_tokens": 65_600,
        "status": status,
        "prefill": prefill,
        "decode": decode,
        "migrated": migrated,
        "prefill_start_s": float(number),
    }


def window(number, request, part, dark, live, over, *, state="released", prefill="p0", decode="d0"):
    return {
        "window": number,
        "request": request,
        "part": part,
        "prefill": prefill,
        "decode": decode,
        "state": state,
        "dark_at_s": dark,
        "live_at_s": live,
        "released_at_s": over,
        "needs_switch": dark is not None,
    }


def accounted(requests, circuits=None, **options):
    frame = None if circuits is None else CIRCUITS.frame(circuits)
    return account(REQUESTS.frame(requests), frame, part_bytes=part_bytes, rate_bytes_per_s=RATE, **options)


def test_bytes_are_those_of_completed_measured_requests_and_a_head_counts_where_it_crossed():
    found = accounted(
        [
            request(0),
            request(1, migrated=False),
            request(2, status="failed"),
            request(3, migrated=None, status="unfinished"),
            request(4, prefix="warmup-a"),
        ]
    )
    assert (found["head_bytes_per_rank"], found["tail_bytes_per_rank"]) == (HEAD, 2 * TAIL)
    assert found["migrated"] == 2, "the failed one had been placed, and its prefix was to cross"
    assert "ports" not in found, "a packet fabric has none"


def test_requests_are_consecutive_at_their_prefill_instance():
    rows = [
        request(0, prefill="p0", decode="d0"),
        request(1, prefill="p1", decode="d1"),
        request(2, prefill="p0", decode="d0"),  # kept, though p1's went elsewhere in between
        request(3, prefill="p1", decode="d0"),
        request(4, prefill="p0", decode="d0"),
    ]
    assert kept_decode_share(REQUESTS.frame(rows)) == {"a": pytest.approx(2 / 3)}
    assert kept_decode_share(REQUESTS.frame(rows[:2])) == {"a": None}


def test_tenants_are_told_apart():
    rows = [request(i, decode=f"d{i % 2}", tenant="a") for i in range(4)]
    rows += [request(i, decode="d5", prefix="b", tenant="b") for i in range(4)]
    assert kept_decode_share(REQUESTS.frame(rows)) == {"a": 0.0, "b": 1.0}


def test_the_busiest_decode_is_compared_with_the_mean_of_all_that_the_tenant_owns():
    rows = REQUESTS.frame([request(i, decode="d0" if i < 3 else "d1") for i in range(4)])
    assert busiest_decode_over_mean(rows) == {"a": pytest.approx(1.5)}
    assert busiest_decode_over_mean(rows, {"a": ("d0", "d1", "d2")}) == {"a": pytest.approx(2.25)}


def test_a_reserved_migrated_turn_uses_its_ports_for_146_ms():
    # V2, layer-wise: dark [0, 25], head to 144.421, tail [188.891, 190.893]
    circuits = [
        window(0, "a-0", "head", 0.0, 0.025, 0.144421),
        window(1, "a-0", "tail", None, 0.188891, 0.190893),
    ]
    ports = accounted([request(0)], circuits)["ports"]
    assert set(ports) == {"p0", "d0"}
    for port in ports.values():
        assert port["dark_s"] == pytest.approx(0.025)
        assert port["live_moving_s"] == pytest.approx(0.121423, abs=2e-6)
        assert port["live_idle_s"] == pytest.approx(0.0, abs=2e-6)


def test_without_reservation_the_same_turn_holds_them_for_191_ms():
    # head and tail are live together: time counts once
    circuits = [
        window(0, "a-0", "head", 0.0, 0.025, 0.144421),
        window(1, "a-0", "tail", None, 0.025, 0.190893),
    ]
    port = accounted([request(0)], circuits)["ports"]["d0"]
    assert sum(port.values()) == pytest.approx(0.190893)
    assert port["live_idle_s"] == pytest.approx(0.190893 - 0.025 - 0.121424, abs=2e-6)


def test_a_window_that_died_in_the_dark_was_dark_and_never_live():
    circuits = [window(0, "a-0", "all", 1.0, None, 1.5, state="expired")]
    assert accounted([request(0, status="failed")], circuits)["ports"]["p0"] == {
        "dark_s": 0.5,
        "live_moving_s": 0.0,
        "live_idle_s": 0.0,
    }


def test_a_window_that_died_live_moved_nothing_that_counts():
    circuits = [window(0, "a-0", "all", None, 1.0, 1.5, state="expired")]
    assert accounted([request(0, status="failed")], circuits)["ports"]["p0"]["live_idle_s"] == 0.5


def test_windows_of_the_warm_up_are_left_out():
    circuits = [window(0, "warmup-a-0", "all", 0.0, 0.1, 0.3)]
    assert accounted([request(0, prefix="warmup-a")], circuits)["ports"] == {}


def test_the_accounting_is_part_of_the_summary():
    rows = REQUESTS.frame([request(0, status="failed")])
    summary = summarise(
        rows,
        name="f",
        fabric="eps",
        seed=1,
        substrate="emulation",
        prefill_duration_s=lambda new, cached: 1.0,
        ttft_multiple=5,
        verdict="valid",
        accounting={"migrated": 1},
    )
    assert summary.model_dump()["accounting"] == {"migrated": 1}


def test_each_window_tells_whether_its_turn_migrated_and_the_bytes_of_its_part():
    requests = [request(0), request(1, migrated=False), request(2, migrated=None, status="unfinished")]
    circuits = [
        window(0, "a-0", "head", 0.0, 0.1, 0.2),
        window(1, "a-0", "tail", None, 0.2, 0.3),
        window(2, "a-1", "all", None, 0.4, 0.5),
        window(3, "a-2", "all", None, None, None, state="booked"),
        window(4, "load-0", "all", None, 0.6, 0.7),
    ]
    found = with_sizes(CIRCUITS.frame(circuits), REQUESTS.frame(requests), part_bytes)
    assert found["bytes"].dropna().tolist() == [HEAD, TAIL, TAIL], "a head that did not move is in nobody's bytes"
    assert found["migrated"].dropna().tolist() == [True, True, False]
    assert found["bytes"].isna().tolist() == found["migrated"].isna().tolist() == [False] * 3 + [True] * 2
    assert found.dtypes.equals(CIRCUITS.frame([]).dtypes), "it can be written"


def test_a_migrated_turn_in_one_part_has_head_and_tail_in_it():
    found = with_sizes(
        CIRCUITS.frame([window(0, "a-0", "all", 0.0, 0.1, 0.2)]), REQUESTS.frame([request(0)]), part_bytes
    )
    assert found["bytes"].tolist() == [HEAD + TAIL]


def test_an_experiment_is_accounted_for_with_its_own_model_and_rate_and_all_the_decodes_it_has():
    experiment = load(DEMO)
    circuits = CIRCUITS.frame([window(0, "a-0", "all", None, 0.0, 0.3)])
    requests = REQUESTS.frame([request(0, tenant="agentic")])
    found = account_run(experiment, "ocs", requests, circuits)
    assert found["head_bytes_per_rank"] == HEAD
    assert found["ports"]["d0"]["live_moving_s"] == pytest.approx((HEAD + TAIL) / RATE)
    assert found["busiest_decode_over_mean"] == {"agentic": 3.0}, "two of three decodes had nothing"
    assert "ports" not in account_run(experiment, "eps", requests, circuits)
