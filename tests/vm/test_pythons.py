"""Every Python that README names, where this machine has it: set up from nothing, and the twin is the same on each."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bare_roots import NOT_THE_CHECKOUT, ROOT

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
SIMULATE = ("simulate", "experiments/demo.yaml", "--set", "workload.window_s=6", "--artifact-dir")


def interpreter(version: str) -> str:
    """On the path, or one of pyenv's; skips the test where none of this version makes environments."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    for candidate in filter(None, found):
        words = [candidate, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(words, capture_output=True, text=True).stdout.strip() == version:
            return candidate
    pytest.skip(f"no Python {version} with venv on this machine, neither on the path nor in {pyenv}")


def figures(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "summary.json").read_text())["runs"])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of the Python that runs the tests."""
    folder = tmp_path_factory.mktemp("simulated") / "here"
    words = [sys.executable, "cli.py", *SIMULATE, str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return figures(folder)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_checkout_is_set_up_and_simulates_the_demo_alike(
    version: str, tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    python, checkout, folder = interpreter(version), tmp_path / "checkout", tmp_path / "simulated"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*NOT_THE_CHECKOUT), symlinks=True)
    try:
        words = [str(checkout / "heliograph"), *SIMULATE, str(folder)]
        env = os.environ | {"HELIOGRAPH_PYTHON": python}
        done = subprocess.run(words, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL, timeout=1800)
        assert done.returncode == 0, done.stderr
        assert f"making .venv with {python} (Python {version}." in done.stderr
        assert figures(folder) == expected
    finally:
        shutil.rmtree(checkout)  # 600 MB each
