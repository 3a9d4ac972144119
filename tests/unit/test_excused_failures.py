"""The packet tier's own conftest: which failure of a test a machine that does not keep time excuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKETS = Path(__file__).parents[1] / "packets"
TESTS = """\
import pytest

def test_a_figure():
    assert 0.8 == 1.0

def test_a_fault():
    {}["no such key"]

@pytest.fixture
def refused():
    raise RuntimeError("a link is off its rate")

def test_a_set_up(refused):
    pass

def test_a_good_one():
    pass
"""


@pytest.mark.parametrize(
    ("reason", "outcomes"),
    [
        ("it wakes late", {"test_a_figure": "SKIPPED", "test_a_fault": "FAILED", "test_a_set_up": "SKIPPED"}),
        (None, {"test_a_figure": "FAILED", "test_a_fault": "FAILED", "test_a_set_up": "ERROR"}),
    ],
)
def test_a_machine_excuses_figures_and_no_faults(tmp_path: Path, reason: str | None, outcomes: dict[str, str]) -> None:
    conftest = (PACKETS / "conftest.py").read_text()
    for old, new in (
        ("RERUNS = 2\n", "RERUNS = 0\n"),
        ("\n\nRERUNS", f"\n\n\ndef unfit(since: Ticks) -> str | None:\n    return {reason!r}\n\n\nRERUNS"),
    ):
        assert old in conftest
        conftest = conftest.replace(old, new, 1)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-vv", "-rs", "--color=no", str(tmp_path)]
    env = os.environ | {"PYTHONPATH": f"{PACKETS}:{PACKETS.parents[1]}"}
    env.pop("PYTEST_XDIST_WORKER", None)
    said = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False).stdout
    for name, outcome in (outcomes | {"test_a_good_one": "PASSED"}).items():
        assert f"test_it.py::{name} {outcome}" in said, said
    if reason:
        assert f"{reason}. It said: assert 0.8 == 1.0" in " ".join(said.split()), said
