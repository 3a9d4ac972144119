"""`heliograph --version`: the version of the project, and the revision of this checkout where git has one."""

from __future__ import annotations

import re
import subprocess

import typer

from commands.shared import ROOT
from outputs.terminal import say


def print_version(wanted: bool) -> None:
    """Print it and end, where it is wanted."""
    if wanted:
        say(f"heliograph {version()}")
        raise typer.Exit


def version() -> str:
    """`0.1.0 (1a2b3c4)`, or without the revision where this is no git checkout."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        revision = subprocess.run(command, capture_output=True, text=True, timeout=5.0, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        revision = ""
    return f"{found[1]} ({revision})" if revision else found[1]
