"""A whole run from the command line as a user starts it: the demo's fabrics, every artifact, the packets audited."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from command_runs import user

from results.records.artifacts import RunDirectory

SHORT = ["--set", "workload.window_s=2", "--set", "workload.warmup_s=1"]
MACHINE_TOO_BUSY = 3


def test_a_short_run_writes_every_artifact(tmp_path: Path) -> None:
    # Where its own probes refuse it, it has failed: were they wrong, this test would say so.
    out = tmp_path / "out"
    with user(tmp_path) as commands:
        run = commands.start("run", "experiments/demo.yaml", *SHORT, "--pcap", "--artifact-dir", out)
        status = run.ended(120)
    assert status in (0, MACHINE_TOO_BUSY), run.said()
    summary = json.loads((out / "summary.json").read_text())
    assert [(entry["name"], entry["fabric"]) for entry in summary["runs"]] == [
        ("eps-2to1-ecmp", "eps"),
        ("ocs-25ms", "ocs"),
        ("ocs-25ms-no-reuse", "ocs"),
    ]
    offered = {json.dumps(entry["requests"], sort_keys=True) for entry in summary["runs"]}
    assert len(offered) == 1, "every fabric sees and completes the same requests"
    assert summary["runs"][0]["requests"]["failed"] == 0
    assert (status == 0) == all(entry["verdict"] != "invalid" for entry in summary["runs"])
    directory = RunDirectory.open(out)
    arrivals = []
    for entry in summary["runs"]:
        requests = directory.table(entry["name"], 1, "requests")
        parts = requests.filter(regex="^(queue|prefill|circuit_wait|transfer_exposed|control|return)_s$")
        assert parts.shape[1] == 6
        assert (parts.sum(axis=1) - requests["ttft_s"]).abs().max() < 1e-6
        links = directory.table(entry["name"], 1, "links")
        assert links["tx_bytes"].sum() > directory.table(entry["name"], 1, "transfers")["emulated_bytes"].sum()
        arrivals.append(requests["arrival_s"].tolist())
        audit = json.loads((out / entry["name"] / "seed1" / "fidelity.json").read_text())["audit"]
        assert audit["violations"] == []
        transfers = directory.table(entry["name"], 1, "transfers")
        assert audit["payload_bytes"] == transfers["emulated_bytes"].sum()
        assert (audit["flows"] or audit["reconfigurations"]) > 0
        assert list((out / entry["name"] / "seed1" / "pcap").glob("*.pcap"))
    assert arrivals[0] == arrivals[1] == arrivals[2]
    circuits = directory.table("ocs-25ms-no-reuse", 1, "circuits")
    assert circuits["needs_switch"].all()
    steps = circuits[["remove_s", "barrier_s", "purge_s", "dark_wait_s", "install_s", "barrier2_s", "purge2_s"]]
    assert (steps.sum(axis=1) >= 0.025).all()
    assert "plotly" in (out / "report.html").read_text()[:6_000_000].lower()
    assert yaml.safe_load((out / "config.yaml").read_text())["name"] == "demo"
