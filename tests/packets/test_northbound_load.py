"""The northbound API answers 250 events a second while a run is on.

How fast depends on who else uses the processors, so a few times the limits (5 ms at the median, 25 ms at the 99th
percentile) hold unless the run itself says that others took them; scripts/northbound_benchmark.py holds to the limits,
on a quiet machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from test_timelines import DEMO, LINK_OFF

from emulation.linux.ledger import RunLedger
from experiments.schema.spec import load
from scripts.northbound_benchmark import P50_LIMIT_S, P99_LIMIT_S, PAIRS, measure

SECONDS = 3.0
SLACK = 4.0
#: How a verdict begins that blames others.
TAKEN = ("CPU taken by other programs", "CPU stolen by the hypervisor")


@pytest.mark.slow
def test_250_events_a_second_while_a_run_is_on(ledger: RunLedger, tmp_path: Path) -> None:
    experiment = load(DEMO, ["workload.window_s=6", "workload.warmup_s=0"])
    try:
        found = measure(experiment, experiment.fabrics[1], ledger, tmp_path, seconds=SECONDS)
    except RuntimeError as error:
        if LINK_OFF in str(error):
            pytest.skip(f"this machine cannot carry its links now: {error}")
        raise
    print("\n".join(found.lines()))
    assert found.answers == {"200": found.offered}, found.refusals
    assert found.offered == pytest.approx(250 * SECONDS, rel=0.01)
    frames = found.result.frames
    assert set(frames.requests["status"]) == {"completed"}, "the load cost the run requests"
    assert not frames.inconsistencies
    rules = [reason for reason in found.result.fidelity["reasons"] if reason.startswith("the circuit switches")]
    assert not rules, "the load's circuits are circuits like others"
    own = frames.circuits[~frames.circuits["prefill"].isin(list(PAIRS))]
    assert set(own["request"]) == set(frames.requests["id"])
    assert len(frames.circuits) - len(own) == found.offered // 4 + len(PAIRS)
    if found.events.p50_s > SLACK * P50_LIMIT_S or found.events.p99_s > SLACK * P99_LIMIT_S:
        taken = [reason for reason in found.result.fidelity["reasons"] if reason.startswith(TAKEN)]
        if taken:
            pytest.skip(f"{found.events}, while others had the processors: {'; '.join(taken)}")
        raise AssertionError(f"an answer took {found.events}, an echo {found.echo}")
