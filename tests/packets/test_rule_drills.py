"""Drills of the rules: whatever is done to a circuit switch behind its controller's back makes the run invalid, with
the switch and the rule; a run that is left alone raises no alarm, however often its circuits are moved."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from test_fidelity_drills import OPTIONS, Deeds, disturbed, ofctl, said
from test_timelines import DEMO, LINK_OFF, turns

from controllers.core.switching import circuit_rule
from emulation.doctor.preflight import choose_datapath
from emulation.linux.ledger import RunLedger
from emulation.plan.fabric_plan import FabricPlan
from emulation.run.fabric_run import FabricRun
from experiments.schema.spec import load

DROP_ALL = "priority=0,actions=drop"


def test_a_drop_all_rule_that_is_removed_is_missed(ledger: RunLedger, tmp_path: Path) -> None:
    result = disturbed(ledger, tmp_path, [(0.8, ofctl("--strict", "del-flows", "priority=0"))])
    reasons = result.fidelity["reasons"]
    assert result.fidelity["verdict"] == "invalid"
    assert said(result, "the circuit switches lacked: plane0: ", DROP_ALL, "s after the start"), reasons
    assert not said(result, "the circuit switches held"), reasons


def test_a_table_that_is_emptied_is_missed_and_not_called_an_overload(ledger: RunLedger, tmp_path: Path) -> None:
    result = disturbed(ledger, tmp_path, [(0.8, ofctl("del-flows"))])
    reasons = result.fidelity["reasons"]
    assert result.fidelity["verdict"] == "invalid"
    assert said(result, "the circuit switches lacked: plane0: ", DROP_ALL), reasons


def test_whatever_the_controller_did_not_make_is_named(ledger: RunLedger, tmp_path: Path) -> None:
    deeds: Deeds = [
        (0.6, ofctl("add-flow", "priority=7,in_port=60000,actions=drop")),
        (0.6, ofctl("add-flow", "table=3,priority=200,actions=drop")),
        (0.6, ofctl("add-flow", circuit_rule(60000, 60001))),
        (0.6, ofctl("add-group", "group_id=1,type=all,bucket=output:60000")),
        (0.6, ofctl("add-meter", "meter=1,kbps,band=type=drop,rate=100")),
        (2.6, ofctl("del-groups")),
    ]
    result = disturbed(ledger, tmp_path, deeds)
    reasons = result.fidelity["reasons"]
    assert result.fidelity["verdict"] == "invalid"
    for words in ("priority=7,in_port=60000", "table=3, priority=200", "cookie 0x0", "a group", "a meter"):
        assert said(result, "the circuit switches held: plane0: ", words), (words, reasons)
    assert not said(result, "the circuit switches lacked"), reasons


def test_hundreds_of_moves_raise_no_alarm(ledger: RunLedger, tmp_path: Path) -> None:
    """Every second look is as near to a move as it can be: the watch looks again and again."""
    experiment = load(DEMO, OPTIONS)
    requests = [dataclasses.replace(r, id=f"{r.id}-{i}") for i, r in enumerate(turns(60, 0.25, (0.0, 20.0)))]
    plan = FabricPlan(experiment, experiment.fabrics[1], 1, tuple(requests))
    run = FabricRun(
        plan, ledger, choose_datapath(), report=lambda step: None, progress=lambda *state: None, keep_logs=tmp_path
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("emulation.monitor.circuit_rules.RuleWatch.period_s", 0.02)
        patch.setattr("emulation.monitor.sampler.MOST_SHARE", 1.0)
        result = run.run()
    if result.failure and LINK_OFF in result.failure:
        pytest.skip(f"this machine cannot carry its links now: {result.failure}")
    assert result.failure is None
    assert run._seen.observed is not None
    assert len(run._seen.observed.rules) > 100
    assert result.frames.circuits["needs_switch"].sum() >= 100
    assert not said(result, "the circuit switches"), result.fidelity["reasons"]
