"""Prefill timing from measurements: what the fit recovers, what it refuses, and how an experiment uses it."""

import contextlib
import csv
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli import app
from experiments.schema.spec import SpecError, load
from experiments.schema.timing import read_timing
from inputs.errors import InputError
from workloads.prefill import TIMINGS, PrefillTiming
from workloads.prefill_fit import errors, fit, timing_yaml
from workloads.prefill_samples import Sample, read_samples

DATA = Path(__file__).parents[3] / "shared" / "data"
OP_TABLES = DATA / "h100_prefill_fit" / "composed_T_prefill_llama70b_tp4_h100_bf16.csv"
PUBLISHED_FIT = DATA / "h100_prefill_fit" / "fit.json"
SPLITWISE = DATA / "splitwise-sim" / "perf_model.csv"
DEMO = Path(__file__).parents[2] / "experiments" / "demo.yaml"
GRID = [(new, cached) for new in (1, 16, 64, 256, 1_024, 4_096, 16_384) for cached in (0, 2_048, 32_768, 114_688)]


def measured_by(timing: PrefillTiming, factor=lambda index: 1.0) -> list[Sample]:
    return [
        Sample(new, cached, timing.duration_s(new, cached) * 1e3 * factor(index))
        for index, (new, cached) in enumerate(GRID)
    ]


def write_csv(path: Path, samples: list[Sample]) -> Path:
    path.write_text("new,cached,ms\n" + "".join(f"{s.new_tokens},{s.cached_tokens},{s.ms!r}\n" for s in samples))
    return path


@pytest.mark.parametrize("name", sorted(TIMINGS))
def test_measurements_without_noise_give_back_the_model_that_made_them(name):
    found = fit(measured_by(TIMINGS[name]))
    timing = TIMINGS[name]
    for field in ("t0_ms", "a_ms_per_token", "b_ms_per_token2", "floor_ms"):
        assert getattr(found.timing, field) == pytest.approx(getattr(timing, field), rel=1e-6)
    assert found.max_error < 1e-9
    assert found.rows == len(GRID)


@given(
    t0=st.floats(1, 100), a=st.floats(0.01, 1), b=st.floats(1e-8, 1e-4), floor=st.sampled_from([0.0, 20.0]),
    noise=st.floats(0, 0.05),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_noise_of_a_few_percent_stays_in_the_errors(t0, a, b, floor, noise):
    timing = PrefillTiming(t0, a, b, floor)
    found = fit(measured_by(timing, lambda index: 1 + noise * (-1) ** (index * 7 // 3)))
    assert found.median_error <= noise * 1.5 + 1e-6
    assert found.p95_error <= found.max_error <= 4 * noise + 1e-6


def test_swapped_columns_show_in_the_errors():
    assert fit([Sample(4, 0, 1), Sample(3, 0, 10), Sample(2, 0, 100), Sample(1, 0, 1_000)]).median_error > 0.5


def test_every_row_counts_by_its_relative_error():
    """An outlier of 40 % in a prefill of 8 s does not bend the model at 30 ms."""
    samples = measured_by(TIMINGS["h100-tp4"])
    samples[-1] = Sample(samples[-1].new_tokens, samples[-1].cached_tokens, samples[-1].ms * 1.4)
    found = fit(samples)
    assert found.median_error < 0.05
    assert found.worst == samples[-1]
    assert errors(found.timing, samples[8:9])[0] < 0.05


def test_a_coefficient_below_zero_is_left_out():
    """Times that flatten: the best parabola bends down, which no prefill does."""
    samples = [Sample(new, 0, 20 + 0.1 * new - 5e-6 * new**2) for new in range(100, 6_000, 200)]
    found = fit(samples)
    assert found.timing.b_ms_per_token2 == 0
    assert found.timing.a_ms_per_token > 0


def test_the_op_tables_of_an_h100_give_the_named_sets():
    if not OP_TABLES.is_file():
        pytest.skip(f"{OP_TABLES} is not on this machine")
    with OP_TABLES.open() as file:
        rows = list(csv.DictReader(file))
    for column, name, b_tolerance in (("T_ideal_ms", "h100-tp4-low", 0.05), ("T_tile_ms", "h100-tp4-mid", 0.05)):
        samples = [Sample(int(r["new_tokens"]), int(r["cached_tokens"]), float(r[column])) for r in rows]
        found = fit(samples)
        assert found.timing.a_ms_per_token == pytest.approx(TIMINGS[name].a_ms_per_token, rel=0.03)
        assert found.timing.b_ms_per_token2 == pytest.approx(TIMINGS[name].b_ms_per_token2, rel=b_tolerance)
        assert found.median_error < 0.05


@pytest.mark.parametrize(
    ("column", "name", "median_error"), [("T_ideal_ms", "h100-tp4-low", 0.03), ("T_tile_ms", "h100-tp4-mid", 0.05)]
)
def test_the_bounds_themselves_stand_near_the_op_tables(column, name, median_error):
    if not OP_TABLES.is_file():
        pytest.skip(f"{OP_TABLES} is not on this machine")
    with OP_TABLES.open() as file:
        rows = list(csv.DictReader(file))
    samples = [Sample(int(r["new_tokens"]), int(r["cached_tokens"]), float(r[column])) for r in rows]
    off = sorted(errors(TIMINGS[name], samples))
    assert off[len(off) // 2] < median_error
    assert off[len(off) * 95 // 100] < 0.2


def test_the_named_sets_are_the_published_fit():
    if not PUBLISHED_FIT.is_file():
        pytest.skip(f"{PUBLISHED_FIT} is not on this machine")
    document = json.loads(PUBLISHED_FIT.read_text())
    ideal, tile = document["ideal_attention(FA3 asymptotic; lower bound)"], document["tile_attention(default)"]
    for name, b in (
        ("h100-tp4", document["b_tuned_to_190ms_at(1100,65600)"]),
        ("h100-tp4-low", ideal["b_ms_per_tok2"]),
        ("h100-tp4-mid", tile["b_ms_per_tok2"]),
    ):
        assert TIMINGS[name].b_ms_per_token2 == pytest.approx(b, rel=0.005)
        assert TIMINGS[name].a_ms_per_token == pytest.approx(tile["a_ms_per_tok"], rel=0.001)
        assert TIMINGS[name].t0_ms == pytest.approx(tile["t0_ms"], rel=0.001)
        assert TIMINGS[name].floor_ms == 18
    assert TIMINGS["h100-tp4"].duration_s(1_100, 65_600) * 1e3 == pytest.approx(190, abs=1)


def test_measured_prompts_of_splitwise_are_linear_with_a_slope_of_the_same_order():
    """Llama-2-70B on an older engine: its prefill is up to 1.6 times slower than the H100 set's, never faster."""
    if not SPLITWISE.is_file():
        pytest.skip(f"{SPLITWISE} is not on this machine")
    with SPLITWISE.open() as file:
        rows = [r for r in csv.DictReader(file) if r["hardware"] == "h100-80gb" and r["tensor_parallel"] == "4"]
    samples = [
        Sample(int(r["prompt_size"]), 0, float(r["prompt_time"]))
        for r in rows
        if r["model"] == "llama2-70b" and r["batch_size"] == "1"
    ]
    found = fit(samples)
    assert found.median_error < 0.05
    assert 1.0 < found.timing.a_ms_per_token / TIMINGS["h100-tp4"].a_ms_per_token < 1.6


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r":1: no column new, cached, ms; .* no header"),
        ("new,ms\n1,2\n", r":1: no column cached; .*the header is 'new,ms'"),
        ("new,new,cached,ms\n1,1,1,2\n", r":1: the column 'new' is named twice"),
        ("new,cached,ms\n1,0,20\n2,0\n", r":3: 2 cells where the header has 3; is the row cut"),
        ("new,cached,ms\n1,0,nan\n", r":2: ms is 'nan'; it must be a finite number"),
        ("new,cached,ms\n1,0,0\n", r":2: ms is '0'; a prefill takes more than 0"),
        ("new,cached,ms\n1,0,-5\n", r":2: ms is '-5'"),
        ("new,cached,ms\n1.5,0,20\n", r":2: new is '1.5'; it must be a whole number"),
        ("new,cached,ms\n0,0,20\n", r":2: new is '0'; .* at least 1"),
        ("new,cached,ms\n1,-1,20\n", r":2: cached is '-1'; .* at least 0"),
        ("new,cached,ms\n1,1e300,20\n", r":2: cached is '1e300'"),
        ("new,cached,ms\n1,0,20\n", r"1 measured prefills; .* takes 4"),
        ("new,cached,ms\n" + "7,0,20\n" * 4, r"every row has 7 new tokens"),
    ],
)
def test_a_malformed_file_is_refused_with_line_value_and_remedy(tmp_path, text, says):
    path = tmp_path / "prefills.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as error:
        fit(read_samples(path), where=str(path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b'new,cached,ms\n"' + b"x" * 200_000])
def test_bytes_that_are_no_csv_are_refused(tmp_path, content):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.csv"):
        read_samples(tmp_path / "x.csv")


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_fitted_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    for prefix in (b"", b"new,cached,ms\n"):
        path.write_bytes(prefix + content)
        with contextlib.suppress(InputError):
            fit(read_samples(path))


def test_the_command_writes_a_timing_that_an_experiment_takes(tmp_path):
    path = write_csv(tmp_path / "mine.csv", measured_by(PrefillTiming(5, 0.02, 3e-7, 9.0)))
    done = CliRunner().invoke(app, ["fit", str(path), "--tp", "4", "--chunk-tokens", "4096"])
    assert done.exit_code == 0, done.output
    assert "relative error: median 0.00%, p95 0.00%" in done.output
    experiment = load(DEMO, [f"prefill={{timing: {tmp_path / 'mine.yaml'}}}"])
    assert experiment.timing == PrefillTiming(5, 0.02, 3e-7, 9.0, 4096)
    assert load(DEMO, [f"prefill={{timing: {tmp_path / 'mine.yaml'}, chunk_tokens: 512}}"]).timing.chunk_tokens == 512
    again = CliRunner().invoke(app, ["fit", str(path), "--tp", "4"])
    assert again.exit_code == 2
    assert "mine.yaml exists" in again.output


def test_a_timing_file_stands_beside_the_experiment_that_names_it(tmp_path):
    (tmp_path / "mine.yaml").write_text(timing_yaml(fit(measured_by(TIMINGS["h100-tp4"])), tp=4, source="x"))
    text = DEMO.read_text().replace("timing: h100-tp4", "timing: mine.yaml")
    (tmp_path / "experiment.yaml").write_text(text)
    experiment = load(tmp_path / "experiment.yaml")
    assert experiment.timing.duration_s(1_100, 65_600) == pytest.approx(0.190868, rel=1e-4)
    (tmp_path / "resolved.yaml").write_text(experiment.dump())
    assert load(tmp_path / "resolved.yaml").timing == experiment.timing


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("t0_ms: 1\na_ms_per_token: 0.1\nb_ms_per_token2: 0\ntp: 8\n", r"measured with tp = 8 and model.tp is 4"),
        ("t0_ms: 1\na_ms_per_token: -1\nb_ms_per_token2: 0\ntp: 4\n", r"mine.yaml:2: a_ms_per_token: -1: .*greater"),
        ("t0_ms: 1\na_ms_per_token: .nan\nb_ms_per_token2: 0\ntp: 4\n", r"mine.yaml:2: a_ms_per_token"),
        ("t0_ms: 1\na_ms: 1\nb_ms_per_token2: 0\ntp: 4\n", r"mine.yaml:2: a_ms: unknown key; did you mean"),
        ("t0_ms: 1\n", r"mine.yaml:1: tp: missing"),
        ("- 1\n", r"mine.yaml: an experiment is a mapping|mine.yaml: .*mapping"),
    ],
)
def test_a_bad_timing_file_is_refused_with_its_own_line(tmp_path, text, says):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(SpecError, match=says):
        load(DEMO, [f"prefill={{timing: {tmp_path / 'mine.yaml'}}}"])


def test_a_missing_timing_file_is_refused():
    with pytest.raises(SpecError, match=r"prefill.timing: .*nothing.yaml: no such"):
        load(DEMO, ["prefill.timing=/nowhere/nothing.yaml"])


def test_an_unknown_timing_names_the_sets_and_the_way_to_a_file():
    with pytest.raises(SpecError, match=r"'h100-tp5' is no prefill timing; did you mean 'h100-tp4'\? .*\.yaml"):
        load(DEMO, ["prefill.timing=h100-tp5"])


def test_numbers_are_written_so_that_yaml_reads_numbers(tmp_path):
    found = fit(measured_by(PrefillTiming(1e-7, 1e6, 1e-12, 0.0)))
    (tmp_path / "x.yaml").write_text(timing_yaml(found, tp=1, source="x"))
    assert read_timing(tmp_path / "x.yaml").a_ms_per_token == pytest.approx(1e6)
    others = yaml.safe_load((tmp_path / "x.yaml").read_text())  # 1e+06 is text to YAML 1.1, 1.0e+06 a number
    assert all(isinstance(value, float | int) for value in others.values())
