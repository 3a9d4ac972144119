"""The scratch folder of a sweep that was killed: the next one or `clean` removes it, and nothing else."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from plugin_cases import ROOT

from sweeps import scratch
from sweeps.axes import SweepError

HOLDER = "from sweeps import scratch\nwith scratch.folder() as path:\n    print(path, flush=True)\n    input()\n"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, in this process and those that it starts."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield place
    tempfile.tempdir = None


def ours(removed: list[str], place: Path) -> list[str]:
    """Without what somebody else of this machine had left in /tmp."""
    return [line for line in removed if str(place) in line]


def test_a_live_sweep_s_folder_stays_and_a_killed_one_s_goes(temporary):
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        path = Path(holder.stdout.readline().strip())
        assert path.parent == temporary
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "dask-scratch-space").mkdir()
        assert ours(scratch.remove_left(), temporary) == []
        assert path.is_dir()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert path.is_dir()
    assert ours(scratch.remove_left(), temporary) == [f"directory {path}"]
    assert not path.exists()


def test_a_folder_goes_with_its_sweep(temporary):
    with scratch.folder() as path:
        (path / "file").write_text("x")
    assert list(temporary.iterdir()) == []


def test_links_and_what_belongs_to_others_are_left_alone(temporary, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (temporary / f"{scratch.PREFIX}link").symlink_to(tmp_path / "elsewhere")
    (temporary / f"{scratch.PREFIX}file").write_text("x")
    left = temporary / f"{scratch.PREFIX}left"
    left.mkdir()
    (left / "link").symlink_to(tmp_path / "elsewhere")
    if os.geteuid() == 0:
        (temporary / f"{scratch.PREFIX}theirs").mkdir()
        os.chown(temporary / f"{scratch.PREFIX}theirs", pwd.getpwnam("nobody").pw_uid, -1)
    assert ours(scratch.remove_left(), temporary) == [f"directory {left}"]
    assert (tmp_path / "elsewhere").is_dir()
    assert len(list(temporary.iterdir())) == (3 if os.geteuid() == 0 else 2)


def test_where_no_folder_can_be_made_it_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(SweepError, match="set TMPDIR to a place with room"), scratch.folder():
        pass


def test_clean_removes_it_without_root_too(temporary, monkeypatch):
    from typer.testing import CliRunner

    import cli

    (temporary / f"{scratch.PREFIX}left").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    done = CliRunner().invoke(cli.app, ["clean"])
    assert done.exit_code == 0, done.output
    assert f"removed directory {temporary}/{scratch.PREFIX}left" in " ".join(done.output.split())
    assert not list(temporary.iterdir())
