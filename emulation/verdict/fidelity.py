"""The verdict: whether the machine kept up, from what the run measured of itself. Pure: evidence in, verdict out.

A measure has a value, a threshold and a severity (`thresholds.py`). One over an `invalid` threshold makes the
run invalid, one over a `degraded` threshold degraded; each sentence of the evidence's faults makes it invalid. Every
reason says the value, the threshold and what to do.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from emulation.verdict.evidence import Evidence
from emulation.verdict.thresholds import measures
from emulation.verdict.unscaled import unscaled

Verdict = Literal["valid", "degraded", "invalid"]


def judge(evidence: Evidence) -> dict[str, Any]:
    """The content of `fidelity.json`: verdict, reasons, every measure, what does not scale, and the calibration."""
    found = measures(evidence)
    reasons = list(evidence.faults)
    if not evidence.completed:
        reasons.append("no request was completed")
    invalid = bool(reasons)
    degraded = False
    for measure in found:
        if measure.exceeded:
            reasons.append(measure.reason())
            invalid |= measure.severity == "invalid"
            degraded |= measure.severity == "degraded"
    verdict: Verdict = "invalid" if invalid else "degraded" if degraded else "valid"
    beside = [] if evidence.quantities is None else unscaled(evidence.quantities, evidence.scale)
    return {
        "schema": 1,
        "verdict": verdict,
        "reasons": reasons,
        "datapath": evidence.datapath,
        "scale": asdict(evidence.scale),
        "measures": [measure.described() for measure in found],
        "unscaled": [each.described() for each in beside],
        "calibration": evidence.calibration,
        "notes": [*evidence.notes, *(["this kernel does not report TCP timeouts"] if evidence.rtos is None else [])],
    }
