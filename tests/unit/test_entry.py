"""The way in and out: what no command can do anything about is one line and a status, and never a traceback."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from full_disk import files_end_at
from typer.testing import CliRunner

import cli

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    ["cost"],
    ["link-budget"],
    ["cost", "--json"],
    ["--help"],
    ["run", "--help"],
    ["run", str(ROOT / "experiments/demo.yaml"), "--dry-run"],
    ["sweep", str(ROOT / "experiments/demo.yaml"), "--dry-run"],
    ["paper", "--quick", "--figure", "3a", "--dry-run"],
]


def call(
    *arguments: str | bytes, stdout: int = subprocess.PIPE, prepare: Callable[[], None] | None = None, **more: object
) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(ROOT / "cli.py"), *arguments]
    return subprocess.run(
        words, stdout=stdout, stderr=subprocess.PIPE, encoding="utf-8", preexec_fn=prepare, timeout=120, **more
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("heliograph: ")
    assert done.stderr[:-1].isprintable()
    return done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_output_that_is_full_is_one_line_and_a_failure(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = call(*command, stdout=full.fileno())
    assert done.returncode == 1
    assert "standard output cannot be written (No space left on device)" in one_line(done)


@pytest.mark.parametrize("command", [["cost"], ["--help"]], ids=" ".join)
def test_a_reader_that_has_gone_is_one_line_and_a_failure(command: list[str]) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    done = call(*command, stdout=writable)
    os.close(writable)
    assert done.returncode == 1
    assert "standard output cannot be written (Broken pipe)" in one_line(done)


def test_a_closed_output_is_found_before_anything_is_done(tmp_path: Path) -> None:
    experiment = str(ROOT / "experiments/demo.yaml")
    done = call("simulate", experiment, "--artifact-dir", str(tmp_path / "x"), prepare=lambda: os.close(1))
    assert done.returncode == 1
    assert "standard output is closed" in one_line(done)
    assert not (tmp_path / "x").exists()


def test_what_a_command_does_is_done_though_nobody_reads_it(tmp_path: Path) -> None:
    csv = tmp_path / "m.csv"
    rows = [(new, cached, 10 + new / 50 + new * cached / 1e6) for new in (100, 500, 2000) for cached in (0, 9000)]
    csv.write_text("new,cached,ms\n" + "".join(f"{new},{cached},{ms}\n" for new, cached, ms in rows))
    with open("/dev/full", "w") as full:
        done = call("fit", str(csv), "--tp", "4", stdout=full.fileno())
    assert done.returncode == 1
    assert (tmp_path / "m.yaml").exists()


@pytest.mark.parametrize("closed", [True, False])
def test_errors_that_cannot_be_written_change_no_status(tmp_path: Path, closed: bool) -> None:
    """And no file of ours gets the number of a closed stream."""

    def prepare() -> None:
        os.close(0)
        if closed:
            os.close(2)
        else:
            os.dup2(os.open("/dev/full", os.O_WRONLY), 2)

    assert call("cost", prepare=prepare).returncode == 0
    refused = call("trace", str(tmp_path / "none.csv"), prepare=prepare)
    assert (refused.returncode, refused.stdout) == (2, "")


def test_a_refusal_keeps_its_status_where_the_output_is_full() -> None:
    with open("/dev/full", "w") as full:
        assert call("cost", "--gpus", "100", stdout=full.fileno()).returncode == 2


@pytest.mark.parametrize("argument", ["a\x1b[31mb", "a\nb", "\x9b", "a\rb", "x\x7f", "a\u2028b"])
@pytest.mark.parametrize("command", [["trace"], ["simulate"], ["report"], ["cost", "--book"], ["run", "--replay"], []])
def test_an_argument_that_steers_a_terminal_is_refused_and_not_repeated(command: list[str], argument: str) -> None:
    done = call(*command, argument)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has a control character" in one_line(done)


@pytest.mark.parametrize("command", [["trace"], ["simulate"], ["report"], ["cost", "--artifact-dir"]])
def test_a_name_that_is_not_utf_8_is_refused_before_anything_is_done(tmp_path: Path, command: list[str]) -> None:
    done = call(*command, os.fsencode(tmp_path) + b"/r\xe9s")
    assert (done.returncode, done.stdout) == (2, "")
    assert r"/r\xe9s has bytes that are not UTF-8: give it" in one_line(done)
    assert os.listdir(tmp_path) == []


def test_a_current_folder_that_is_not_utf_8_or_gone_is_refused(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/r\xe9s"
    os.mkdir(folder)
    done = call("cost", cwd=folder)
    assert done.returncode == 2
    assert r"r\xe9s has bytes that are not UTF-8 in its name: change to another one" in one_line(done)
    done = call("cost", cwd=folder, prepare=lambda: os.rmdir(folder))
    assert done.returncode == 2
    assert "the current folder is no longer there" in one_line(done)


@pytest.mark.parametrize("text", ["naïve", "データ", "a b", "नमस्ते", "👩‍👩‍👧", "[x]", "a\u200fb"])
def test_any_other_name_is_fine(tmp_path: Path, text: str) -> None:
    done = call("trace", str(tmp_path / f"{text}.csv"))
    assert done.returncode == 2
    assert "control" not in one_line(done)


def test_a_memory_limit_is_one_line_and_a_failure(tmp_path: Path) -> None:
    ends = []
    for limit_mib in (70, 100, 140, 400):

        def limited(limit: int = limit_mib << 20) -> None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        done = call("cost", "--figure", "x.html", prepare=limited, cwd=tmp_path, env=env)
        ends.append(done.returncode)
        if done.returncode:
            assert f"not enough memory under the limit of {limit_mib} MiB (ulimit -v)" in one_line(done)
    assert (ends[0], ends[-1]) == (1, 0)


#: The command line with one command that ends as it is told.
ODD = """
import sys; sys.path.insert(0, {root!r})
import types, typer
cli = types.ModuleType("cli"); cli.app = typer.Typer(pretty_exceptions_enable=False); sys.modules["cli"] = cli
@cli.app.command()
def odd():
    {what}
from commands.entry import enter
sys.exit(enter())
"""


def odd(what: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", ODD.format(root=str(ROOT), what=what)]
    env = {key: value for key, value in os.environ.items() if key != "HELIOGRAPH_DEBUG"} | environment
    return subprocess.run(words, capture_output=True, text=True, env=env, timeout=60)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (f"raise OSError({errno.EROFS}, 'Read-only file system', '/x')", "/x: Read-only file system; mount it"),
        (f"raise OSError({errno.ENOSPC}, 'No space left on device')", "No space left on device; make room"),
        ("raise MemoryError", "there is not enough memory"),
        ("raise KeyError('a\\n\\x1b[31m')", "a fault of heliograph itself: KeyError: "),
        ("import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", "ZeroDivisionError"),
    ],
)
def test_what_nobody_expected_is_one_line_with_its_place(what: str, said: str) -> None:
    done = odd(what)
    assert done.returncode == (0 if "thread" in what else 1)
    assert said in one_line(done)
    assert "Traceback" in odd(what, HELIOGRAPH_DEBUG="1").stderr


@pytest.mark.parametrize("mask", [0o000, 0o777])
def test_a_command_writes_with_one_umask_whatever_the_shell_s(mask: int) -> None:
    words = [sys.executable, "-c", ODD.format(root=str(ROOT), what="import os; print(oct(os.umask(0)))")]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=lambda: os.umask(mask) and None)
    assert done.stdout == "0o22\n"


def test_a_grid_under_a_memory_limit_that_no_worker_starts_in_is_refused_at_once(tmp_path: Path) -> None:
    def limited(limit: int = 400 << 20) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    experiment, env = str(ROOT / "experiments/demo.yaml"), os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = call("sweep", experiment, "--artifact-dir", str(tmp_path / "x"), prepare=limited, env=env)
    assert done.returncode == 2
    assert "this shell's memory limit is 400 MiB (ulimit -v): raise it" in one_line(done)


@pytest.mark.parametrize("command", ["simulate", "report"])
def test_a_disk_that_takes_no_more_is_a_failure_and_no_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    experiment, run = str(ROOT / "experiments/demo.yaml"), str(tmp_path / "run")
    short = ["--set", "workload.window_s=5"]
    if command == "report":
        assert CliRunner().invoke(cli.app, ["simulate", experiment, *short, "--artifact-dir", run]).exit_code == 0
    words = ["report", run] if command == "report" else ["simulate", experiment, *short, "--artifact-dir", run]
    with files_end_at(20_000):
        done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 1
    assert done.stderr.startswith("heliograph: cannot write ")
