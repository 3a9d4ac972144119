"""What a proof of fidelity concludes from the verdicts of its runs: a busy machine proves nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from types import SimpleNamespace

import pandas as pd
import pytest

from scripts import fidelity_proofs as proofs

OPTIONS = argparse.Namespace(runs=1, rounds=1, window_s=1.0, congestion_control=["cubic"], fabrics=[0, 1])
BUSY = "arrival lag p99 31 ms against 5 ms: other programs took 60 % of the cores; close them; use time_dilation 7"
STOLEN = "CPU stolen by the hypervisor 9 % against 5 %: other machines on this host took the cores; run it again"
TOO_MUCH = "arrival lag p99 31 ms against 5 ms: one core was full for 80 % of the time; use time_dilation 7"


def runs_that(say: Callable[[tuple[str, ...]], list[str]], ttft_s: float = 1.0):
    """Results of runs in place of runs: `say(overrides)` are the reasons of each."""

    def measure(fabric: int, *overrides: str, **how: bool) -> SimpleNamespace:
        reasons = say(overrides)
        requests = pd.DataFrame({"id": ["r1"], "ttft_s": [ttft_s]})
        verdict = {"verdict": "degraded" if reasons else "valid", "reasons": reasons}
        return SimpleNamespace(frames=SimpleNamespace(requests=requests), fidelity=verdict)

    return measure


@pytest.mark.parametrize("proof", [proofs.quiet, proofs.invariance, proofs.overhead])
@pytest.mark.parametrize("reason", [BUSY, STOLEN])
def test_a_busy_machine_proves_nothing(proof, reason, monkeypatch):
    monkeypatch.setattr(proofs, "measure", runs_that(lambda overrides: [reason]))
    rows = list(proof(OPTIONS))
    assert rows
    assert {(row["outcome"], row["holds"]) for row in rows} == {("not measured", False)}


@pytest.mark.parametrize("proof", [proofs.invariance, proofs.overhead])
def test_a_quiet_machine_does(proof, monkeypatch):
    monkeypatch.setattr(proofs, "measure", runs_that(lambda overrides: []))
    assert {row["outcome"] for row in proof(OPTIONS)} == {"holds"}


@pytest.mark.parametrize(
    ("where", "reasons", "outcomes"),
    [
        ("scale.rate_scale=0.0002", [TOO_MUCH], ["holds", "holds", "the verdict says so", "holds", "holds"]),
        ("scale.rate_scale=0.0002", [TOO_MUCH, STOLEN], ["holds", "holds", "not measured", "holds", "holds"]),
        ("scale.rate_scale=0.0002", ["the agent p0 died"], ["holds", "holds", "not measured", "holds", "holds"]),
        # less is asked of the machine than at the reference
        ("scale.time_dilation=4", [TOO_MUCH], ["holds", "holds", "holds", "holds", "not measured"]),
        ("scale.rate_scale=5e-05", [TOO_MUCH], ["holds", "not measured", "holds", "holds", "holds"]),
    ],
)
def test_the_verdict_is_an_answer_only_where_more_was_asked(where, reasons, outcomes, monkeypatch):
    monkeypatch.setattr(proofs, "measure", runs_that(lambda overrides: reasons if where in overrides else []))
    rows = list(proofs.invariance(OPTIONS))
    assert [row["outcome"] for row in rows] == 2 * outcomes
    assert [row["holds"] for row in rows] == [row["outcome"] != "not measured" for row in rows]


@pytest.mark.parametrize(
    ("too_much_at", "outcomes"),
    [
        ("0.001", ["the verdict says so"]),
        ("0.003", ["holds", "the verdict says so"]),
        ("0.01", ["holds", "holds", "the verdict says so"]),
        ("never", ["holds", "holds", "does not hold"]),
    ],
)
def test_quiet_asks_for_more_until_the_verdict_says_that_it_is_too_much(too_much_at, outcomes, monkeypatch):
    too_much = f"scale.rate_scale={too_much_at}"
    monkeypatch.setattr(proofs, "measure", runs_that(lambda overrides: [TOO_MUCH] if too_much in overrides else []))
    assert [row["outcome"] for row in proofs.quiet(OPTIONS)] == 3 * ["holds"] + 3 * outcomes


def test_a_valid_verdict_over_another_ttft_does_not_hold(monkeypatch):
    slower = runs_that(lambda overrides: [], ttft_s=1.03)
    as_ever = runs_that(lambda overrides: [])
    monkeypatch.setattr(
        proofs,
        "measure",
        lambda fabric, *overrides, **how: (slower if "scale.rate_scale=0.001" in overrides else as_ever)(
            fabric, *overrides, **how
        ),
    )
    outcomes = [row["outcome"] for row in proofs.quiet(OPTIONS)]
    assert outcomes == 3 * ["holds"] + 3 * ["does not hold", "holds", "does not hold"]
    # a machine that cannot keep up at the demo's own rate tells nothing of ten times that
    monkeypatch.setattr(proofs, "measure", runs_that(lambda overrides: [TOO_MUCH]))
    assert [row["outcome"] for row in proofs.quiet(OPTIONS)] == 3 * ["does not hold"] + 3 * ["not measured"]
