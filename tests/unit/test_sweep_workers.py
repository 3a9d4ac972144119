"""What workers that die, interrupts and cells that fail do to a grid."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from distributed import Client
from sweep_cases import DEFINITION, ROOT, of_any_version, quiet

from outputs.terminal import Terminal
from sweeps import cluster, emulated, scratch
from sweeps.axes import SweepError, parse_axes
from sweeps.cell import run_cell
from sweeps.cluster import EMULATOR
from sweeps.execute import execute
from sweeps.grid import GridDirectory, cells_of
from sweeps.progress import GridProgress
from sweeps.table import cells_frame, rows_of
from sweeps.workers import workers


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
        done = execute(cells, directory, client, Killer("sweep", console=Terminal(file=io.StringIO())))
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
        cluster.refuse_unfit("tcp://x", client.scheduler_info(n_workers=-1), True)
    with workers(1, emulator=True) as client:
        cluster.refuse_unfit("tcp://x", client.scheduler_info(n_workers=-1), True)
        done = execute([broken, cells[1]], directory, client, quiet())
    assert [each.fabric for each in done.outcomes] == ["ocs"]
    assert "push" in done.failures[broken.path]


def test_a_scheduler_that_does_not_answer_is_refused(monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 0.5)
    with pytest.raises(SweepError, match="no Dask scheduler answers there"), workers(1, scheduler="tcp://127.0.0.1:1"):
        pass


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the code: its sweep does not see the checkout being edited."""
    path = tmp_path_factory.mktemp("checkout") / "heliograph"
    shutil.copytree(ROOT, path, ignore=shutil.ignore_patterns(".*", "runs", "tests", "docs", "__pycache__"))
    return path


@contextmanager
def under_way(checkout, spec, tmp_path) -> Iterator[tuple[subprocess.Popen, list[psutil.Process]]]:
    """A sweep of 16 cells of which one is finished, with temporary files of its own, and the processes it has begun."""
    grid, temporary = tmp_path / "grid", tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, str(checkout / "cli.py"), "sweep", str(spec), "--set", "workload.window_s=60"]
    command += ["--over", "workload.tenants.*.load=0.3,0.4,0.5,0.6", "--artifact-dir", str(grid), "--keep", "figures"]
    command += ["--workers", "1"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=checkout,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("1/16"):
                break
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        yield process, family
    gone_by_s = time.monotonic() + 60
    while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in family):
        assert time.monotonic() < gone_by_s, family
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "times"),
    [(signal.SIGINT, 1), (signal.SIGINT, 6), (signal.SIGTERM, 1), (signal.SIGHUP, 1), (signal.SIGQUIT, 3)],
)
def test_an_interrupted_sweep_leaves_no_process_and_goes_on_where_it_was(checkout, spec, tmp_path, number, times):
    with under_way(checkout, spec, tmp_path) as (process, _):
        for _ in range(times):
            if number == signal.SIGTERM:
                process.send_signal(number)
            else:
                os.killpg(process.pid, number)  # a terminal sends it to every process of the command
            time.sleep(0.05)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert "the same command with --artifact-dir" in " ".join(errors.split())
    assert errors.count("\n") == 1, errors
    grid, temporary = tmp_path / "grid", tmp_path / "temporary"
    finished = [json.loads(path.read_text())["digest"] for path in grid.rglob("cell.json")]
    assert 1 <= len(finished) < 16
    assert json.loads((grid / "sweep.json").read_text())["cells"] == 16
    assert list(temporary.iterdir()) == []


def test_what_a_killed_sweep_has_left_the_next_one_removes(checkout, spec, tmp_path, monkeypatch):
    with under_way(checkout, spec, tmp_path) as (process, _):
        process.kill()
        process.communicate(timeout=300)
    [left] = [path for path in (tmp_path / "temporary").iterdir() if path.name.startswith(scratch.PREFIX)]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert f"directory {left}" in scratch.remove_left()
    assert list((tmp_path / "temporary").iterdir()) == []
