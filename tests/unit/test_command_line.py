"""The command line calls itself `heliograph`, shows its version, groups its commands, and gives an example of each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import COMMANDS, app

ROOT = Path(__file__).resolve().parents[2]
NAMES = [command.__name__.replace("_", "-") for commands in COMMANDS.values() for command in commands]


def heliograph(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "cli.py"), *words]
    wide = {"COLUMNS": "160", "TERM": "dumb"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | wide | environment, timeout=60
    )


def test_help_and_errors_name_the_command_that_was_typed():
    assert "Usage: heliograph" in heliograph("--help").stdout
    refused = heliograph("run", "--no-such-option")
    assert refused.returncode == 2
    assert "Usage: heliograph run" in refused.stderr
    assert "cli.py" not in refused.stderr


def test_the_version_is_that_of_the_project():
    said = heliograph("--version")
    (declared,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert (said.returncode, said.stdout.split()[:2]) == (0, ["heliograph", declared])


def test_every_command_is_in_a_group_of_the_help():
    shown = heliograph("--help").stdout
    panels = re.split(r"─ (Run|Predict|Look|Set up) ─", shown)
    assert panels[1::2] == list(COMMANDS)
    for panel, commands in COMMANDS.items():
        text = panels[panels.index(panel) + 1]
        for command in commands:
            assert re.search(rf"│ {command.__name__.replace('_', '-')} ", text), (panel, command)


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_ends_with_an_example_and_names_no_types_of_flags(name):
    shown = heliograph(name, "--help").stdout
    assert re.search(rf"Example: (sudo )?./heliograph {name}\b", shown), shown
    assert not [line for line in shown.splitlines() if "<bool>" in line and "--help" not in line]


@pytest.mark.parametrize("example", [each for commands in COMMANDS.values() for each in commands.values()])
def test_an_example_has_options_that_the_command_knows(example):
    words = example.removeprefix("sudo ").split()[1:]
    options = [word for word in words[1:] if word.startswith("--")]
    shown = heliograph(words[0], "--help").stdout
    assert all(option in shown for option in options), (example, shown)


def test_a_shell_completes_commands():
    completed = heliograph(
        _HELIOGRAPH_COMPLETE="complete_bash",
        COMP_WORDS="heliograph si",
        COMP_CWORD="1",
        _TYPER_COMPLETE_ARGS="heliograph si",
    )
    assert completed.stdout.split() == ["simulate"]


def test_the_commands_are_those_that_the_app_has():
    assert {command.name for command in app.registered_commands} == set(NAMES)
    assert CliRunner().invoke(app, ["nonsense"]).exit_code == 2
