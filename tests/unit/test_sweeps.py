"""Grids: their axes, their cells on disk, and what workers that die, interrupts and other versions do to them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import typer
import yaml
from distributed import Client
from rich.console import Console
from typer.testing import CliRunner

import cli
from commands.sweep import compute
from results.artifacts import ArtifactError
from sweeps import emulated, inputs
from sweeps import workers as sweep_workers
from sweeps.axes import SweepError, expand, overrides, parse_axes, parse_axis, points
from sweeps.cell import Cell, CellError, run_cell
from sweeps.execute import execute, unfinished
from sweeps.grid import GridDirectory, cells_of
from sweeps.intervals import estimate
from sweeps.progress import GridProgress, duration
from sweeps.table import cells_frame, rows_of
from sweeps.workers import EMULATOR, workers

ROOT = Path(__file__).resolve().parents[2]
SPEC = """
name: small
cluster: {prefill_instances: 2, decode_instances: 2, gpus_per_instance: 1, instances_per_rack: 2, link_gbps: 400}
model: {name: llama-3.1-70b, kv_dtype: bf16, tp: 4}
transfer: pull
workload:
  window_s: 20
  warmup_s: 1
  tenants:
    - {name: agentic, source: synthetic-agentic, share: 0.5, load: 0.6}
    - {name: other, source: synthetic-agentic, share: 0.5, load: 0.6}
fabrics:
  - {name: ecmp, kind: eps, uplinks: 1, routing: ecmp}
  - {name: ocs, kind: ocs, reconfiguration_ms: 25}
seeds: [1, 2]
"""
DEFINITION = {"schema": 1, "grid": "g", "source": "s"}


@pytest.fixture
def spec(tmp_path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path


def of_any_version(cells: list[Cell]) -> list[Cell]:
    """Cells that no worker refuses because the checkout is being edited while the test runs."""
    return [replace(cell, source="") for cell in cells]


def quiet() -> GridProgress:
    return GridProgress("sweep", console=Console(file=io.StringIO()))


def invoke(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, ["sweep", *(str(word) for word in words)])
    return done.exit_code, " ".join(done.output.split())


# -- axes -------------------------------------------------------------------------------------------------------------


def test_an_axis_is_a_key_and_values_and_brackets_hold_commas_together():
    assert parse_axis("transfer=pull,layerwise").values == ("pull", "layerwise")
    assert parse_axis("a.b=[1,2],{c: 3, d: 4}").values == ("[1,2]", "{c: 3, d: 4}")


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
            "with scale.rate_scale=0.000000001: scale.rate_scale: 1e-09 makes a KV link",
        ),
        (("--over", "transfer=pull", "--over", "transfer=layerwise"), "given twice"),
    ],
)
def test_options_that_contradict_each_other_are_refused(spec, options, message):
    code, output = invoke(spec, *options)
    assert code == 2
    assert message in output


# -- cells on disk ----------------------------------------------------------------------------------------------------


def test_every_fabric_and_seed_of_every_point_is_a_cell_of_its_own(spec):
    cells = cells_of(spec, parse_axes(["transfer=pull,layerwise"]))
    assert len(cells) == len({cell.digest for cell in cells}) == len({cell.path for cell in cells}) == 8
    alone = yaml.safe_load(cells[0].config)
    assert ([fabric["name"] for fabric in alone["fabrics"]], alone["seeds"]) == (["ecmp"], [1])


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
    assert [[name for name, _ in cell.inputs] for cell in before[:2]] == [[], ["rule_of_a_sweep"]]
    rule.write_text(rule.read_text() + "\n# edited\n")
    inputs._module_sha256.cache_clear()  # as another process, which imports what is there now
    after = cells_of(spec, [], sets=sets)
    assert [a.digest == b.digest for a, b in zip(after, before, strict=True)] == [True, False] * 2


def test_a_disk_that_takes_no_more_ends_a_grid_and_says_how_to_go_on(spec, tmp_path, capsys):
    cells = of_any_version(cells_of(spec, [], sets=["seeds=[1]"], keep="figures"))
    directory = GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / "grid")
    (directory.path / "cells").write_text("")  # where no folder can be made any more
    with pytest.raises(ArtifactError, match="cannot make"):
        directory.keep(cells[0], run_cell(cells[0]))
    with pytest.raises(typer.Exit) as ended:
        compute(cells, directory, Console(file=io.StringIO()), "sweep", workers=1)
    assert ended.value.exit_code == 1
    said = capsys.readouterr().err
    assert "cannot make" in said
    assert f"0 of 2 cells are finished in {directory.path}; the same command with --artifact-dir" in said


def test_an_emulated_run_ends_with_its_sweep_and_none_begins_after_it(tmp_path):
    ended: list[int] = []
    sleeper = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    thread = threading.Thread(target=lambda: ended.append(emulated.run(sleeper, "this", tmp_path).returncode))
    thread.start()
    while not emulated._running.get("this"):
        time.sleep(0.01)
    asyncio.run(emulated.end("another"))
    assert emulated._running["this"]
    asyncio.run(emulated.end("this"))
    assert not emulated._running["this"]
    thread.join()
    assert ended == [-signal.SIGTERM]
    with pytest.raises(emulated.SweepEnded):
        emulated.run(sleeper, "this", tmp_path)


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
    progress = GridProgress("sweep", console=Console(file=io.StringIO()), clock=lambda: now_s[0])
    cells = cells_of(spec, [])
    with progress:
        progress.start(10, 4)
        assert progress.left_s is None
        now_s[0] = 20.0
        progress.finished(cells[0], 20.0)
        progress.failed(cells[1], "why")
        assert progress.left_s == pytest.approx(40.0)  # two in 20 s, four left
    assert duration(3_725) == "1 h 02 min"


# -- workers ----------------------------------------------------------------------------------------------------------


def listening(process: psutil.Process) -> set[str]:
    found = set()
    for each in [process, *process.children(recursive=True)]:
        found |= {c.laddr.ip for c in each.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN}
    return found


def scratch_folders(client: Client) -> set[Path]:
    """The folders made for a sweep that are on the Python path of its worker processes and of this one."""
    [*of_workers] = client.run(lambda: list(__import__("sys").path)).values()
    paths = [Path(path) for each in (*of_workers, sys.path) for path in each if "dask-scratch-space" in path]
    assert len(paths) > len(of_workers)  # the scheduler's, in this process, too
    return {next(up for up in path.parents if up.name.startswith("heliograph-sweep-")) for path in paths}


def test_a_worker_that_dies_loses_no_finished_cell_and_the_result_is_that_of_no_worker(spec, tmp_path):
    cells = of_any_version(cells_of(spec, parse_axes(["transfer=pull,layerwise"]), sets=["workload.window_s=60"]))
    directory = GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / "grid")
    killed: list[int] = []

    class Killer(GridProgress):
        """Kills a worker as soon as a first cell is finished."""

        def finished(self, cell, wall_s):
            if not killed:
                pids = client.run(os.getpid)
                assert len(set(pids.values())) == 2
                killed.append(next(iter(pids.values())))
                os.kill(killed[0], signal.SIGKILL)
            super().finished(cell, wall_s)

    mine = psutil.Process()
    before = {child.pid for child in mine.children(recursive=True)}
    with workers(2) as client:
        assert listening(mine) <= {"127.0.0.1"}
        scratch = scratch_folders(client)
        assert {path.stat().st_mode & 0o777 for path in scratch} == {0o700}
        done = execute(cells, directory, client, Killer("sweep", console=Console(file=io.StringIO())))
    assert not any(path.exists() for path in scratch)
    assert done.failures == {}
    assert killed
    assert [(each.point, each.fabric, each.seed) for each in done.outcomes] == [
        (cell.point, cell.fabric, cell.seed) for cell in cells
    ]
    left = [child for child in mine.children(recursive=True) if child.pid not in before]
    # what Python's own multiprocessing keeps for the next spawn is no worker
    assert [child for child in left if "resource_tracker" not in " ".join(child.cmdline())] == []
    for cell in cells[::3]:
        with zipfile.ZipFile(io.BytesIO(run_cell(cell).files)) as archive:
            name = f"{cell.fabric}/seed{cell.seed}/requests.csv"
            assert (directory.path / "cells" / cell.path / name).read_bytes() == archive.read(name)
    assert len(rows_of(parse_axes(["transfer=pull,layerwise"]), done.outcomes)) == 4
    assert len(cells_frame(parse_axes(["transfer=pull,layerwise"]), done.outcomes)) == 8


def test_a_cell_that_cannot_be_computed_is_named_and_the_others_go_on(spec, tmp_path):
    cells = of_any_version(cells_of(spec, [], sets=["seeds=[1]"], keep="figures"))
    broken = replace(cells[0], config=cells[0].config.replace("pull", "push"))
    directory = GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / "grid")
    with (
        workers(1) as client,
        pytest.raises(SweepError, match=f"none of its 1 workers offers the resource {EMULATOR}=1"),
    ):
        sweep_workers._refuse_unfit(client, "tcp://x", True)
    with workers(1, emulator=True) as client:
        sweep_workers._refuse_unfit(client, "tcp://x", True)
        done = execute([broken, cells[1]], directory, client, quiet())
    assert [each.fabric for each in done.outcomes] == ["ocs"]
    assert "push" in done.failures[broken.path]


def test_a_scheduler_that_does_not_answer_is_refused(monkeypatch):
    monkeypatch.setattr(sweep_workers, "CONNECT_TIMEOUT_S", 0.5)
    with pytest.raises(SweepError, match="no Dask scheduler answers there"), workers(1, scheduler="tcp://127.0.0.1:1"):
        pass


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the code: its sweep does not see the checkout being edited."""
    path = tmp_path_factory.mktemp("checkout") / "heliograph"
    shutil.copytree(ROOT, path, ignore=shutil.ignore_patterns(".*", "runs", "tests", "docs", "__pycache__"))
    return path


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_sweep_leaves_no_process_and_goes_on_where_it_was(checkout, spec, tmp_path, number, code):
    grid = tmp_path / "grid"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, str(checkout / "cli.py"), "sweep", str(spec), "--set", "workload.window_s=60"]
    command += ["--over", "workload.tenants.*.load=0.3,0.4,0.5,0.6", "--artifact-dir", str(grid), "--keep", "figures"]
    command += ["--workers", "1"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=checkout,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("1/16"):
            break
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # a terminal sends it to every process of the command
    else:
        process.send_signal(number)
    _, errors = process.communicate(timeout=150)
    assert process.returncode == code
    assert "the same command with --artifact-dir" in " ".join(errors.split())
    assert "Traceback" not in errors
    gone_by_s = time.monotonic() + 30
    while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in family):
        assert time.monotonic() < gone_by_s, family
        time.sleep(0.05)
    finished = [json.loads(path.read_text())["digest"] for path in grid.rglob("cell.json")]
    assert 1 <= len(finished) < 16
    assert json.loads((grid / "sweep.json").read_text())["cells"] == 16
    assert list(temporary.iterdir()) == []
