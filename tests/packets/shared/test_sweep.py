"""A grid over real packets: its cells are runs of their own, and an interrupt leaves nothing of the one it met."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from command_runs import skip_where_links_fail, user

SPEC = """
name: small
cluster: {prefill_instances: 1, decode_instances: 1, gpus_per_instance: 1, instances_per_rack: 1, link_gbps: 400}
model: {name: llama-3.1-70b, kv_dtype: bf16, tp: 4}
workload: {window_s: 2, warmup_s: 1, tenants: [{name: agentic, source: synthetic-agentic, load: 0.6}]}
fabrics: [{name: ecmp, kind: eps, uplinks: 1}]
seeds: [1, 2]
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a run makes network namespaces, which needs root")


def test_emulated_cells_are_runs_and_an_interrupted_one_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    (tmp_path / "small.yaml").write_text(SPEC)
    grid = tmp_path / "grid"
    with user(tmp_path) as commands:
        sweep = commands.start("sweep", tmp_path / "small.yaml", "--emulate", "--artifact-dir", grid)
        said = sweep.wait_for("1/2", "failed:", timeout_s=120)
        skip_where_links_fail(said)
        assert "failed:" not in said, said
        commands.until("second network", lambda: commands.namespaces() or sweep.process.poll() is not None)
        assert sweep.process.poll() is None, sweep.said()
        sweep.process.send_signal(signal.SIGTERM)
        assert sweep.ended(60) == 128 + signal.SIGTERM, sweep.said()
        # it has waited until the run had removed its network, and its cell's folder is gone
        assert not [each for each in commands.processes() if "cli.py run" in each]
        assert not commands.namespaces()
        assert list(temporary.iterdir()) == []
        assert "1 of 2 cells are finished" in " ".join(sweep.said().split())
    # nothing is left of it: `user` has looked
    [cell] = [json.loads(path.read_text()) for path in grid.rglob("cell.json")]
    assert (cell["substrate"], cell["seed"], cell["summary"]["substrate"]) == ("emulation", 1, "emulation")
    assert cell["tenants"]["agentic"]["completed"] == cell["summary"]["requests"]["completed"] > 0
