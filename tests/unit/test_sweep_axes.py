"""The axes of a grid, and what is refused before anything starts."""

from __future__ import annotations

import pytest
import yaml
from sweep_cases import SPEC
from typer.testing import CliRunner

import cli
from sweeps.axes import SweepError, expand, overrides, parse_axes, parse_axis, points


def invoke(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, ["sweep", *(str(word) for word in words)])
    return done.exit_code, " ".join(done.output.split())


def test_an_axis_is_a_key_and_values_and_brackets_hold_commas_together():
    assert parse_axis("transfer=pull,layerwise").values == ("pull", "layerwise")
    assert parse_axis("a.b=[1,2],{c: 3, d: 4}").values == ("[1, 2]", "{c: 3, d: 4}")


def test_points_are_every_combination_the_last_axis_fastest():
    found = points(parse_axes(["a=1,2", "b=x,y"]))
    assert found == [(("a", i), ("b", j)) for i in "12" for j in "xy"]
    assert points([]) == [()]


def test_a_star_stands_for_every_item_of_a_list():
    data = yaml.safe_load(SPEC)
    assert overrides((("workload.tenants.*.load", "0.5"),), data) == [
        "workload.tenants.0.load=0.5",
        "workload.tenants.1.load=0.5",
    ]
    with pytest.raises(SweepError, match="transfer is none"):
        expand("transfer.*", data)
    with pytest.raises(SweepError, match="items of a list"):
        expand("a.*", {"a": []})


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ("transfer", "expected key=a,b,c"),
        ("transfer=pull,", "an empty value"),
        ("transfer=pull,pull", "given twice"),
        ("seeds=1,2", "each seed is a cell"),
        ("fabrics.0.name=a,b", None),
        ("transfr=pull", "transfr"),
        ("transfer=pull,push", "push"),
        ("workload.window_s=0.001", "no request falls into the measured window"),
        ("workload.window_s=20,0.001", "with workload.window_s=0.001: no request falls into the measured window"),
        ("workload.*.load=1", "stands for the items of a list"),
    ],
)
def test_an_axis_that_cannot_be_is_refused_before_anything_starts(spec, tmp_path, over, message):
    code, output = invoke(spec, "--over", over, "--artifact-dir", tmp_path / "grid", "--dry-run")
    if message is None:
        assert code == 0
        return
    assert code == 2
    assert message in output
    assert "Traceback" not in output
    assert not (tmp_path / "grid").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", 2, "--scheduler", "tcp://127.0.0.1:1"), "leave one out"),
        (("--emulate", "--workers", 2), "one cell at a time"),
        (("--keep", "some"), "neither all nor figures"),
        (
            ("--emulate", "--dry-run", "--over", "scale.rate_scale=0.0001,0.000000001"),
            "with scale.rate_scale=1e-09: scale.rate_scale: 1e-09 makes a KV link",
        ),
        (("--over", "transfer=pull", "--over", "transfer=layerwise"), "given twice"),
    ],
)
def test_options_that_contradict_each_other_are_refused(spec, options, message):
    code, output = invoke(spec, *options)
    assert code == 2
    assert message in output
