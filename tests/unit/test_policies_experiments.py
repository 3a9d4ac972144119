"""The experiment files of the policies: the same arrivals and the same draws, only the size of the error differs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from experiments.schema.models import COMMITS
from experiments.schema.spec import load
from results.metrics.metrics import mean_parts_s
from simulation.twin import Twin

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
FILES = {0.0: "policies.yaml", 0.046: "policies-error-4.6.yaml", 0.10: "policies-error-10.yaml"}


@pytest.mark.parametrize(("error", "name"), FILES.items())
def test_each_file_names_its_error_and_runs_every_policy(error, name):
    experiment = load(EXPERIMENTS / name)
    assert experiment.prefill.median_error == error
    assert {fabric.commit for fabric in experiment.fabrics} == set(COMMITS)
    assert [fabric.reuse for fabric in experiment.fabrics] == [True, True, True, False]


def test_the_error_changes_no_arrival_and_no_prefill_and_a_larger_one_is_the_same_draw_stretched():
    exact, small, large = (load(EXPERIMENTS / name).requests(1) for name in FILES.values())
    for a, b, c in zip(exact, small, large, strict=True):
        assert (a.id, a.arrival_s, a.new_tokens, a.cached_tokens) == (b.id, b.arrival_s, b.new_tokens, b.cached_tokens)
        assert (a.id, a.arrival_s, a.new_tokens, a.cached_tokens) == (c.id, c.arrival_s, c.new_tokens, c.cached_tokens)
        assert a.prediction_factor == 1.0
    stretch = [math.log(c.prediction_factor) / math.log(b.prediction_factor) for b, c in zip(small, large, strict=True)]
    assert stretch == pytest.approx([stretch[0]] * len(stretch))
    assert stretch[0] == pytest.approx(0.10 / 0.046, rel=0.01)


def test_half_of_the_predictions_are_within_the_median_error():
    requests = load(EXPERIMENTS / FILES[0.046], ["workload.window_s=600"]).requests(1)
    within = sum(abs(request.prediction_factor - 1) <= 0.046 for request in requests) / len(requests)
    assert len(requests) > 1000
    assert within == pytest.approx(0.5, abs=0.05)


def test_figure_4a_starts_the_same_delays_at_admission_and_after_prefill():
    experiment = load(EXPERIMENTS / "paper" / "fig4a.yaml")
    delays = {"admission": [], "none": []}
    for fabric in experiment.fabrics:
        delays[fabric.commit].append(fabric.reconfiguration_ms)
    assert delays["admission"] == delays["none"] == [0, 100, 200, 300, 400]
    requests = experiment.requests(1)
    assert {(request.new_tokens, request.cached_tokens) for request in requests} == {(4096, 0)}
    prefill_ms = experiment.timing.duration_s(4096, 0) * 1e3
    assert delays["none"][2] < prefill_ms < delays["none"][3], "delays on both sides of the prefill's length"


def test_circuit_wait_tells_the_policies_apart_on_the_twin():
    """What these files are for: the error costs the policy that books early, and no reservation costs most."""
    wait_s: dict[tuple[str, float], float] = {}
    for error in (0.0, 0.10):
        experiment = load(EXPERIMENTS / FILES[error])
        requests = experiment.requests(1)
        for fabric in experiment.fabrics[:3]:
            frame = Twin(experiment, fabric, 1, requests).run().frames.requests
            wait_s[fabric.name, error] = mean_parts_s(frame)["circuit_wait_s"]
    costs_s = {name: wait_s[name, 0.10] - wait_s[name, 0.0] for name in ("last-chunk", "admission", "none")}
    assert costs_s["none"] == 0.0, "it predicts nothing"
    assert costs_s["admission"] > 3 * costs_s["last-chunk"] > 0
    assert wait_s["none", 0.0] > 10 * wait_s["admission", 0.10]
