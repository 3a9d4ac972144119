"""Whatever another Python, a locale, a mask or a limit has put into a shell, the launcher starts the same program."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest
from checkouts import Checkout

ROOT = Path(__file__).resolve().parents[2]
SHOW = """
import json, os, sys
mask = os.umask(0)
print(json.dumps([sys.path, dict(os.environ), list(sys.flags), sys.stdout.encoding, mask]))
"""


def seen(checkout: Checkout, **environment: str) -> list:
    (checkout.path / "cli.py").write_text(SHOW)
    done = checkout.run("cost", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


ODD = {
    "PYTHONPATH": "/nowhere",
    "PYTHONHOME": "/nowhere",
    "PYTHONSAFEPATH": "1",
    "PYTHONSTARTUP": "/nowhere.py",
    "PYTHONOPTIMIZE": "2",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUSERBASE": "/nowhere",
    "PYTHONINSPECT": "1",
    "PYTHONWARNINGS": "error",
    "PYTHONIOENCODING": "ascii",
    "PYTHONPYCACHEPREFIX": "/nowhere",
    "PYTHONDEVMODE": "1",
    "PYTHONVERBOSE": "2",
    "MPLBACKEND": "nosuch",
    "LANG": "C",
    "LC_ALL": "POSIX",
}


@pytest.mark.parametrize("name", ODD)
def test_no_variable_of_another_python_reaches_ours(ready: Checkout, name: str) -> None:
    plain = seen(ready)
    found = seen(ready, **{name: ODD[name]})
    for each in (plain, found):
        for noise in ("_", "LANG"):
            each[1].pop(noise, None)
    assert found == plain


def test_the_checkout_comes_first_and_the_user_s_packages_not_at_all(ready: Checkout, tmp_path: Path) -> None:
    path, environment, _, encoding, mask = seen(ready, HOME=str(tmp_path))
    assert path[0] == str(ready.path)
    assert not [each for each in path if each.startswith(str(tmp_path / ".local"))]
    assert environment["PYTHONNOUSERSITE"] == "1"
    assert (encoding, mask) == ("utf-8", 0o022)


def test_packages_of_another_python_are_not_taken(tmp_path: Path) -> None:
    """What a ROS or an HPC module leaves behind."""
    for name in ("numpy", "typer", "pandas", "commands", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('of another Python')")
    env = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([str(ROOT / "heliograph"), "cost", "--gpus", "256"], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("mask", [0o000, 0o777])
def test_the_shell_s_mask_changes_nothing(ready: Checkout, mask: int) -> None:
    (ready.path / "cli.py").write_text(SHOW)
    command = [str(ready.path / "heliograph"), "cost"]
    env = os.environ | {"PATH": f"{ready.programs}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, preexec_fn=lambda: os.umask(mask) and None)
    assert json.loads(done.stdout)[-1] == 0o022


def test_a_memory_limit_that_the_libraries_would_crash_at_is_said_at_once(ready: Checkout) -> None:
    limit = 100 << 20
    command = [str(ready.path / "heliograph"), "cost"]
    env = os.environ | {"PATH": f"{ready.programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=env,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "memory limit is 100 MiB (ulimit -v)" in done.stderr
    assert done.stderr.count("\n") == 1


def closing(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def test_closed_streams_end_in_a_line_or_change_nothing(ready: Checkout) -> None:
    command = [str(ready.path / "heliograph"), "fail"]
    env = os.environ | {"PATH": f"{ready.programs}:{os.environ['PATH']}"}

    def run(*closed: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, env=env, preexec_fn=lambda: closing(*closed))

    assert run(1).returncode == 1
    assert run(1).stderr == "heliograph: standard output is closed, and a command would have nowhere to print to\n"
    assert (run(0, 2).returncode, run(0, 2).stdout[:3]) == (7, "cli")


@pytest.mark.parametrize("full", [False, True])
def test_a_set_up_that_nobody_hears_is_a_set_up_all_the_same(ready: Checkout, full: bool) -> None:
    """Its progress goes to standard error."""
    with open("/dev/full", "w") as device:
        done = subprocess.run(
            [str(ready.path / "heliograph"), "setup"],
            stderr=device if full else None,
            preexec_fn=None if full else (lambda: os.close(2)),
            env=os.environ | {"PATH": f"{ready.programs}:{os.environ['PATH']}"},
        )
    assert done.returncode == 0
