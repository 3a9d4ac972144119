"""Files that root writes where others may write too: no link is followed, no name can be foreseen, no mode is lax."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cli
from outputs import files, place
from outputs.files import make_directory, write_whole
from results.records.artifacts import ArtifactError, RunDirectory, write_text
from sweeps.grid import GridDirectory

#: Nobody: a user that is neither root nor the owner of the checkout.
MALLORY = 65534
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_link_in_the_place_of_a_file_is_replaced_and_its_target_untouched(tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text("root's")
    (tmp_path / "summary.json").symlink_to(tmp_path / "shadow")
    write_whole(tmp_path / "summary.json", b"{}")
    assert (tmp_path / "shadow").read_text() == "root's"
    assert not (tmp_path / "summary.json").is_symlink()


def test_links_at_every_name_that_was_used_before_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever foresees the temporary name can have any file of root's overwritten."""
    names: list[str] = []
    real = os.open

    def noted(path: str, *more: int) -> int:
        names.append(str(path))
        return real(path, *more)

    monkeypatch.setattr(os, "open", noted)
    write_whole(tmp_path / "a.json", b"1")
    write_whole(tmp_path / "a.json", b"2")
    assert len({*names}) == len(names) == 2
    assert all(str(os.getpid()) not in Path(name).name for name in names)


def test_a_link_at_the_temporary_name_is_an_error_and_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shadow").write_text("root's")
    monkeypatch.setattr(files.secrets, "token_hex", lambda count: "foreseen")
    (tmp_path / ".foreseen.tmp").symlink_to(tmp_path / "shadow")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "a.json", b"mallory's")
    assert (tmp_path / "shadow").read_text() == "root's"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_modes_are_the_same_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        run = RunDirectory.create("x", artifact_dir=tmp_path / "a" / "b")
        written = write_text(run.fabric_path("ecmp", 1) / "x.json", "{}")
    assert [mode(path) for path in (tmp_path / "a", tmp_path / "a/b", written.parent)] == [0o755] * 3
    assert mode(written) == 0o644


@root
@pytest.mark.parametrize("what", ["a directory", "one above it", "a link on the way"])
def test_what_belongs_to_somebody_else_is_refused_to_root(tmp_path: Path, what: str) -> None:
    theirs = tmp_path / "theirs"
    if what == "a link on the way":
        (tmp_path / "ours").mkdir()
        theirs.symlink_to(tmp_path / "ours")
    else:
        theirs.mkdir()
    os.chown(theirs, MALLORY, MALLORY, follow_symlinks=False)
    results = theirs if what == "a directory" else theirs / "results"
    with pytest.raises(
        ArtifactError, match=r"theirs(: it belongs to nobody| is a link of somebody else's), .*choose a place"
    ):
        RunDirectory.create("x", artifact_dir=results)
    with pytest.raises(ArtifactError, match="theirs"):
        GridDirectory.create_or_resume("x", {}, results)
    with pytest.raises(PermissionError):
        write_whole(theirs / "x.json", b"")
    with pytest.raises(PermissionError):
        make_directory(theirs / "x")
    assert os.listdir(theirs) == []


@root
@pytest.mark.parametrize(("lax", "who"), [(0o777, "everybody"), (0o775, "the group nogroup")])
def test_what_somebody_else_may_write_is_refused_to_root(tmp_path: Path, lax: int, who: str) -> None:
    (tmp_path / "lax").mkdir()
    os.chown(tmp_path / "lax", 0, MALLORY)
    (tmp_path / "lax").chmod(lax)
    for results in (tmp_path / "lax", tmp_path / "lax" / "results"):
        with pytest.raises(ArtifactError, match=rf"lax: {who} may write to it, and root .*chmod go-w"):
            RunDirectory.create("x", artifact_dir=results)


@root
def test_below_a_sticky_directory_ours_is_ours_but_not_in_it(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    with pytest.raises(ArtifactError, match="everybody may write to it"):
        RunDirectory.create("x", artifact_dir=tmp_path / "tmp")
    assert RunDirectory.create("x", artifact_dir=tmp_path / "tmp" / "results").path.is_dir()


@root
def test_the_user_behind_sudo_and_a_declared_share_are_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", MALLORY, MALLORY)
    with monkeypatch.context() as patch:
        patch.setenv("SUDO_UID", str(MALLORY))
        assert RunDirectory.create("x", artifact_dir=tmp_path / "theirs" / "a").path.is_dir()
    shares = tmp_path / "shares"
    shares.write_text(f"{tmp_path / 'theirs'}\n")
    monkeypatch.setattr(place, "SHARES", shares)
    assert RunDirectory.create("x", artifact_dir=tmp_path / "theirs" / "b").path.is_dir()
    os.chown(shares, MALLORY, MALLORY)  # who could write that file could declare anything
    with pytest.raises(ArtifactError, match="theirs"):
        RunDirectory.create("x", artifact_dir=tmp_path / "theirs" / "c")


@root
def test_a_command_refuses_before_it_computes(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", MALLORY, MALLORY)
    experiment = Path(__file__).parents[2] / "experiments" / "demo.yaml"
    done = CliRunner().invoke(cli.app, ["simulate", str(experiment), "--artifact-dir", str(tmp_path / "theirs" / "x")])
    assert done.exit_code == 2
    assert "it belongs to nobody" in done.stderr
    assert done.stdout == ""


def test_a_path_through_a_link_to_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xe9s"))).mkdir()
    (tmp_path / "plain").symlink_to(os.fsdecode(os.fsencode(tmp_path) + b"/r\xe9s"))
    with pytest.raises(ArtifactError, match=r"not UTF-8.*choose another --artifact-dir"):
        RunDirectory.create("x", artifact_dir=tmp_path / "plain" / "results")


@pytest.mark.parametrize("number", [30, 28, 122, 5])  # EROFS, ENOSPC, EDQUOT, EIO
def test_a_disk_that_takes_nothing_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ArtifactError, match=rf"cannot write {tmp_path}/x.json: {os.strerror(number)}; \w+"):
        write_text(tmp_path / "x.json", "")
    assert os.listdir(tmp_path) == []
