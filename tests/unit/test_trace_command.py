"""./heliograph trace: what would be replayed, as text and as JSON; bad input exits 2 without a traceback."""

import json
from pathlib import Path

import pytest
import trace_samples
from trace_samples import CALLS, GAP_S, SAMPLES, cached, tokens
from typer.testing import CliRunner

from cli import app
from workloads.kv import kv_model
from workloads.prefill import TIMINGS
from workloads.traces.summary import Tally

DEMO = Path(__file__).parents[2] / "experiments" / "demo.yaml"


def trace(*arguments):
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_summarised(tmp_path, name):
    done = trace(trace_samples.write(name, tmp_path), "--cluster", DEMO)
    assert done.exit_code == 0, done.output
    assert f": {SAMPLES[name][1]}, times in " in done.output
    assert "context tokens: p10" in done.output
    assert "KV demand per GPU" in done.output


def test_json_has_the_counts_and_the_percentiles_of_the_rows(tmp_path):
    found = json.loads(trace(trace_samples.write("tracelab-rounds", tmp_path), "--json").output)
    contexts = sorted(tokens(i) for i in range(CALLS))
    assert found["rows_read"] == found["context_tokens"]["n"] == CALLS
    assert found["span_s"] == pytest.approx(GAP_S * (CALLS - 1))
    # Ranks 6, 30, 54 and 60 of 60.
    assert [found["context_tokens"][f"p{q}"] for q in (10, 50, 90, 99)] == [contexts[i] for i in (5, 29, 53, 59)]
    assert found["new_tokens"]["mean"] == pytest.approx(sum(tokens(i) - cached(i) for i in range(CALLS)) / CALLS)
    hit = sum(cached(i) for i in range(CALLS)) / sum(contexts)
    assert found["prefix_hit_rate"] == pytest.approx(hit)
    assert "cluster" not in found


def test_a_cluster_sees_its_load_and_its_demand_per_gpu(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(f"{i},4096,1\n" for i in range(11)))
    found = json.loads(trace(path, "--json", "--cluster", DEMO).output)["cluster"]
    prefill_s = TIMINGS["h100-tp4"].duration_s(4096, 0)
    rank_bytes = kv_model("llama-3.1-70b", tp=4).rank_bytes(4096)
    assert rank_bytes == 1_342_177_280 / 4
    assert found["mean_prefill_s"] == pytest.approx(prefill_s)
    # 11 requests in 10 s on the demo's 4 prefill instances.
    assert found["offered_load"] == pytest.approx(11 * prefill_s / (10 * 4))
    assert found["kv_bytes_per_gpu"]["mean_context"] == pytest.approx(rank_bytes)
    assert found["kv_demand_bytes_per_s_per_gpu"]["p50"] == pytest.approx(rank_bytes / prefill_s, rel=0.003)
    assert found["kv_rate_bytes_per_s_per_gpu"] == pytest.approx(11 * rank_bytes / (10 * 4))


def test_sessions_without_arrival_times_have_a_session_rate_instead_of_a_load(tmp_path):
    found = json.loads(trace(trace_samples.write("agentx", tmp_path), "--json", "--cluster", DEMO).output)
    assert found["cluster"]["offered_load"] is None
    work_s = found["cluster"]["mean_prefill_s"] * CALLS
    assert found["cluster"]["sessions_per_s_at_load_1"] == pytest.approx(4 * 12 / work_s)


def test_an_unknown_prefix_is_null_and_not_zero(tmp_path):
    found = json.loads(trace(trace_samples.write("azure-2023", tmp_path), "--json").output)
    assert found["prefix_hit_rate"] is None


def test_bad_input_exits_2_with_the_remedy(tmp_path):
    (tmp_path / "bad").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\nx,1,1\n")
    for arguments, message in (
        ((tmp_path / "bad",), "bad:2: arrived_at 'x' is no number of seconds"),
        ((tmp_path / "nothing",), "no such file"),
        ((tmp_path / "bad", "--source", "azur"), "allowed: auto, mooncake"),
        ((tmp_path / "bad", "--cluster", tmp_path / "nothing.yaml"), "nothing.yaml"),
    ):
        done = trace(*arguments)
        assert done.exit_code == 2, done.output
        assert message in done.output
        assert "Traceback" not in done.output


def test_percentiles_of_one_two_and_a_hundred_values():
    one, two, hundred = Tally(), Tally(), Tally()
    one.add(7)
    two.add(1)
    two.add(2)
    for value in range(1, 101):
        hundred.add(value)
    assert [one.percentile(q) for q in (1, 50, 99)] == [7, 7, 7]
    assert [two.percentile(q) for q in (50, 51, 99)] == [1, 2, 2]
    assert [hundred.percentile(q) for q in (1, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert Tally().summary() == {"n": 0, "mean": None, "p10": None, "p50": None, "p90": None, "p99": None, "max": None}
