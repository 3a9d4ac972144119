"""A run made again from its directory alone, over real packets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENT = ROOT / "experiments" / "datapaths.yaml"
CIRCUITS = "fabrics=[{name: ocs-25ms, kind: ocs, reconfiguration_ms: 25, reuse: false, decode_choice: round-robin}]"
#: Seven requests: fifteen would give a median that the summary states, and take twice as long.
SHORT = ["--set", "workload.window_s=3", "--set", "scale.time_dilation=1", "--set", CIRCUITS]
DONE, MACHINE_TOO_BUSY = 0, 3


def run(*arguments: object) -> str:
    command = [sys.executable, str(ROOT / "cli.py"), "run", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode in (DONE, MACHINE_TOO_BUSY), done.stdout + done.stderr
    return done.stdout


def test_a_replay_serves_the_same_requests_and_puts_both_runs_side_by_side(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    run(EXPERIMENT, *SHORT, "--artifact-dir", first)
    output = run("--replay", first, "--artifact-dir", second)
    assert "replay: kernel" not in output  # it is the same machine
    assert "B - A" in output  # the table of `compare`
    near = re.search(r"ocs-25ms, seed 1: same prefill for (\d+) and same decode for (\d+) of (\d+) requests", output)
    assert near is not None, output

    tables = [pd.read_csv(run / "ocs-25ms" / "seed1" / "requests.csv").sort_values("id") for run in (first, second)]
    for column in ("id", "tenant", "arrival_s", "new_tokens", "cached_tokens"):
        assert list(tables[0][column]) == list(tables[1][column])
    assert int(near[3]) == len(tables[0])
    verdicts = [json.loads((run / "summary.json").read_text())["runs"][0]["verdict"] for run in (first, second)]
    if verdicts == ["valid", "valid"]:  # else timing did not allow
        assert min(int(near[1]), int(near[2])) >= 0.7 * int(near[3])
        assert tables[1]["ttft_s"].median() == pytest.approx(tables[0]["ttft_s"].median(), rel=0.1)
