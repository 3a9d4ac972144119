"""The control case on the twin: where no uplink is crossed, routing changes nothing that uplinks could explain."""

from pathlib import Path

import pytest

from experiments.schema.spec import load
from simulation.twin import Twin

CONTROL = Path(__file__).parents[2] / "experiments" / "control.yaml"


def test_within_a_rack_hash_and_pool_are_the_same_path():
    experiment = load(CONTROL, ["workload.window_s=10"])
    requests = experiment.requests(1)
    found = {
        fabric.name: Twin(experiment, fabric, 1, requests).run().frames.requests.set_index("id")["ttft_s"]
        for fabric in experiment.fabrics
    }
    assert found["adaptive"].tolist() == pytest.approx(found["ecmp"].tolist(), abs=1e-9)
    # shortest first may still order what meets at one decode instance's port
    assert found["srpt"].median() == pytest.approx(found["ecmp"].median(), rel=0.01)


def test_across_racks_the_hash_does_matter():
    experiment = load(CONTROL, ["workload.window_s=10", "cluster.racks=apart"])
    requests = experiment.requests(1)
    ecmp, adaptive = (
        Twin(experiment, fabric, 1, requests).run().frames.requests["ttft_s"].mean()
        for fabric in experiment.fabrics[:2]
    )
    assert ecmp > adaptive * 1.01
