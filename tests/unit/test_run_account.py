"""`summary.json` of a run that ends between its fabrics, or while one is torn down: it does not look finished."""

from __future__ import annotations

import errno
import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emulation.run import fabric_run
from emulation.run.components import PartsFailed
from emulation.run.experiment_run import UNDER_WAY, _Account, _machine_failed
from emulation.run.fabric_run import RunFailed
from experiments.schema.spec import load
from process.interrupts import Interrupted, interruptible
from results.metrics.metrics import summarise
from results.records.artifacts import ArtifactError, RunDirectory
from results.records.schema import CIRCUITS, REQUESTS
from results.records.summary import RunSummary

DEMO = Path(__file__).resolve().parents[2] / "experiments" / "demo.yaml"


class Started:
    """A run of two fabrics, in a directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.directory = RunDirectory.create("demo", artifact_dir=folder)
        self.directory.write_config("name: demo\n")
        fabrics = load(DEMO).fabrics[:2]
        self.account = _Account(self.directory, [(1, fabric) for fabric in fabrics])
        self.first, self.second = (fabric.name for fabric in fabrics)

    def run(self, name: str) -> RunSummary:
        row = {"id": "a-0", "tenant": "a", "arrival_s": 0.0, "new_tokens": 9, "cached_tokens": 9}
        requests = REQUESTS.frame([row | {"status": "unfinished"}])
        self.directory.write_table(name, 1, "requests", requests)
        return summarise(
            requests, CIRCUITS.frame([]), name=name, fabric="eps", seed=1, substrate="emulation",
            prefill_duration_s=lambda new, cached: 1.0, ttft_multiple=5, verdict="valid", reasons=[],
        )  # fmt: skip

    def end(self, name: str, failure: str | None = None) -> None:
        self.account.begins()
        self.account.ended(self.run(name), failure)

    def said(self) -> dict | None:
        return json.loads((self.directory.path / "summary.json").read_text()).get("ended_early")


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return Started(tmp_path / "run")


def ends(started: Started, error: BaseException, failure: str | None = None) -> None:
    """The first fabric ends, and then this happens."""
    with started.account.closing():
        started.end(started.first, failure)
        raise error


def test_at_every_moment_it_says_what_was_not_run_yet(started: Started) -> None:
    with started.account.closing():
        started.end(started.first)
        not_run = [{"fabric": started.second, "seed": 1}]
        assert started.said() == {"fabric": started.first, "seed": 1, "reason": UNDER_WAY, "not_run": not_run}
        started.end(started.second)
    assert started.said() is None


@pytest.mark.parametrize(
    "error", [Interrupted(signal.SIGTERM), RunFailed("no room; make room there"), ArtifactError("no room")]
)
def test_an_end_between_two_fabrics_is_told_with_its_reason_and_a_report(
    started: Started, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        ends(started, error)
    said = started.said()
    assert said is not None
    assert (said["reason"], said["not_run"]) == (str(error), [{"fabric": started.second, "seed": 1}])
    assert (started.directory.path / "report.html").is_file()


def test_the_first_reason_stands(started: Started) -> None:
    with pytest.raises(Interrupted):
        ends(started, Interrupted(signal.SIGINT), failure="agent p0 ended")
    said = started.said()
    assert said is not None
    assert said["reason"] == "agent p0 ended"


class Broken:
    """Parts of which one fails; a signal comes while the reason is looked for."""

    def __init__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        raise PartsFailed("the controller died")

    def explained(self, error: Exception) -> str:
        signal.raise_signal(signal.SIGTERM)
        return str(error)

    def end(self, keep_logs: Path) -> None:
        pass


def test_a_signal_while_a_failure_is_explained_waits_for_the_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric_run, "Parts", Broken)
    monkeypatch.setattr(
        fabric_run, "collect", lambda plan, parts, seen, failure, datapath: SimpleNamespace(why=failure)
    )
    run: Any = fabric_run.FabricRun(
        None, None, "netdev", report=lambda step: None, progress=lambda *_: None, keep_logs=tmp_path
    )  # type: ignore[arg-type]
    written = []

    def until_written() -> None:
        with ExitStack() as shield:
            written.append(run.run(shield).why)

    with interruptible(), pytest.raises(Interrupted):
        until_written()
    assert written == ["the controller died"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EROFS, "mount it for writing"),
        (errno.ENOSPC, "make room there"),
        (errno.ENOENT, "its folder is gone"),
        (errno.EIO, "the disk fails"),
        (errno.ENOMEM, "free some memory"),
        (errno.EMFILE, "raise the limit"),
    ],
)
def test_a_machine_that_fails_under_a_run_ends_it_with_the_place_and_the_remedy(number: int, remedy: str) -> None:
    [fabric] = load(DEMO).fabrics[:1]
    with (
        pytest.raises(RunFailed, match=rf"{fabric.name} ended early: /x: {os.strerror(number)}; {remedy}"),
        _machine_failed(fabric),
    ):
        raise OSError(number, os.strerror(number), "/x")
    with pytest.raises(RunFailed, match="ended early: there is not enough memory"), _machine_failed(fabric):
        raise MemoryError
