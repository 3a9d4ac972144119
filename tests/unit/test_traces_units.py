"""Seconds read as milliseconds, or the other way round, are refused where a trace can only be the other."""

import json

import pytest
import trace_samples
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import SAMPLES
from typer.testing import CliRunner

from cli import app
from experiments.schema.spec import load
from workloads.traces.formats import open_trace
from workloads.traces.trace import TraceError

OPEN = {"mooncake": "ms", "bailian": "s", "burstgpt": "s", "vidur": "s", "splitwise": "s"}


def write(path, name, times):
    """A file of the format with a row at each time, as written."""
    line = {
        "mooncake": lambda at: json.dumps({"timestamp": at, "input_length": 9, "output_length": 1, "hash_ids": [1]}),
        "bailian": lambda at: json.dumps({"chat_id": 1, "timestamp": at, "input_length": 9, "hash_ids": [1]}),
        "burstgpt": lambda at: f"{at},9,1",
        "vidur": lambda at: f"{at},9,1",
        "splitwise": lambda at: f"{at},9,1",
    }[name]
    header = {
        "burstgpt": "Timestamp,Request tokens,Response tokens\n",
        "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n",
        "splitwise": "arrival_timestamp,prompt_size,token_size\n",
    }.get(name, "")
    path.write_text(header + "".join(line(at) + "\n" for at in times))
    return path


def rows(path, **options):
    reading = open_trace(path, **options)
    return list(reading), reading.report()


def poisson(draw_seed, rate_per_s, count):
    import random

    rng, at = random.Random(draw_seed), 0.0
    return [at := at + rng.expovariate(rate_per_s) for _ in range(count)]


@pytest.mark.parametrize("gap_s", [2, 5, 10, 60])
def test_seconds_read_as_milliseconds_are_refused_with_what_they_would_be(tmp_path, gap_s):
    path = write(tmp_path / "t", "mooncake", [gap_s * i for i in range(500)])
    rate = f"{500 / (499 * gap_s):.3g}"
    with pytest.raises(TraceError, match=rf"in ms the trace has .*, which is no service; in s it has {rate} requests"):
        rows(path)
    found, report = rows(path, time_unit="s")
    assert (found[-1].time_s, report.unit, report.warnings) == (499 * gap_s, "s", ())
    assert rows(path, time_unit="ms")[1].span_s == pytest.approx(499 * gap_s / 1e3)


@pytest.mark.parametrize("name", [name for name, unit in OPEN.items() if unit == "s"])
def test_milliseconds_read_as_seconds_are_refused_with_what_they_would_be(tmp_path, name):
    path = write(tmp_path / "t", name, [round(1e3 * at_s) for at_s in poisson(1, 3.0, 1_000)])
    with pytest.raises(TraceError, match=r"in s the trace has 0.00.*; in ms it has"):
        rows(path)
    assert rows(path, time_unit="ms")[1].mean_rate_per_s == pytest.approx(3.0, rel=0.2)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 99), st.floats(0.2, 8.0), st.integers(600, 2_000), st.sampled_from(sorted(OPEN)))
def test_a_trace_of_a_service_in_its_own_unit_is_read(tmp_path_factory, seed, rate_per_s, count, name):
    factor = 1e3 if OPEN[name] == "ms" else 1.0
    times = [round(factor * at_s, 3) for at_s in poisson(seed, rate_per_s, count)]
    found, report = rows(write(tmp_path_factory.mktemp("t") / "t", name, times))
    assert len(found) == count
    assert report.unit == OPEN[name]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 99), st.floats(0.02, 0.8), st.integers(100, 1_000))
def test_seconds_slower_than_one_a_second_do_not_pass_as_milliseconds(tmp_path_factory, seed, rate_per_s, count):
    path = write(tmp_path_factory.mktemp("t") / "t", "mooncake", [round(at) for at in poisson(seed, rate_per_s, count)])
    reading = open_trace(path)
    try:
        assert list(reading)
    except TraceError as error:
        assert "time_unit: s" in str(error)  # noqa: PT017
    else:
        assert "time_unit says which" in reading.report().warnings[0]


def test_few_rows_and_sparse_seconds_are_no_mistake(tmp_path):
    assert rows(write(tmp_path / "a", "mooncake", [0, 105, 274]))[1].span_s == 0.274
    assert rows(write(tmp_path / "c", "mooncake", list(range(30))))[1].span_s == 0.029
    assert not rows(write(tmp_path / "b", "burstgpt", [60 * i for i in range(40)]))[1].warnings


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_are_in_their_unit_and_only_an_open_one_may_be_said(tmp_path, name):
    path = trace_samples.write(name, tmp_path)
    assert list(open_trace(path))
    if SAMPLES[name][1] in OPEN:
        assert list(open_trace(path, time_unit="ms"))
    else:
        with pytest.raises(TraceError, match=r"time_unit ms: a .* trace says itself what its times are"):
            open_trace(path, time_unit="ms")


def test_the_command_and_a_tenant_say_which(tmp_path):
    path = write(tmp_path / "t", "mooncake", [5 * i for i in range(500)])
    run = CliRunner()
    assert run.invoke(app, ["trace", str(path)]).exit_code == 2
    found = json.loads(run.invoke(app, ["trace", str(path), "--time-unit", "s", "--json"]).output)
    assert found["span_s"] == 2495
    assert run.invoke(app, ["trace", str(path), "--time-unit", "us"]).exit_code == 2
    tenant = {"name": "a", "source": "auto", "path": str(path), "time_unit": "s"}
    experiment = {
        "name": "t",
        "cluster": {"prefill_instances": 1, "decode_instances": 2, "gpus_per_instance": 1, "instances_per_rack": 2},
        "model": {"name": "llama-3.1-70b"},
        "workload": {"window_s": 100, "warmup_s": 0, "tenants": [tenant]},
        "fabrics": [{"name": "a", "kind": "none"}],
    }
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(experiment))
    assert [request.arrival_s for request in load(tmp_path / "e.yaml").requests(1)] == [5.0 * i for i in range(20)]


def test_an_hour_that_is_there_twice_is_named_and_not_to_be_sorted(tmp_path):
    def azure(*stamps):
        path = tmp_path / "t.csv"
        path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{stamp},9,1\n" for stamp in stamps))
        return rows(path)

    with pytest.raises(TraceError, match=r":4: .* goes back 59 min.*an hour is there twice.*write the times in UTC"):
        azure("2024-11-03 01:58:00", "2024-11-03 01:59:30.5", "2024-11-03 01:00:10")
    with pytest.raises(TraceError, match="sort the trace by time"):
        azure("2024-11-03 01:58:00", "2024-11-03 01:57:00")
    with pytest.raises(TraceError, match="sort the trace by time"):
        azure("2024-11-03 01:59:00+00:00", "2024-11-03 01:00:00+00:00")
    assert len(azure("2024-11-03 01:59:00-04:00", "2024-11-03 01:00:00-05:00")[0]) == 2
