"""What came out of one run, however it ended: every offered request accounted for, links counted, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd

from emulation.monitor.observed import Observed
from emulation.plan.fabric_plan import FabricPlan
from emulation.probe.paths import PathProbe
from emulation.run.components import Parts
from emulation.verdict.evidence import gather
from emulation.verdict.fidelity import judge
from emulation.verdict.packet_audit import audited, described
from process.interrupts import Interrupted
from results.metrics.merge import Frames, merge
from results.records.schema import LINKS

NEVER_SENT = "never sent: the run ended before its clock started"


@dataclass
class FabricResult:
    """What came out; `failure` tells why a run ended early (its tables then hold what was reached), `interrupted` that
    a signal did it."""

    frames: Frames
    links: pd.DataFrame
    fidelity: dict[str, Any]
    failure: str | None
    interrupted: Interrupted | None = None
    timings_s: dict[str, float] = field(default_factory=dict)


@dataclass
class Seen:
    """What a run saw of itself up to its end. `t0_s`: CLOCK_MONOTONIC of the clock's zero, None before it; `errors`:
    of the agents until the replay was over (None: it was not), later ones only tell that the others have gone."""

    t0_s: float | None = None
    probe: PathProbe | None = None
    excess_s: float | None = None
    calibration: dict[str, Any] | None = None
    observed: Observed = field(default_factory=Observed)
    errors: Sequence[dict[str, Any]] | None = None


def collect(plan: FabricPlan, parts: Parts, seen: Seen, failure: str | None, datapath: str) -> FabricResult:
    """End agents and controller, and put together what they recorded. Raises nothing that the network's state could
    cause: whatever broke it must not cost the records."""
    rows: list[dict[str, Any]] = []
    faults = [] if failure is None else [failure]
    started, has_agents = seen.t0_s is not None, parts.has_agents
    errors = list(parts.fleet.errors) if seen.errors is None and has_agents else list(seen.errors or ())
    lost = parts.stop_agents()
    if parts.built:
        try:
            rows = parts.testbed.counters()
            parts.testbed.verify()
        except Exception as error:
            faults.append(f"after the run: {error}")
    _add_backlogs(rows, seen)
    events = parts.stop_controller()
    records = parts.fleet.records if has_agents and started else never_sent(plan)
    frames = merge(
        records,
        events,
        [asdict(request) for request in plan.requests],
        kind=plan.fabric.kind,
        rate_scale=plan.scale.rate_scale,
        ranks=None if plan.fabric.kind == "none" else plan.experiment.cluster.gpus_per_instance,
    )
    audit = None
    if parts.captures is not None and seen.t0_s is not None and parts.captures.files:
        audit, said = audited(plan, parts.cluster, parts.captures, frames, events, t0_monotonic_s=seen.t0_s, lost=lost)
        faults += said
    evidence = gather(
        plan,
        datapath=datapath if plan.fabric.kind == "ocs" else "none",
        frames=frames,
        records=records,
        errors=errors,
        controller_events=events,
        links=rows,
        probe=seen.probe,
        excess_s=seen.excess_s,
        observed=seen.observed,
        calibration=seen.calibration,
        t0_s=seen.t0_s,
        clock_readings=parts.fleet.clock_readings if has_agents else {},
        byes=parts.fleet.byes if has_agents else {},
        faults=faults,
        audit_gaps=None if audit is None else audit.gaps,
    )
    fidelity = judge(evidence) | ({} if audit is None else {"audit": described(audit, lost)})
    return FabricResult(frames, LINKS.frame(rows), fidelity, failure)


def _add_backlogs(rows: list[dict[str, Any]], seen: Seen) -> None:
    """The largest backlog that was sampled while the clock was on; nothing where nobody looked."""
    queues = seen.observed.queues
    for row in rows:
        if queues is not None and row["wire_bps"] is not None:
            row["largest_backlog_bytes"] = queues.backlog_bytes.get(f"{row['node']} {row['interface']}")


def never_sent(plan: FabricPlan) -> list[dict[str, Any]]:
    """What the gateway would have said of each request, had its clock started."""
    return [
        {"of": "request", "id": request.id, "arrival_s": request.arrival_s, "status": "unfinished"}
        | {"reason": NEVER_SENT, "sent_s": None, "first_token_s": None, "prefill": None}
        for request in plan.requests
    ]
