"""The verdict: whether the machine kept up, from what the run measured of itself. Pure: evidence in, verdict out.

A measure has a value, a limit and a severity. One over an `invalid` limit makes the run invalid, one over a
`degraded` limit degraded; every reason says the value, the limit and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from emulation.machine import MachineUse
from emulation.scale import ScaleModel

Severity = Literal["invalid", "degraded", "info"]
Verdict = Literal["valid", "degraded", "invalid"]

LINK_RATE_TOLERANCE = 0.03
ARRIVAL_LAG_P99_S = 0.005
TIMER_LATENESS_P99_S = 0.005
SWITCH_EXCESS_MEDIAN_S = 0.005
BUSY_PERCENT = 95.0
STEAL_PERCENT = 5.0
TIMEOUT_PERCENT = 1.0


@dataclass(frozen=True, slots=True)
class Measure:
    """`emulated` is what the machine saw, `real` the same in the units of the real cluster (None where it does not
    scale); over `limit` (of the emulated value) the verdict is at best `severity`."""

    name: str
    unit: str
    emulated: float | None
    real: float | None = None
    limit: float | None = None
    severity: Severity = "info"
    remedy: str = ""

    @property
    def exceeded(self) -> bool:
        return self.limit is not None and self.emulated is not None and self.emulated > self.limit

    def reason(self) -> str:
        """In words a user can act on."""
        value, limit = (f"{number:.4g}" for number in (self.emulated or 0.0, self.limit or 0.0))
        return f"{self.name} {value} {self.unit} against {limit} {self.unit}: {self.remedy}"


@dataclass(slots=True)
class Evidence:
    """What a run measured. Times are wall-clock (emulated) seconds; each sentence of `faults` makes it invalid."""

    scale: ScaleModel
    datapath: str
    link_ratios: dict[str, float] = field(default_factory=dict)
    rtt_s: dict[str, float] = field(default_factory=dict)
    arrival_lag_s: Sequence[float] = ()
    prefill_lateness_s: Sequence[float] = ()
    live_lateness_s: Sequence[float] = ()
    switch_excess_s: Sequence[float] = ()
    calibrated_excess_s: float | None = None
    retransmits: int = 0
    rtos: int | None = 0
    transfers: int = 0
    transfers_with_rto: int = 0
    circuit_rate_ratios: Sequence[float] = ()
    completed: int = 0
    unfinished: int = 0
    drops: int = 0
    machine: MachineUse | None = None
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def measures(evidence: Evidence) -> list[Measure]:
    """Every measure of a run, those without a limit too."""
    scale = evidence.scale

    def lateness(name: str, samples: Sequence[float], percent: float, limit_s: float | None, **more: Any) -> Measure:
        value_s = float(np.percentile(samples, percent)) if len(samples) else None
        # dilation makes every real duration longer, so the same lateness weighs less
        limit_s = None if limit_s is None else limit_s * scale.time_dilation
        real_s = None if value_s is None else scale.real_s(value_s)
        ms = [None if seconds is None else seconds * 1e3 for seconds in (value_s, real_s, limit_s)]
        return Measure(name, "ms", ms[0], ms[1], ms[2], **more)

    slower = "the machine was too busy; close other programs or raise scale.time_dilation"
    found = [
        Measure(
            f"goodput error of {path}",
            "",
            abs(ratio - 1.0),
            limit=LINK_RATE_TOLERANCE,
            severity="invalid",
            remedy="the link does not carry its rate; lower scale.rate_scale or raise scale.time_dilation",
        )
        for path, ratio in evidence.link_ratios.items()
    ]
    found += [
        lateness("arrival lag p99", evidence.arrival_lag_s, 99, ARRIVAL_LAG_P99_S, severity="invalid", remedy=slower),
        lateness("arrival lag maximum", evidence.arrival_lag_s, 100, None),
        lateness(
            "prefill timer lateness p99",
            evidence.prefill_lateness_s,
            99,
            TIMER_LATENESS_P99_S,
            severity="degraded",
            remedy=slower,
        ),
        lateness("live circuit to sender told, median", evidence.live_lateness_s, 50, None),
        lateness("live circuit to sender told, p99", evidence.live_lateness_s, 99, None),
        lateness(
            "reconfiguration beyond tau, median",
            evidence.switch_excess_s,
            50,
            SWITCH_EXCESS_MEDIAN_S,
            severity="degraded",
            remedy=slower,
        ),
        lateness("reconfiguration beyond tau, p95", evidence.switch_excess_s, 95, None),
    ]
    if evidence.calibrated_excess_s is not None:
        excess_s = evidence.calibrated_excess_s
        found.append(Measure("calibrated excess of a switch", "ms", excess_s * 1e3, scale.real_s(excess_s) * 1e3))
    found += [Measure(f"round trip of {path}", "ms", rtt_s * 1e3) for path, rtt_s in evidence.rtt_s.items()]
    found += [
        Measure("TCP retransmissions", "segments", float(evidence.retransmits)),
        Measure("packets dropped by queues", "packets", float(evidence.drops)),
        # kernels before 6.7 do not tell
        Measure("TCP timeouts (RTO)", "", None if evidence.rtos is None else float(evidence.rtos)),
        Measure(
            "transfers hit by a TCP timeout",
            "%",
            100 * evidence.transfers_with_rto / evidence.transfers if evidence.transfers else None,
            limit=TIMEOUT_PERCENT,
            severity="degraded",
            remedy="a timeout does not scale with the cluster; it costs tens of ms that a real fabric would not",
        ),
    ]
    if evidence.circuit_rate_ratios:
        short = 1.0 - float(np.median(evidence.circuit_rate_ratios))
        found.append(
            Measure(
                "rate of long transfers on circuits below the configured one, median",
                "",
                short,
                limit=LINK_RATE_TOLERANCE,
                severity="degraded",
                remedy=slower,
            )
        )
    found.append(
        Measure(
            "requests unfinished at the end",
            "",
            float(evidence.unfinished),
            limit=0,
            severity="degraded",
            remedy="the cluster was overloaded, or something waits for ever; lower the load or look at requests.csv",
        )
    )
    if (use := evidence.machine) is not None:
        found += [
            Measure("CPU, mean of all cores", "%", use.all_cores_percent),
            Measure(
                "CPU, p95 of all cores",
                "%",
                use.p95_all_cores_percent,
                limit=BUSY_PERCENT,
                severity="degraded",
                remedy=slower,
            ),
            Measure("CPU, busiest core", "%", use.busiest_core_percent),
            Measure(
                "CPU stolen by the hypervisor",
                "%",
                use.steal_percent,
                limit=STEAL_PERCENT,
                severity="degraded",
                remedy="other machines on this host took the cores; run it again on a quiet host",
            ),
            Measure("least available memory", "MiB", use.least_available_memory_bytes / 2**20),
            *(Measure(f"CPU of {name}", "%", share) for name, share in use.process_percent.items()),
        ]
    return found


def judge(evidence: Evidence) -> dict[str, Any]:
    """The content of `fidelity.json`: verdict, reasons, every measure, and what does not scale."""
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
    return {
        "schema": 1,
        "verdict": verdict,
        "reasons": reasons,
        "datapath": evidence.datapath,
        "scale": asdict(evidence.scale),
        "measures": [{**asdict(measure), "exceeded": measure.exceeded} for measure in found],
        "notes": [*evidence.notes, *(["this kernel does not report TCP timeouts"] if evidence.rtos is None else [])],
    }
