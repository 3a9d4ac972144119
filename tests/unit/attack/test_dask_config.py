"""No configuration of Dask that a user has reaches workers of this machine; for a cluster it is read, or refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plugin_cases import heliograph

from sweeps import dask_config
from sweeps.workers import workers

PLANTED = "{preload: [planted]}"
PRELOAD = f"distributed: {{worker: {PLANTED}, nanny: {PLANTED}, scheduler: {PLANTED}, client: {PLANTED}}}\n"
BROKEN = "distributed:\n  worker: [broken\n"


def places(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that Dask would read."""
    found = []
    for variable, below in (("DASK_ROOT_CONFIG", ""), ("DASK_CONFIG", ""), ("HOME", ".config/dask")):
        (folder / variable / below).mkdir(parents=True)
        found.append(folder / variable / below / "dask.yaml")
        monkeypatch.setenv(variable, str(folder / variable))
    return found


@pytest.mark.parametrize("text", [PRELOAD, BROKEN])
def test_neither_code_nor_what_is_broken_reaches_workers_of_this_machine(spec, tmp_path, monkeypatch, text):
    for path in places(tmp_path / "places", monkeypatch):
        path.write_text(text)
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__PRELOAD", "planted")
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME", "nonsense")
    words = ("--set", "seeds=[1]", "--set", "workload.window_s=5", "--workers", "1")
    done = heliograph("sweep", spec, *words, "--artifact-dir", tmp_path / "grid", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "grid").rglob("cell.json"))) == 2
    # a file that is broken is named in one line
    assert done.stderr.count("\n") == (1 if text is BROKEN else 0), done.stderr
    assert ("dask.yaml" in done.stderr) == (text is BROKEN)


@pytest.mark.parametrize("text", [BROKEN, "- a list\n", "\0", "x: !!python/object:os.system {}\n"])
@pytest.mark.parametrize("place", range(3))
def test_what_cannot_be_read_is_named_and_left_alone(tmp_path, monkeypatch, place, text):
    path = places(tmp_path / "places", monkeypatch)[place]
    path.write_text(text)
    before, said = dict(os.environ), []
    (tmp_path / "empty").mkdir()
    with dask_config.ours(tmp_path / "empty", said.append) as variables:
        assert variables == {"HOME": before["HOME"]}
        assert os.environ["HOME"] == os.environ["DASK_ROOT_CONFIG"] == str(tmp_path / "empty")
        assert "DASK_CONFIG" not in os.environ
    assert os.environ == before
    assert len(said) == 1
    assert str(path) in said[0]
    assert "\n" not in said[0]


def test_a_worker_s_own_variables_are_the_user_s_again(monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__PRELOAD", "planted")
    before = os.environ["HOME"]
    with workers(1) as client:
        [home] = client.run(lambda: __import__("os").environ["HOME"]).values()
    assert home == before == os.environ["HOME"]
    assert os.environ["DASK_DISTRIBUTED__WORKER__PRELOAD"] == "planted"


def test_a_configuration_that_cannot_be_read_for_a_cluster_is_one_line(tmp_path, monkeypatch, spec):
    (tmp_path / "dask.yaml").write_text(BROKEN)
    monkeypatch.setenv("DASK_CONFIG", str(tmp_path))
    done = heliograph("sweep", spec, "--scheduler", "tcp://127.0.0.1:1", "--artifact-dir", tmp_path / "g", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert str(tmp_path / "dask.yaml") in done.stderr
