"""Plug-ins to try, and the command line that is given them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHOICE = "class Mine:\n    def choose(self, demand, candidates, now_s):\n        return candidates[0].decode\n"


def heliograph(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "cli.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)


def small(folder: Path, choice: str) -> Path:
    """The demo for three seconds, with this decode choice on circuits."""
    text = (ROOT / "experiments" / "demo.yaml").read_text().replace("window_s: 55", "window_s: 3")
    path = folder / "mine.yaml"
    path.write_text(text.replace("decode_choice: circuit-aware", f"decode_choice: {choice}"))
    return path
