"""Cells on disk, what makes one another one, estimates and progress."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import DEFINITION, SPEC, of_any_version

from commands.sweep import compute
from experiments.schema.spec import load
from inputs.plugin_file import file_of
from outputs.terminal import Terminal
from results.records.artifacts import ArtifactError, _check_name
from sweeps.axes import SweepError, parse_axes
from sweeps.cell import Cell, CellError, plain, run_cell
from sweeps.execute import unfinished
from sweeps.grid import GridDirectory, cells_of
from sweeps.intervals import estimate
from sweeps.progress import GridProgress, duration


def test_every_fabric_and_seed_of_every_point_is_a_cell_of_its_own(spec):
    cells = cells_of(spec, parse_axes(["transfer=pull,layerwise"]))
    assert len(cells) == len({cell.digest for cell in cells}) == len({cell.path for cell in cells}) == 8
    alone = yaml.safe_load(cells[0].config)
    assert ([fabric["name"] for fabric in alone["fabrics"]], alone["seeds"]) == (["ecmp"], [1])


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_key_and_no_value_leads_out_of_a_grid_s_directory(key, value):
    where, cell = Path(Cell(((key, value),), "ecmp", 1, "").path).parts
    assert where not in ("", ".", "..")
    assert cell.startswith("ecmp-seed1-")
    assert len(where) <= 80


@given(st.text(max_size=200))
def test_whatever_an_experiment_file_is_called_its_grid_has_a_name(name):
    _check_name(f"sweep-{plain(name)}")


def test_a_cell_is_finished_once_its_last_file_is_there_and_is_not_computed_again(spec, tmp_path):
    cells = of_any_version(cells_of(spec, [], sets=["seeds=[1]"]))
    directory = GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / "grid")
    for cell in cells:
        directory.keep(cell, run_cell(cell))
    assert unfinished(cells, directory) == []
    place = directory.path / "cells" / cells[0].path
    assert (place / "ecmp" / "seed1" / "requests.csv").is_file()
    (place / "cell.json").unlink()  # as if the sweep had been killed a moment earlier
    assert unfinished(cells, directory) == [cells[0]]
    (place / "cell.json").write_text(json.dumps({"digest": "of another"}))
    assert unfinished(cells, directory) == [cells[0]]
    assert unfinished(cells_of(spec, [], sets=["seeds=[1]", "transfer=layerwise"]), directory)


def test_a_directory_goes_on_with_its_own_grid_only(tmp_path):
    GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / "grid")
    GridDirectory.create_or_resume("sweep", dict(DEFINITION), tmp_path / "grid")
    with pytest.raises(SweepError, match="another version of the code"):
        GridDirectory.create_or_resume("sweep", DEFINITION | {"source": "t"}, tmp_path / "grid")
    with pytest.raises(SweepError, match="another grid"):
        GridDirectory.create_or_resume("sweep", DEFINITION | {"grid": "h"}, tmp_path / "grid")


def test_a_worker_of_another_version_is_refused(spec):
    [cell, *_] = cells_of(spec, [])
    with pytest.raises(CellError, match="another version of the code"):
        run_cell(replace(cell, source="0" * 16))


def test_a_file_that_a_worker_sends_outside_its_cell_is_refused(spec, tmp_path):
    [cell, *_] = of_any_version(cells_of(spec, []))
    directory = GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / "grid")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../../outside", "x")
    with pytest.raises(SweepError, match="outside its cell"):
        directory.keep(cell, replace(run_cell(cell), files=buffer.getvalue()))
    assert not list(tmp_path.rglob("outside"))


def traced(spec: Path, requests: int) -> Path:
    """The experiment with one tenant that replays a trace of so many requests within 40 s."""
    rows = [
        {"timestamp": 40_000 * i // requests, "input_length": 1024, "output_length": 1, "hash_ids": [2 * i, 2 * i + 1]}
        for i in range(requests)
    ]
    (spec.parent / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = yaml.safe_load(SPEC)
    data["workload"]["tenants"] = [{"name": "agentic", "source": "mooncake", "path": "trace.jsonl", "offset_s": 1}]
    spec.write_text(yaml.safe_dump(data))
    return spec


def test_a_cell_is_another_one_when_a_trace_has_changed_and_a_worker_that_has_read_it_reads_it_again(spec):
    found = []
    for requests in (40, 80):
        [cell, *_] = of_any_version(cells_of(traced(spec, requests), [], keep="figures"))
        found.append((cell.digest, run_cell(cell).figures["summary"]["requests"]["offered"]))
    assert found[0][0] != found[1][0]
    assert found[0][1] < found[1][1]
    traced(spec, 50)
    with pytest.raises(CellError, match=r"trace\.jsonl is not what it was when the sweep began"):
        run_cell(cell)


def test_a_rule_of_one_s_own_is_part_of_the_digest(spec):
    rule = spec.parent / "rule_of_a_sweep.py"
    rule.write_text(
        "class First:\n    def choose(self, demand, candidates, now_s):\n        return candidates[0].decode\n"
    )
    sets = ["fabrics.1.decode_choice=rule_of_a_sweep:First"]
    before = cells_of(spec, [], sets=sets)
    assert [[name for name, _ in cell.reads] for cell in before[:2]] == [[], ["rule_of_a_sweep.py"]]
    rule.write_text(rule.read_text() + "\n# edited\n")
    after = cells_of(spec, [], sets=sets)
    assert [a.digest == b.digest for a, b in zip(after, before, strict=True)] == [True, False] * 2


def test_a_rule_of_one_s_own_goes_with_its_cell_and_comes_back_with_its_artifacts(spec, tmp_path):
    """A worker of another machine has no such file; nor has this one any more."""
    rule = spec.parent / "rule_of_a_sweep.py"
    rule.write_text("raise SystemExit(0)\n")
    [*_, cell] = of_any_version(cells_of(spec, [], sets=["seeds=[1]"], refusals=lambda experiment: []))
    with pytest.raises(SweepError, match=r"rule_of_a_sweep.py:1: SystemExit: 0"):
        cells_of(spec, [], sets=["fabrics.1.decode_choice=rule_of_a_sweep:Last"])
    body = "class Last:\n    def choose(self, demand, candidates, now_s):\n        return {}\n"
    summaries = []
    one = "workload.tenants=[{name: agentic, source: synthetic-agentic, load: 0.6}]"  # of both decode instances
    sets = ["seeds=[1]", one, "fabrics.1.decode_choice=rule_of_a_sweep:Last"]
    for answer in ("candidates[-1].decode", "candidates[0].decode"):
        rule.write_text(body.format(answer))
        [*_, cell] = of_any_version(cells_of(spec, [], sets=sets))
        rule.unlink()
        done = run_cell(cell)
        summaries.append(done.figures["summary"]["accounting"])
        directory = GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / answer)
        directory.keep(cell, done)
        config = directory.path / "cells" / cell.path / "config.yaml"
        [path] = map(file_of, load(config).plugins.values())
        assert path.read_text() == body.format(answer)
        assert path.parent.parent == config.parent
    assert summaries[0] != summaries[1]
    rule.write_text(body.format("sys.exit(0)").replace("class", "import sys\nclass"))
    [*_, cell] = of_any_version(cells_of(spec, [], sets=sets))
    with pytest.raises(CellError, match=r"decode choice .*rule_of_a_sweep.py:Last failed(?s:.*)SystemExit: 0"):
        run_cell(cell)


def test_a_disk_that_takes_no_more_ends_a_grid_and_says_how_to_go_on(spec, tmp_path, capsys):
    cells = of_any_version(cells_of(spec, [], sets=["seeds=[1]"], keep="figures"))
    directory = GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / "grid")
    (directory.path / "cells").write_text("")  # where no folder can be made any more
    with pytest.raises(ArtifactError, match="cannot make"):
        directory.keep(cells[0], run_cell(cells[0]))
    with pytest.raises(typer.Exit) as ended:
        compute(cells, directory, Terminal(file=io.StringIO()), "sweep", workers=1)
    assert ended.value.exit_code == 1
    said = capsys.readouterr().err
    assert "cannot make" in said
    assert f"0 of 2 cells are finished in {directory.path}; the same command with --artifact-dir" in said


def test_estimates_are_student_s_and_one_window_says_nothing_of_the_spread():
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found is not None
    assert found.mean == 3.0
    assert found.half_width == pytest.approx(2.776 * (2.5 / 5) ** 0.5)
    alone = estimate([2.0])
    assert alone is not None
    assert alone.half_width is None
    assert estimate([]) is None


def test_the_time_left_follows_from_the_rate_so_far(spec):
    now_s = [0.0]
    progress = GridProgress("sweep", console=Terminal(file=io.StringIO()), clock=lambda: now_s[0])
    cells = cells_of(spec, [])
    with progress:
        progress.start(10, 4)
        assert progress.left_s is None
        now_s[0] = 20.0
        progress.finished(cells[0], 20.0)
        progress.failed(cells[1], "why")
        assert progress.left_s == pytest.approx(40.0)  # two in 20 s, four left
    assert duration(3_725) == "1 h 02 min"
