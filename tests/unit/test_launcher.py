"""The door: a set-up checkout goes straight to the command, any other one is set up first or told why not."""

import os
import resource
import subprocess
from pathlib import Path

import pytest
from checkouts import Checkout


def test_arguments_reach_the_command_line_untouched_and_where_the_user_stands(ready: Checkout, tmp_path: Path) -> None:
    done = ready.run("simulate", "a b.yaml", "--set", "x=*", "", cwd=tmp_path)
    assert done.stdout == f"cli {tmp_path} simulate a b.yaml --set x=* \n"
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_s_exit_status_is_the_launcher_s(ready: Checkout) -> None:
    assert ready.run("fail").returncode == 7


def test_a_link_to_the_launcher_finds_the_checkout(ready: Checkout, tmp_path: Path) -> None:
    (tmp_path / "hg").symlink_to(ready.path / "heliograph")
    done = subprocess.run([str(tmp_path / "hg"), "cost"], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == f"cli {tmp_path} cost\n"


def test_a_later_call_adds_well_under_half_a_second(ready: Checkout) -> None:
    """Of processor time, which is all that it takes: it waits for nobody."""
    (ready.path / "cli.py").write_text("")

    def least_s(command: list[str]) -> float:
        times = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, check=True, env={**os.environ, "PATH": f"{ready.programs}:{os.environ['PATH']}"})
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(times)

    alone_s = least_s([str(ready.path / ".venv/bin/python"), str(ready.path / "cli.py")])
    assert least_s([str(ready.path / "heliograph"), "run"]) - alone_s < 0.2


@pytest.mark.parametrize("command", ["run", "demo", "validate", "setup"])
def test_without_root_a_command_that_needs_a_missing_program_says_which_and_how_to_get_it(
    ready: Checkout, command: str
) -> None:
    ready.need("no-such-program")
    ready.set_up()
    done = ready.run(command)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no-such-program" in done.stderr
    assert "sudo ./heliograph setup" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "x.yaml"],
        ["report", "d"],
        ["cost"],
        ["--help"],
        [],
        ["run", "x.yaml", "--dry-run"],
        ["run", "--help"],
        ["doctor"],
        ["sweep", "x.yaml"],
        ["sweep", "x.yaml", "--emulate", "--scheduler", "tcp://10.0.0.1:8786"],
    ],
)
def test_without_root_what_needs_no_network_works_without_system_packages(
    ready: Checkout, arguments: list[str]
) -> None:
    ready.need("no-such-program")
    ready.set_up()
    done = ready.run(*arguments)
    assert done.returncode == 0
    assert done.stdout.split()[2:] == arguments


def test_a_sweep_that_emulates_here_needs_what_a_run_needs(ready: Checkout) -> None:
    ready.need("no-such-program")
    ready.set_up()
    done = ready.run("sweep", "x.yaml", "--emulate")
    assert (done.returncode, done.stdout) == (1, "")
    assert "sweep: not found on this system: no-such-program" in done.stderr
