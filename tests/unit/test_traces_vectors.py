"""Public traces have their published shape. They are not shipped: without them the tests skip, and say so."""

import math
from collections import Counter
from pathlib import Path

import pytest

from workloads.arrivals import arrivals
from workloads.prefill import TIMINGS
from workloads.tenants import TenantSpec
from workloads.traces.formats import open_trace

DATA = Path(__file__).parents[3] / "shared" / "data"
CONVERSATION = DATA / "mooncake" / "conversation_trace.jsonl.gz"
TURNS = DATA / "kv-cache-tester" / "turns.csv.gz"
RAW = DATA / "kv-cache-tester" / "raw_sample_40_traces_ctx_le_128k.tar.gz"
EVERYTHING = 10**9


def public(path):
    if not path.exists():
        pytest.skip(f"the public trace {path.name} (shared/data/{path.parent.name}) is not on this machine")
    return path


def read(path, **options):
    reading = open_trace(public(path), **options)
    return list(reading), reading.report()


def test_mooncake_conversation():
    rows, report = read(CONVERSATION)
    assert report.rows_read == len(rows) == 12_031
    assert report.span_s == 3_536.999
    assert report.distinct_times == 1_180
    assert report.token_hit_rate == pytest.approx(0.374, abs=0.0005)


@pytest.mark.parametrize(("part", "count", "span_s"), [("code", 8_819, 3_436), ("conv", 19_366, 3_502)])
def test_azure_2023(part, count, span_s):
    rows, report = read(DATA / "azure" / f"AzureLLMInferenceTrace_2023_{part}.csv.gz")
    assert report.rows_read == len(rows) == count
    assert report.span_s == pytest.approx(span_s, abs=1)
    assert not report.dropped
    assert not report.warnings


def test_agentx_turns():
    rows, report = read(TURNS, max_context_tokens=EVERYTHING)
    assert report.rows_read == len(rows) == 46_218
    assert report.sessions == 692
    assert report.token_hit_rate == pytest.approx(0.962, abs=0.0005)


def test_agentx_sessions_hold_the_calls_that_the_turns_table_has_of_them():
    raw, report = read(RAW, max_context_tokens=EVERYTHING)
    assert report.sessions == 40
    turns, _ = read(TURNS, max_context_tokens=EVERYTHING)

    def of(rows, *what):
        kept = {row.session for row in raw}
        return Counter((row.session, *(getattr(row, name) for name in what)) for row in rows if row.session in kept)

    assert len({row.session for row in raw} & {row.session for row in turns}) == 40
    assert of(raw, "output_tokens") == of(turns, "output_tokens")
    hits = [sum(row.cached_tokens for row in rows if row.session in {r.session for r in raw}) for rows in (raw, turns)]
    assert hits[0] == pytest.approx(hits[1], rel=0.01)


def test_agentx_calls_offer_the_load_of_their_tenant_in_the_long_run():
    tenant = TenantSpec("agents", "agentx", load=0.6, path=str(public(TURNS)))
    h100 = TIMINGS["h100-tp4"]
    run = arrivals([tenant], prefill_instances=8, timing=h100, window_s=1800, warmup_s=0, seed=1, median_error=0.0)
    work_s = math.fsum(h100.duration_s(r.new_tokens, r.cached_tokens) for r in run.requests)
    assert work_s / (1800 * 8) == pytest.approx(0.6, rel=0.1)


def test_tracelab_examples():
    rows, report = read(DATA / "tracelab" / "replay_example_multi_session_example.csv")
    assert [(r.new_tokens, r.cached_tokens) for r in rows[:2]] == [(512, 0), (400, 0)]
    assert report.sessions == 3
    rounds, report = read(DATA / "tracelab" / "round_trace_slim.jsonl")
    assert len(rounds) == 19
    assert report.sessions == 2
