"""A grid over real packets: its cells are runs of their own, and an interrupt leaves nothing of the one it met."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from emulation.ledger import BASE, dead_runs

ROOT = Path(__file__).resolve().parents[2]
SPEC = """
name: small
cluster: {prefill_instances: 1, decode_instances: 1, gpus_per_instance: 1, instances_per_rack: 1, link_gbps: 400}
model: {name: llama-3.1-70b, kv_dtype: bf16, tp: 4}
workload: {window_s: 2, warmup_s: 1, tenants: [{name: agentic, source: synthetic-agentic, load: 0.6}]}
fabrics: [{name: ecmp, kind: eps, uplinks: 1}]
seeds: [1, 2]
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a run makes network namespaces, which needs root")


def namespaces() -> set[str]:
    return set(os.listdir("/run/netns")) if Path("/run/netns").is_dir() else set()


def test_emulated_cells_are_runs_and_an_interrupted_one_leaves_nothing(tmp_path):
    assert not dead_runs(), "an earlier run left something behind: ./heliograph clean"
    (tmp_path / "small.yaml").write_text(SPEC)
    before, grid = namespaces(), tmp_path / "grid"
    command = [sys.executable, str(ROOT / "cli.py"), "sweep", str(tmp_path / "small.yaml"), "--emulate"]
    sweep = subprocess.Popen(
        [*command, "--artifact-dir", str(grid)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )
    assert sweep.stdout is not None
    said = ""
    for line in sweep.stdout:
        said += line
        if line.startswith(("1/2", "failed")):
            break
    assert "1/2" in said, said
    deadline_s = time.monotonic() + 30
    while namespaces() == before:  # the second cell's network is not there yet
        assert time.monotonic() < deadline_s
        assert sweep.poll() is None
        time.sleep(0.05)
    family = psutil.Process(sweep.pid).children(recursive=True)
    sweep.send_signal(signal.SIGTERM)
    output, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 128 + signal.SIGTERM, output
    assert "1 of 2 cells are finished" in " ".join(output.split())
    deadline_s = time.monotonic() + 20
    while namespaces() != before or any(path.is_dir() for path in BASE.iterdir()) or psutil.wait_procs(family, 0)[1]:
        assert time.monotonic() < deadline_s, (namespaces() - before, list(BASE.iterdir()), family)
        time.sleep(0.1)
    [cell] = [json.loads(path.read_text()) for path in grid.rglob("cell.json")]
    assert (cell["substrate"], cell["seed"], cell["summary"]["substrate"]) == ("emulation", 1, "emulation")
    assert cell["tenants"]["agentic"]["completed"] == cell["summary"]["requests"]["completed"] > 0
