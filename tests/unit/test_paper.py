"""The source paper's figures as data: closed form matches, every measure names cells that its grids have, and how both
sides are compared."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import cli
from paper import plan
from paper.exact import EXACT
from paper.measure import measured
from paper.rows import Found, PairedFigure, Published, Row, Unit, read_rows, reproduces
from sweeps.axes import parse_axes, points
from sweeps.grid import Outcome
from sweeps.intervals import Estimate

ROWS = {row.id: row for row in read_rows()}
PARTS = {part.name: part for part in plan.PARTS}


@lru_cache
def data_of(name: str) -> dict:
    return yaml.safe_load((plan.EXPERIMENTS / f"{name}.yaml").read_text())


def of(value: float, half_width: float | None = None) -> Found:
    return Found({"": Estimate(value, half_width, 5)})


def row(unit: Unit = "percent", **published: str) -> Row:
    measure = PairedFigure(part=["x"], figure="f", of="a")
    return Row(id="r", figure="3b", what="w", unit=unit, published=Published(**published), source="s", measure=measure)


# -- the data ---------------------------------------------------------------------------------------------------------


def test_every_row_is_closed_form_or_measured_and_every_closed_form_is_a_row():
    assert {row.id for row in ROWS.values() if row.measure is None} == set(EXACT)
    assert all(row.source for row in ROWS.values())


@pytest.mark.parametrize("name", sorted(EXACT))
def test_closed_form_figures_match_to_the_digits_printed(name):
    found = measured(ROWS[name], {}, {})
    # 67 ms is not what the published medians give (52.0); nobody can derive it from them
    assert reproduces(ROWS[name], found) == ("no" if name == "added-at-half" else "yes")


def test_every_measure_names_points_and_fabrics_that_its_grids_have():
    for row in ROWS.values():
        if row.measure is None:
            continue
        for name in row.measure.part:
            part = PARTS[name]
            fabrics = {fabric["name"] for fabric in data_of(part.file)["fabrics"]}
            kept = set(part.fabrics) or fabrics
            other = [row.measure.minus] + ([row.measure.over] if isinstance(row.measure.over, str) else [])
            assert {row.measure.of, *filter(None, other)} <= kept <= fabrics, row.id
            grid = [dict(point) for point in points(parse_axes(part.over))]
            assert any(row.measure.where.items() <= point.items() for point in grid), row.id
            assert part.figure == row.figure or (part.figure, row.figure) == ("3b", "migrated"), row.id


def test_the_quick_form_has_points_and_fabrics_of_the_files():
    for part in plan.parts_of([], quick=True):
        fabrics = {fabric["name"] for fabric in data_of(part.file)["fabrics"]}
        assert set(part.quick_fabrics) <= fabrics
        assert {point for point in points(parse_axes(part.quick_over or ()))}


def test_the_files_agree_on_the_setting():
    names = ["fig3b-128-25", "fig3b-128-50", "migrated-share", "affinity", "fig4b", "fig4c"]
    first = data_of(names[0])
    assert first["seeds"] == [1, 2, 3, 4, 5]
    assert first["workload"]["window_s"] == 330
    for name in names:
        data = data_of(name)
        if name == "affinity":  # every decode within reach of every prefill
            data = data | {"cluster": data["cluster"] | {"gpus_per_node": 8}}
        for key in ("cluster", "model", "prefill", "slo", "seeds"):
            assert data[key] == first[key], (name, key)
        tenants = {tenant["name"]: tenant for tenant in data["workload"]["tenants"]}
        assert sum(tenant["share"] for tenant in tenants.values()) == 1
        assert {tenant["load"] for tenant in tenants.values()} == {0.6}
        # prefill and decode 1:1, and every tenant's instances even on both halves of the nodes
        instances = data["cluster"]["prefill_instances"]
        assert instances == data["cluster"]["decode_instances"]
        assert all(tenant["share"] * instances % 2 == 0 for tenant in tenants.values()), name
    gpus = {name: data_of(name)["cluster"] for name in ("fig3b-256-25", "fig3b-256-50")}
    assert {2 * each["prefill_instances"] * each["gpus_per_instance"] for each in gpus.values()} == {256}


# -- the comparison ---------------------------------------------------------------------------------------------------


def outcome(fabric: str, seed: int, value: float | None, point: tuple = ()) -> Outcome:
    return Outcome(point, fabric, seed, {}, {"agentic": {"f": value}})


def test_a_difference_is_paired_by_window_and_a_window_without_its_pair_does_not_count():
    row_ = row("points", low="1", high="2").model_copy(
        update={"measure": PairedFigure(part=["x"], figure="f", of="a", minus="b")}
    )
    cells = [outcome("a", seed, value) for seed, value in ((1, 0.80), (2, 0.90), (3, 0.5))]
    cells += [outcome("b", seed, value) for seed, value in ((1, 0.79), (2, 0.87))]
    [found] = measured(row_, {"x": cells}, {"x": cells}).by_point.values()
    assert found.n == 2
    assert found.mean == pytest.approx(2.0)
    assert found.half_width == pytest.approx(12.706 * 1.0)  # 1 and 3 points: deviation sqrt(2) over sqrt(2)


def test_relative_to_the_same_fabric_at_another_point():
    measure = PairedFigure(part=["x"], where={"e": "0.1"}, figure="f", of="a", over={"e": "0"})
    row_ = row(value="50").model_copy(update={"measure": measure})
    cells = [outcome("a", 1, 2.0, (("e", "0"),)), outcome("a", 1, 3.0, (("e", "0.1"),))]
    found = measured(row_, {"x": cells}, {"x": cells})
    assert [each.mean for each in found.by_point.values()] == [pytest.approx(50.0)]


def test_a_distance_is_of_the_means_and_drops_the_sign():
    measure = PairedFigure(part=["x"], figure="f", of="a", minus="b", distance=True)
    row_ = row("points", at_most="1").model_copy(update={"measure": measure})
    cells = [outcome("a", 1, 0.50), outcome("b", 1, 0.53), outcome("a", 2, 0.51), outcome("b", 2, 0.50)]
    [found] = measured(row_, {"x": cells}, {"x": cells}).by_point.values()
    assert found.mean == pytest.approx(1.0)  # -3 and +1 points


def test_a_point_whose_windows_are_all_missing_is_said_and_not_counted():
    cells = [outcome("a", 1, None), outcome("a", 2, None)]
    found = measured(row(value="1"), {"x": cells}, {"x": cells})
    assert (found.by_point, found.missing) == ({}, 1)
    assert reproduces(row(value="1"), found) == "not measured"


def test_points_without_all_their_planned_windows_are_incomplete():
    planned = [outcome("a", seed, 0.0, point) for point in ((("e", "0"),), (("e", "1"),)) for seed in (1, 2)]
    whole, half = planned[:2], planned[:1]
    row_ = row("points", value="0")
    assert reproduces(row_, measured(row_, {"x": whole}, {"x": whole})) == "yes"
    for there, incomplete in ((whole, 1), (half, 2)):  # the second point has no cell at all
        found = measured(row_, {"x": planned}, {"x": there})
        assert (len(found.by_point), found.missing, reproduces(row_, found)) == (1, incomplete, "partly")
    nothing = measured(row_, {"x": planned}, {"x": []})
    assert (nothing.missing, reproduces(row_, nothing)) == (2, "not measured")


def test_published_values_keep_the_digits_they_are_printed_with():
    assert ROWS["4a-admission"].published.text == "0.00"
    assert ROWS["kv-bytes-per-token"].published.text == "327,680"
    assert ROWS["3b-pull-2to1"].published.text == "3.4 to 6.6"


@pytest.mark.parametrize(
    ("published", "found", "verdict"),
    [
        ({"value": "85"}, of(85.4), "yes"),  # 85 is printed to the unit
        ({"value": "85"}, of(84.0), "no"),
        ({"value": "85"}, of(84.0, 0.6), "yes"),
        ({"low": "3.4", "high": "6.6"}, of(6.7), "no"),
        ({"low": "3.4", "high": "6.6"}, of(6.7, 0.2), "yes"),
        ({"at_most": "0.4"}, of(0.5), "no"),
        ({"at_most": "0.4"}, of(0.5, 0.2), "yes"),
        ({"at_least": "1.5"}, of(1.4), "no"),
        ({"value": "0.0"}, of(0.3), "no"),  # printed to the tenth, which a number of nought would not say
        ({"value": "0.0"}, of(0.04), "yes"),
        ({"low": "1", "high": "2"}, Found({"a": Estimate(1.5, None, 1), "b": Estimate(3, None, 1)}), "partly"),
        ({"low": "1", "high": "2"}, Found({}), "not measured"),
        ({"low": "1", "high": "2"}, Found({"a": Estimate(1.5, None, 1)}, missing=1), "partly"),
        ({"low": "1", "high": "2"}, Found({"a": Estimate(3, None, 1)}, missing=1), "no"),
    ],
)
def test_what_counts_as_reproduced(published, found, verdict):
    assert reproduces(row(**published), found) == verdict


# -- the command ------------------------------------------------------------------------------------------------------


def invoke(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, ["paper", *(str(word) for word in words)])
    return done.exit_code, " ".join(done.output.split())


def test_closed_form_rows_need_no_grid_and_leave_their_table(tmp_path):
    code, output = invoke("--figure", "3c", "--figure", "table1", "--artifact-dir", tmp_path / "out")
    assert code == 0, output
    document = json.loads((tmp_path / "out" / "paper.json").read_text())
    assert {entry["reproduces"] for entry in document["rows"]} == {"yes"}
    assert {entry["figure"] for entry in document["rows"]} == {"3c", "table1"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "OCS FR4 / EPS 2:1" in page
    assert "closed form only" in page
    units = {entry["id"]: entry["unit"] for entry in document["rows"]}
    assert (units["reach"], units["worst-loss"], units["power-ocs"]) == ("GPUs", "dB", "W")
    assert len((tmp_path / "out" / "paper.csv").read_text().splitlines()) == 1 + len(document["rows"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--figure", "9z"), "none of the paper's"),
        (("--figure", "3b", "--traces", "/nowhere"), "docs/measurements/paper.md says where they are published"),
        (("--workers", 2, "--scheduler", "tcp://127.0.0.1:1"), "leave one out"),
    ],
)
def test_what_cannot_be_is_refused(words, message):
    code, output = invoke(*words)
    assert code == 2
    assert message in output
    assert "Traceback" not in output


@pytest.mark.parametrize("part", plan.PARTS, ids=lambda part: part.name)
def test_every_grid_loads_and_its_quick_form_is_smaller(part, tmp_path):
    for name in plan._wanted():  # that a trace is there is checked, what is in it only where it is replayed
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    quick = [] if part.quick_over is None else plan.cells(part, tmp_path, quick=True)
    whole = plan.cells(replace(part, over=part.over[:1]), tmp_path, quick=False)
    assert whole
    assert len({cell.seed for cell in whole}) == (1 if part.name == "fig4a" else 5)
    assert {cell.fabric for cell in quick} <= {cell.fabric for cell in whole}
    assert {cell.keep for cell in [*quick, *whole]} == {"figures"}
    assert len({cell.seed for cell in quick}) in (0, 1, 3)
    if part.name == "fig4a":
        assert plan.form({part.name: whole}) == "4a: one window of 6 s"
    elif part.name == "fig4b":
        assert plan.form({part.name: whole}) == "4b: 5 paired windows of 330 s"


def test_the_paper_s_traces_are_found_where_they_are_said_to_be(tmp_path, monkeypatch):
    for name in plan._wanted():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert plan.find_traces(tmp_path) == tmp_path
    monkeypatch.setenv("HELIOGRAPH_TRACES", str(tmp_path))
    assert plan.find_traces(None) == tmp_path
    sets = plan._trace_paths(Path(plan.EXPERIMENTS / "fig4b.yaml"), tmp_path)
    assert all(Path(each.partition("=")[2]).is_file() for each in sets)
    assert len(sets) == 3
