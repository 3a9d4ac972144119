"""Every commit policy under a burst, a user's own among them, and plug-ins that fail."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import failing_plugins
import pandas as pd
import pytest
from test_timelines import SPACING_S, measure, turns

from emulation.linux.ledger import RunLedger

OWN_RULE = "examples.at_prefill_start:AtPrefillStart"
OWN_CHOICE = "examples.stickiest:Stickiest"
ENDED = {"released", "refused", "expired"}
#: Rules whose decode choice is not the default: a user's own comes with a user's own choice of the decode.
CHOICES = {"none": ["fabrics.1.decode_choice=least-loaded"], OWN_RULE: [f"fabrics.1.decode_choice={OWN_CHOICE}"]}


@pytest.mark.parametrize("transfer", ["pull", "layerwise"])
@pytest.mark.parametrize("policy", ["last-chunk", "admission", "none", OWN_RULE])
def test_every_policy_serves_a_burst_with_wrong_predictions_and_leaves_no_window_open(
    ledger: RunLedger, tmp_path: Path, policy: str, transfer: str
) -> None:
    offsets_ms = [0.0, 10.0, 25.0, 60.0, 75.0, 130.0]
    burst = [
        dataclasses.replace(request, prediction_factor=factor)
        for request, factor in zip(turns(2, 1.5, offsets_ms), [0.8, 1.3, 1.0, 0.9, 1.1, 1.6] * 2, strict=True)
    ]
    options = ["cluster.prefill_instances=3", "cluster.decode_instances=2", f"transfer={transfer}"]
    options += [f"fabrics.1.commit={policy}", *CHOICES.get(policy, [])]
    result = measure(ledger, tmp_path, burst, *options)
    assert result.failure is None
    frames = result.frames
    assert set(frames.requests["status"]) == {"completed"}
    assert not frames.inconsistencies
    assert set(frames.circuits["state"]) <= ENDED
    live = frames.circuits.dropna(subset=["dark_at_s", "live_at_s"])
    assert len(live)
    assert (live["live_at_s"] - live["dark_at_s"] >= 0.025).all()
    _no_two_circuits_on_a_port(frames.circuits)


def _no_two_circuits_on_a_port(windows: pd.DataFrame) -> None:
    started = windows.assign(
        begin_s=windows["dark_at_s"].fillna(windows["live_at_s"]), pair=windows["prefill"] + windows["decode"]
    ).dropna(subset=["begin_s", "released_at_s"])
    for role in ("prefill", "decode"):
        for _, of_port in started.sort_values("begin_s").groupby(role):
            held_until_s, pair = 0.0, ""
            for row in of_port.to_dict("records"):
                assert row["pair"] == pair or row["begin_s"] >= held_until_s - 1e-6, row
                held_until_s, pair = max(held_until_s, row["released_at_s"]), row["pair"]


# -- plug-ins that fail --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("fabrics.1.decode_choice={}:Forever", ["took longer than 2 s", "while True"]),
        ("fabrics.1.decode_choice={}:Nowhere", ["returned 'd99'"]),
        ("fabrics.1.commit={}:Broken", ["AttributeError", "no_such_attribute"]),
    ],
)
def test_a_plugin_that_fails_ends_the_run_with_its_name_and_the_place(
    ledger: RunLedger, tmp_path: Path, override: str, says: list[str]
) -> None:
    result = measure(ledger, tmp_path, turns(30, SPACING_S), override.format(failing_plugins.__file__))
    assert result.timings_s["run"] < 15, "it did not wait for the other requests"
    assert result.failure is not None
    for text in [f"{failing_plugins.__file__}:", *says]:
        assert text in result.failure
    assert result.fidelity["verdict"] == "invalid"
    assert len(result.frames.requests) == 30, "every offered request is accounted for"
