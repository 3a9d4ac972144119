"""A failed test shows what the commands said that it started."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FAILING = """\
import subprocess, sys
import pytest

SCRIPT = "import sys, time; sys.stderr.write('no ' + 'such link'); sys.stderr.flush(); time.sleep({})"

def test_a_command():
    subprocess.run([sys.executable, "-c", SCRIPT.format(0) + "; sys.exit(2)"], check=True, capture_output=True)

@pytest.fixture
def made():
    try:
        subprocess.run([sys.executable, "-c", SCRIPT.format(30)], capture_output=True, timeout=2)
    except subprocess.TimeoutExpired:
        raise RuntimeError("it was not made")

def test_a_set_up(made):
    pass
"""


@pytest.mark.parametrize("name", ["test_a_command", "test_a_set_up"])
def test_what_a_command_wrote_to_stderr_is_in_the_report(tmp_path: Path, name: str) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS / 'unit'}\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"test_it.py::{name}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    # the source of the failing line says it in two words
    assert "no such link" in done.stdout
    assert "stderr of" in done.stdout
