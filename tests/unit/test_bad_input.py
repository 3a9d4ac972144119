"""Bad input is refused before anything is built: with the place, the value and the remedy, and never a traceback."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
from pathlib import Path

import pytest
import typer
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import cli
from commands import packets

DEMO = Path(__file__).parents[2] / "experiments" / "demo.yaml"
BAD_INPUT = 2
SPEC = yaml.safe_load(
    """
name: fuzz
cluster: {prefill_instances: 4, decode_instances: 3, gpus_per_instance: 1, instances_per_rack: 4, link_gbps: 400}
model: {name: llama-3.1-70b, kv_dtype: bf16, tp: 4}
prefill: {timing: h100-tp4, median_error: 0.0, chunk_tokens: 2048}
scale: {rate_scale: 0.0001, time_dilation: 1}
transfer: pull
workload:
  window_s: 5
  warmup_s: 1
  tenants:
    - {name: a, source: synthetic-agentic, profile: tracelab, share: 0.5, load: 0.6, migrate: always}
    - {name: b, source: mooncake, path: trace.jsonl, share: 0.5, migrate: 0.5}
fabrics:
  - {name: eps, kind: eps, oversubscription: 2, routing: ecmp, ecmp_seed: 1}
  - {name: ocs, kind: ocs, reconfiguration_ms: 25, commit: last-chunk, reuse: true, decode_choice: circuit-aware}
  - {name: none, kind: none}
slo: {ttft_multiple: 5}
seeds: [1]
"""
)


def write_trace(folder: Path) -> None:
    rows = [
        {"timestamp": 3_000 * (i // 3), "input_length": 900 + 64 * i, "output_length": 10, "hash_ids": [0, 1 + i % 2]}
        for i in range(40)
    ]
    for row in rows:
        row["hash_ids"] = list(range(-(-row["input_length"] // 512)))
    (folder / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def dry_run(path: Path, *more: str):
    return CliRunner().invoke(cli.app, ["run", str(path), "--dry-run", *more])


def refused(*overrides: str) -> str:
    words = [word for override in overrides for word in ("--set", override)]
    result = dry_run(DEMO, *words)
    assert result.exit_code == BAD_INPUT, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("workload.windows_s=3", ["workload.windows_s", "unknown key", "did you mean 'window_s'"]),
        ("cluster.link_gbps=-400", ["cluster.link_gbps", "-400", "greater than 0"]),
        ("cluster.link_gbps=.nan", ["cluster.link_gbps", "nan", "finite"]),
        ("cluster.link_gbps=0", ["cluster.link_gbps", "0", "greater than 0"]),
        ("cluster.prefill_instances=0", ["cluster.prefill_instances", "0", "greater than or equal to 1"]),
        ("cluster.decode_instances=0", ["cluster.decode_instances", "0"]),
        ("cluster.gpus_per_instance=8", ["cluster.gpus_per_instance", "8 emulated GPUs", "model.tp = 4", "1, 2, 4"]),
        ("scale.time_dilation=0.5", ["scale.time_dilation", "0.5", "greater than or equal to 1"]),
        ("scale.rate_scale=1e-8", ["scale.rate_scale", "3600 bit/s", "give a rate_scale from 4.2e-07 to 0.056"]),
        ("scale.rate_scale=0.5", ["scale.rate_scale", "1.8e+11 bit/s", "give a rate_scale"]),
        ("cluster.instances_per_rack=1000", ["fabrics.0", "cannot be wired"]),
        ("workload.tenants.0.source=mooncake", ["workload.tenants.0", "profile"]),
        ("workload.tenants.0.load=.inf", ["workload.tenants.0.load", "inf"]),
        ("prefill.timing=missing.yaml", ["prefill.timing", "missing.yaml", "no such"]),
        ("model.name=gpt-5", ["model.name", "'gpt-5'", "gpt-oss-20b"]),
        ("model.bytes_per_token=0", ["model.bytes_per_token", "0"]),
    ],
)
def test_a_key_that_cannot_be_is_refused_with_its_path_value_and_remedy(override, says):
    said = refused(override)
    for words in says:
        assert words in said, said


def test_a_load_of_more_requests_than_fit_is_refused_and_not_tried():
    said = refused("workload.window_s=86400", "workload.tenants.0.load=10", "cluster.prefill_instances=1024")
    assert "workload.tenants.0.load" in said
    assert "shorten workload.window_s" in said


def test_a_rate_that_no_shaper_makes_is_no_matter_where_no_link_is_shaped():
    assert dry_run(DEMO, "--set", "scale.rate_scale=1e-8", "--set", "fabrics=[{name: n, kind: none}]").exit_code == 0


def test_a_file_and_a_line_are_named(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(DEMO.read_text().replace("window_s: 55", "window_s: -55"))
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "-55" in text)
    result = dry_run(path)
    assert result.exit_code == BAD_INPUT
    assert f"{path}:{line}: workload.window_s: -55: " in result.output


def test_a_missing_experiment_is_refused(tmp_path):
    assert dry_run(tmp_path / "nothing.yaml").exit_code == BAD_INPUT


def tenants(path: Path) -> list[str]:
    return ["--set", f"workload.tenants=[{{name: t, source: mooncake, path: {path}}}]"]


def test_a_malformed_row_of_a_trace_is_refused_with_its_line(tmp_path):
    write_trace(tmp_path)
    path = tmp_path / "trace.jsonl"
    lines = path.read_text().splitlines()
    lines[6] = lines[6].replace('"timestamp": 6000', '"timestamp": "soon"')
    path.write_text("\n".join(lines))
    result = dry_run(DEMO, *tenants(path))
    assert result.exit_code == BAD_INPUT, result.output
    assert f"{path}:7" in result.output
    assert "soon" in result.output


def test_a_missing_trace_is_refused(tmp_path):
    result = dry_run(DEMO, *tenants(tmp_path / "nothing.jsonl"))
    assert result.exit_code == BAD_INPUT
    assert "nothing.jsonl: no such file" in result.output


def test_a_trace_without_a_request_in_the_window_is_refused(tmp_path):
    write_trace(tmp_path)
    result = dry_run(DEMO, *tenants(tmp_path / "trace.jsonl"), "--set", "workload.tenants.0.offset_s=30",
                     "--set", "workload.window_s=2", "--set", "workload.warmup_s=0",
                     "--set", "workload.tenants.0.max_context_tokens=500")  # fmt: skip
    assert result.exit_code == BAD_INPUT, result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("made", ["file", "full", "read-only"])
def test_an_artifact_folder_that_cannot_be_used_is_refused_before_anything_is_built(tmp_path, made, monkeypatch):
    from results.records.artifacts import ArtifactError, RunDirectory

    target = tmp_path / "out"
    if made == "file":
        target.write_text("")
        says = "cannot use"
    elif made == "full":
        target.mkdir()
        (target / "old.csv").write_text("")
        says = "is not empty"
    else:
        target.mkdir()
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
        says = "cannot be written"
    with pytest.raises(ArtifactError, match=says) as error:
        RunDirectory.create("x", artifact_dir=target)
    assert str(target) in str(error.value)
    assert "--artifact-dir" in str(error.value) or "new directory" in str(error.value)


# -- fuzz -------------------------------------------------------------------------------------------------------------

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2, 3, 7, 1_000, 10**6, 2**63, 10**30]),
    st.sampled_from([0.0, -0.0, 0.5, 1e-300, 1e308, float("nan"), float("inf"), float("-inf"), -3.5, 1e-4]),
    st.sampled_from(["", "none", "ocs", "eps", "always", "trace.jsonl", "nowhere.jsonl", "a:b", "../x", "warmup-a"]),
    st.sampled_from(["trace.jsonl/", "x.yaml", "/dev/null", "/", "\x00", "os:system", "synthetic-agentic", "random"]),
    st.text(max_size=12),
    st.lists(st.integers(-2, 2), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(-2, 2), max_size=2),
)  # fmt: skip
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["replace", "replace", "replace", "delete", "add", "repeat"]), st.integers(0, 10**6), ODD
    ),
    min_size=1,
    max_size=4,
)


def places(data, at=()):
    """The path of every value of a spec."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from places(value, (*at, key))


def mutated(edits):
    spec = copy.deepcopy(SPEC)
    for kind, number, value in edits:
        found = list(places(spec))
        if not found:
            break
        *path, key = found[number % len(found)]
        parent = spec
        for step in path:
            parent = parent[step]
        if kind == "replace":
            parent[key] = value
        elif kind == "delete":
            del parent[key]
        elif kind == "add" and isinstance(parent, dict):
            parent[str(value)] = value
        elif kind == "repeat" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
    return spec


def accepted_or_refused(path: Path, *overrides: str) -> str:
    """What `run --dry-run` says against an experiment, "" where it accepts it; anything but the two is an error.

    The command's function itself: building typer's parser a thousand times would take longer than all the checks.
    """
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            packets.run(path, list(overrides), dry_run=True)
        except typer.Exit as done:
            code = done.exit_code
    assert code in (0, BAD_INPUT), output.getvalue()
    assert "Traceback" not in output.getvalue()
    if code == BAD_INPUT:
        assert output.getvalue().startswith("heliograph: ")
        assert len(output.getvalue()) > len("heliograph: \n")
        return output.getvalue().removeprefix("heliograph: ").strip()
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    write_trace(folder)
    (folder / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    return folder


def test_what_the_fuzz_starts_from_is_accepted(folder):
    assert not accepted_or_refused(folder / "spec.yaml")


@settings(max_examples=700, deadline=None, suppress_health_check=list(HealthCheck))
@given(edits=EDITS)
def test_seven_hundred_mutated_specs_are_accepted_or_refused(folder, edits):
    path = folder / "mutated.yaml"
    try:
        path.write_text(yaml.safe_dump(mutated(edits)))
    except UnicodeEncodeError:  # a lone surrogate is in no file
        return
    refusal = accepted_or_refused(path)
    assert all(f"{path}:" in line or f"{folder}/" in line for line in refusal.splitlines()), refusal


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    cuts=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 3), st.binary(max_size=4)), min_size=1, max_size=5)
)
def test_two_hundred_files_with_changed_bytes_are_accepted_or_refused(folder, cuts):
    content = (folder / "spec.yaml").read_bytes()
    for place, length, new in cuts:
        at = place % (len(content) + 1)
        content = content[:at] + new + content[at + length :]
    path = folder / "bytes.yaml"
    path.write_bytes(content)
    accepted_or_refused(path)


KEYS = [".".join(map(str, path)) for path in places(SPEC)]


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.sampled_from(KEYS), st.text(max_size=8)), st.one_of(ODD.map(str), st.text(max_size=8)))
def test_a_hundred_overrides_are_accepted_or_refused(folder, key, value):
    accepted_or_refused(folder / "spec.yaml", f"{key}={value}")
