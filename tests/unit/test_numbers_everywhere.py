"""One reading of numbers in files, `--set`, `--over` and options; a grid labels its rows by what a value is."""

from __future__ import annotations

import csv

import pytest
from sweep_cases import SPEC
from typer.testing import CliRunner

import cli
from economics.ranges import OutOfRange, in_range
from experiments.schema.spec import SpecError, load
from sweeps.axes import SweepError, parse_axis
from sweeps.grid import cells_of
from workloads.traces.formats import FORMATS


def invoke(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    return done.exit_code, " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("cluster.link_gbps", "050", "050: a leading zero makes it octal to some; write 50, 0o50 for octal"),
        ("workload.window_s", "1:30", "write 90"),
        ("workload.window_s", "1_000", "write 1000"),
        ("seeds", "[010]", "write 10"),
        ("fabrics.1.reuse", "no", "'no' is text (YAML 1.2); write false"),
    ],
)
def test_a_number_that_two_readers_read_differently_is_refused_from_a_file_and_from_set(
    spec, tmp_path, key, text, says
):
    with pytest.raises(SpecError) as refused:
        load(spec, [f"{key}={text}"])
    assert says in str(refused.value)
    assert str(refused.value).startswith(f"--set {key}={text}: {key}")
    path = tmp_path / "file.yaml"
    path.write_text(
        SPEC.replace("seeds: [1, 2]", f"seeds: {text}" if key == "seeds" else f"slo: {{ttft_multiple: {text}}}")
    )
    if text != "no":
        with pytest.raises(SpecError, match=r"file\.yaml:15: (seeds|slo)"):
            load(path)


def test_a_seed_is_read_alike_and_blamed_on_the_option_that_gave_it(spec):
    for text, says in (("010", "write 10"), ("-1", "at least 0"), ("1_0", "write 10"), ("9" * 20, "at most")):
        code, output = invoke("run", spec, "--dry-run", "--seed", text)
        assert (code, says in output, "--seed" in output, "--set" in output) == (2, True, True, False), output
    with pytest.raises(SpecError, match=r"^--seed -1: seeds\.0: -1"):
        load(spec, seed=-1)


def test_an_axis_is_what_its_values_are_however_they_are_spelt():
    assert parse_axis("a=0.50,5.0,1e-9,0o10,null,true,'010'").values == (
        "0.5",
        "5",
        "1e-09",
        "8",
        "null",
        "true",
        "'010'",
    )
    for over in ("a=5,5.0", "a=5,05.0", "a=x,'x'", "a=[1,2],[1, 2]"):
        with pytest.raises(SweepError, match="is given twice"):
            parse_axis(over)
    for over in ("a=010,012", "a=1:30", "a=1_000"):
        with pytest.raises(SweepError, match="in quotes for text"):
            parse_axis(over)


def test_quotes_and_brackets_hold_commas_together_and_an_apostrophe_does_not():
    assert parse_axis("p='/x/a,b.csv',/x/c.csv").values == ("/x/a,b.csv", "/x/c.csv")
    assert parse_axis('p="a,\\"b",it\'s,d').values == ('a,"b', "it's", "d")
    assert parse_axis("p='it''s, so',b").values == ("it's, so", "b")
    assert parse_axis("p=[1,'b,c'],{k: 'd,e'}").values == ("[1, 'b,c']", "{k: 'd,e'}")
    with pytest.raises(SweepError, match="a quote is opened and never closed"):
        parse_axis("p='a,b")


def test_two_points_that_are_one_experiment_are_refused(spec):
    axis = parse_axis("workload.tenants.0.profile=null,tracelab")
    with pytest.raises(SweepError, match=r"profile=null and workload\.tenants\.0\.profile=tracelab are the same"):
        cells_of(spec, [axis])


def test_rows_of_a_grid_are_labelled_by_value(spec, tmp_path):
    code, output = invoke(
        "sweep", spec, "--set", "seeds=[1]", "--over", "workload.window_s=20.0,0o31", "--workers", 1,
        "--keep", "figures", "--artifact-dir", tmp_path / "grid",
    )  # fmt: skip
    assert code == 0, output
    with (tmp_path / "grid" / "results.csv").open() as file:
        assert {row["workload.window_s"] for row in csv.DictReader(file)} == {"20", "25"}


def test_a_path_with_a_comma_is_one_value_of_an_axis(spec, tmp_path):
    row = '{"timestamp": 0, "input_length": 10, "hash_ids": [1]}\n'
    row += '{"timestamp": 9000, "input_length": 9, "hash_ids": [2]}\n'
    for name in ("a,b.jsonl", "c.jsonl"):
        (tmp_path / name).write_text(row.replace("10", str(len(name))))
    tenant = "workload.tenants=[{name: t, source: mooncake, path: x}]"
    over = f"workload.tenants.0.path='{tmp_path}/a,b.jsonl',{tmp_path}/c.jsonl"
    cells = cells_of(spec, [parse_axis(over)], sets=[tenant, "workload.warmup_s=0", "seeds=[1]"])
    assert [dict(cell.point)["workload.tenants.0.path"].rpartition("/")[2] for cell in cells] == [
        "a,b.jsonl", "a,b.jsonl", "c.jsonl", "c.jsonl",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["summary.json", "Report.HTML", "config.yaml", "provenance.json", "cells", "LOGS", "x.csv", ".", "..", ".x"]
)
def test_a_fabric_is_not_named_like_a_file_of_ours(spec, name):
    with pytest.raises(SpecError, match=r"fabrics\.0\.name"):
        load(spec, [f"fabrics.0.name={name}"])


def test_two_fabrics_differ_in_more_than_the_case_of_their_letters(spec):
    with pytest.raises(SpecError, match="only in the case of its letters"):
        load(spec, ["fabrics.0.name=OCS"])


def test_every_file_beside_the_folders_of_fabrics_has_a_name_that_no_fabric_may_have(spec, tmp_path):
    code, output = invoke("simulate", spec, "--seed", 1, "--artifact-dir", tmp_path / "run")
    assert code == 0, output
    names = {path.name for path in (tmp_path / "run").iterdir()} - {"ecmp", "ocs"}
    assert {"summary.json", "config.yaml"} <= names
    for name in names:
        with pytest.raises(SpecError, match="stands beside the run's own files"):
            load(spec, [f"fabrics.0.name={name}"])


def test_a_time_of_a_trace_is_said_with_the_digits_that_it_was_written_with():
    of_seconds = [each for each in FORMATS if each.unit == "s"]
    assert of_seconds
    assert {each.written(61.114) for each in of_seconds} == {"61.114 s"}


def test_a_number_that_no_float_holds_is_out_of_range_and_no_fault():
    with pytest.raises(OutOfRange, match="is not a finite number"):
        in_range("gpus", 10**400, 1)
