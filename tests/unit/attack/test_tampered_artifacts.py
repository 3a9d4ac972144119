"""Artifacts that somebody cut, emptied or edited: read, or refused with one line each, never a traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import cli

sys.path.append(str(Path(__file__).parent))
from tampering import SPEC, TAMPERED, as_emulated, tampered

BAD_INPUT, INVALID = 2, 3


def invoke(*words: object) -> tuple[int, str]:
    """Exit status and output; an exception that is no exit is raised as it is."""
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tampered")
    (folder / "spec.yaml").write_text(SPEC)
    code, output = invoke("simulate", folder / "spec.yaml", "--artifact-dir", folder / "run")
    assert code == 0, output
    as_emulated(folder / "run")
    return folder / "run"


COMMANDS = {
    "report": lambda run, first: ["report", run],
    "compare": lambda run, first: ["compare", run, first],
    "compared": lambda run, first: ["compare", first, run, "--different-arrivals"],
    "validate": lambda run, first: ["validate", "--run", run],
    "replay": lambda run, first: ["run", "--replay", run, "--dry-run"],
    "constants": lambda run, first: [
        "sweep", first / "config.yaml", "--constants", run / "ocs" / "seed1" / "fidelity.json", "--dry-run",
    ],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_the_run_that_is_tampered_with_is_read_as_it_is(finished, command):
    code, output = invoke(*COMMANDS[command](finished, finished))
    assert code == 0, output


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(edits=TAMPERED, command=st.sampled_from(sorted(COMMANDS)))
def test_a_run_that_was_tampered_with_is_read_or_refused_on_printable_lines(finished, edits, command):
    run = finished.parent / "copy"
    tampered(finished, run, edits)
    code, output = invoke(*COMMANDS[command](run, finished))
    assert code in (0, BAD_INPUT), output
    if code == BAD_INPUT:
        assert "heliograph: " in output
        assert all(line.isprintable() for line in output.splitlines())
