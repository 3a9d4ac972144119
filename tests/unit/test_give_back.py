"""What sudo wrote belongs to whoever called sudo, however the command ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from twin_cases import OCS, experiment
from typer.testing import CliRunner

import cli
import emulation.linux.ledger
from commands.shared import give_back, missing
from emulation.doctor.preflight import can_run, capabilities
from emulation.linux.ledger import RunLedger

USER = 54321
DEMO = Path(__file__).resolve().parents[2] / "experiments" / "demo.yaml"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", str(USER))
    monkeypatch.setenv("SUDO_GID", str(USER))


def owners(top: Path) -> set[int]:
    return {path.stat().st_uid for path in (top, *top.rglob("*"))}


def test_directories_that_were_made_for_it_are_given_back_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "there" / "old").mkdir(parents=True)
    wanted = tmp_path / "there" / "new" / "run"
    made = missing(wanted)
    assert made == (wanted, wanted.parent)
    wanted.mkdir(parents=True)
    (wanted / "summary.json").touch()
    give_back(wanted, made)
    assert owners(tmp_path / "there" / "new") == {USER}
    assert {path.stat().st_uid for path in (tmp_path / "there", tmp_path / "there" / "old")} == {os.geteuid()}


def test_what_cannot_be_given_back_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def keeps_no_owners(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / "share").mkdir()
    monkeypatch.setattr("os.chown", keeps_no_owners)
    give_back(tmp_path / "share")
    assert "share stays root's" in capsys.readouterr().err


def test_what_was_removed_meanwhile_is_given_back_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    give_back(tmp_path / "nowhere")
    assert capsys.readouterr().err == ""


def test_a_run_that_could_not_begin_gives_back_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not can_run(capabilities()):
        pytest.skip("this machine cannot run an experiment")
    monkeypatch.setattr(emulation.linux.ledger, "BASE", tmp_path / "ledgers")
    monkeypatch.chdir(tmp_path)
    with RunLedger.open("another", base=tmp_path / "ledgers"):
        done = CliRunner().invoke(cli.app, ["run", str(DEMO), "--artifact-dir", "new/run"])
    assert done.exit_code == 1, done.output
    assert owners(tmp_path / "new") == {USER}


def test_simulate_and_validate_give_back_what_they_write(tmp_path: Path) -> None:
    experiment(tmp_path, OCS, prefill_instances=2, decode_instances=2)
    place = tmp_path / "new" / "out"
    done = CliRunner().invoke(cli.app, ["simulate", str(tmp_path / "case.yaml"), "--artifact-dir", str(place)])
    assert done.exit_code == 0, done.output
    assert owners(tmp_path / "new") == {USER}
    summary = place / "summary.json"
    summary.write_text(summary.read_text().replace('"simulation"', '"emulation"'))
    done = CliRunner().invoke(cli.app, ["validate", "--run", str(place)])
    assert done.exit_code == 0, done.output
    assert (place / "validation.json").stat().st_uid == USER
