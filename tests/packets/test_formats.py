"""One small file of every trace format over packets and over circuits: every request that is offered completes.

Four formats share a run, each a tenant with a prefill and a decode instance of its own.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trace_samples
import yaml

from results.artifacts import RunDirectory

ROOT = Path(__file__).parents[2]
MACHINE_TOO_BUSY = 3
# What makes a run invalid on a busy machine; any other reason would be the trace's or ours.
OF_THE_MACHINE = ("goodput error of", "arrival lag p99")
# What degrades one, and stands among its reasons too.
DEGRADED_ONLY = ("prefill timer", "reconfiguration beyond tau", "transfers hit by a TCP", "rate of long", "CPU")
GROUPS = (
    ("mooncake", "azure-2023", "agentx", "tracelab"),
    ("bailian", "azure-2024", "agentx-turns", "tracelab-sessions"),
    ("burstgpt", "vidur", "tracelab-rounds"),
    ("splitwise", "vidur-lengths", "agentx-one"),
)


def experiment(names: tuple[str, ...], folder: Path) -> Path:
    """An experiment with a tenant per format, its traces gzip, zstd and plain in turn."""
    compressions = list(trace_samples.COMPRESSIONS)
    tenants = [
        {
            "name": name,
            "source": "auto",
            "path": str(trace_samples.write(name, folder, compressions[i % 3])),
            "share": 1 / len(names),
            "load": 0.5,
        }
        for i, name in enumerate(names)
    ]
    spec = {
        "name": "formats",
        "cluster": {
            "prefill_instances": len(names),
            "decode_instances": len(names),
            "gpus_per_instance": 1,
            "instances_per_rack": 4,
        },
        "model": {"name": "llama-3.1-70b", "tp": 4},
        "transfer": "pull",
        "workload": {"window_s": 4, "warmup_s": 1, "tenants": tenants},
        "fabrics": [
            {"name": "eps", "kind": "eps", "oversubscription": 2},
            {"name": "ocs", "kind": "ocs", "reconfiguration_ms": 25},
        ],
        "seeds": [1],
    }
    path = folder / "formats.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: "+".join(names))
def test_a_file_of_each_format_is_replayed_over_packets_and_circuits(tmp_path: Path, names: tuple[str, ...]) -> None:
    command = ["run", str(experiment(names, tmp_path)), "--artifact-dir", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *command], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    if "of its rate; 3 % is allowed" in done.stderr:
        pytest.skip(f"this machine cannot carry its links now: {done.stderr}")
    assert done.returncode in (0, MACHINE_TOO_BUSY), done.stdout + done.stderr
    directory = RunDirectory.open(tmp_path / "out")
    arrivals = []
    for entry in json.loads((tmp_path / "out" / "summary.json").read_text())["runs"]:
        counts = entry["requests"]
        assert counts["offered"] == counts["completed"] > 0, (counts, entry["reasons"])
        if entry["verdict"] == "invalid":
            invalid = [reason for reason in entry["reasons"] if not reason.startswith(DEGRADED_ONLY)]
            assert all(reason.startswith(OF_THE_MACHINE) for reason in invalid), entry["reasons"]
        requests = directory.table(entry["name"], 1, "requests")
        assert set(requests["status"]) == {"completed"}
        measured = requests[~requests["id"].str.startswith("warmup-")]
        assert set(measured["tenant"]) == set(names), "every format offers requests in the window"
        assert measured["new_tokens"].between(1, trace_samples.tokens(trace_samples.CALLS)).all()
        arrivals.append(requests[["id", "arrival_s", "new_tokens", "cached_tokens"]].values.tolist())
    assert len(arrivals) == 2
    assert arrivals[0] == arrivals[1], "both fabrics see the same requests"
