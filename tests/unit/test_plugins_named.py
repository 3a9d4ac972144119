"""A user's own rules are found beside the experiment file, and refused before anything is built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STICKIEST = "class Mine:\n    def choose(self, demand, candidates, now_s):\n        return candidates[0].decode\n"


def dry_run(folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    experiment = folder / "mine.yaml"
    experiment.write_text((ROOT / "experiments" / "demo.yaml").read_text())
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, str(ROOT / "cli.py"), "run", str(experiment), "--dry-run", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=60, check=False)


def test_a_rule_beside_the_experiment_file_is_found_from_anywhere(tmp_path):
    (tmp_path / "my_rules.py").write_text(STICKIEST)
    done = dry_run(tmp_path, "fabrics.1.decode_choice=my_rules:Mine")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("fabrics.1.decode_choice=nosuch:Thing", "fabrics.1.decode_choice: "),
        ("fabrics.0.decode_choice=my_rules:Missing", "fabrics.0.decode_choice: "),
        ("fabrics.0.decode_choice=my_rules:Broken", "has no method choose"),
        ("fabrics.1.decode_choice=raises:Mine", "fabrics.1.decode_choice: "),
        ("fabrics.1.commit=nosuch:Rule", "fabrics.1.commit: "),
    ],
)
def test_a_rule_that_cannot_be_loaded_is_refused_before_anything_is_built(tmp_path, setting, says):
    (tmp_path / "my_rules.py").write_text("class Broken:\n    pass\n")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    done = dry_run(tmp_path, setting)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr
