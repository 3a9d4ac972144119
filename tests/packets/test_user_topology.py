"""A user's three-tier topology under real packets: every path is reached, probed, and taken as recorded."""

import json
import os
from pathlib import Path

import pytest
from command_runs import skip_where_links_fail, user

THREE_TIER = Path(__file__).resolve().parents[2] / "examples" / "three_tier.py"


@pytest.mark.skipif(os.geteuid() != 0, reason="packets need network namespaces, which need root")
def test_a_captured_run_over_three_tiers_takes_the_paths_on_record_in_the_twins_time(tmp_path):
    place = tmp_path / "run"
    fabric = f"fabrics=[{{name: three, kind: eps, topology: '{THREE_TIER}:ThreeTier'}}]"
    options = [fabric, "cluster.instances_per_rack=2", "workload.window_s=12", "workload.warmup_s=1"]
    overrides = [word for option in options for word in ("--set", option)]
    with user(tmp_path) as commands:
        run = commands.start("run", "experiments/demo.yaml", *overrides, "--pcap", "--artifact-dir", place)
        run.ended(120.0)
    skip_where_links_fail(run.said())
    fidelity = json.loads((place / "three" / "seed1" / "fidelity.json").read_text())
    assert fidelity["audit"]["violations"] == []
    assert fidelity["audit"]["flows"] > 50
    (entry,) = json.loads((place / "summary.json").read_text())["runs"]
    assert entry["requests"]["completed"] == entry["requests"]["offered"]
    assert abs(entry["twin"]["mean_ratio"] - 1) < 0.05
