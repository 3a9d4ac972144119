"""The audit of one run: its captures read against its records, and what goes into `fidelity.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from emulation.audit import Audit, Segment, audit_circuits, audit_paths, read
from emulation.capture import Captures
from emulation.fabric_plan import FabricPlan
from results.merge import Frames
from topologies.cluster import Cluster


def audit_run(
    plan: FabricPlan,
    cluster: Cluster,
    captures: Captures,
    frames: Frames,
    controller_events: Iterable[Mapping[str, Any]],
    *,
    t0_monotonic_s: float,
) -> Audit:
    """Read every capture and check it; see `emulation/audit.py` for what."""
    dilation = plan.scale.time_dilation
    segments: dict[str, list[Segment]] = {
        point.name: list(
            read(path, clock_offset_s=captures.clock_offset_s, t0_monotonic_s=t0_monotonic_s, time_dilation=dilation)
        )
        for point, path in captures.files.items()
    }
    addresses = {instance.name: instance.gpu_ips for instance in cluster.instances}
    arrived = frames.transfers.dropna(subset=["last_byte_s"]).to_dict("records")
    if plan.fabric.kind == "ocs":
        return audit_circuits(
            [segment for found in segments.values() for segment in found],
            controller_events,
            arrived,
            addresses=addresses,
            tau_s=getattr(plan.fabric, "reconfiguration_s", 0.0),
            time_dilation=dilation,
        )
    by_uplink: dict[int, list[Segment]] = {}
    for point in captures.files:
        by_uplink.setdefault(int(point.interface.removeprefix("ks")), []).extend(segments[point.name])
    return audit_paths(by_uplink, arrived, addresses=addresses)


def described(audit: Audit, lost: Mapping[str, int]) -> dict[str, Any]:
    """For `fidelity.json`: counts, the distribution of dark times (real ms), violations, packets the captures lost."""
    return {
        "packets": audit.packets,
        "payload_bytes": audit.payload_bytes,
        "retransmitted_bytes": audit.retransmitted_bytes,
        "flows": audit.flows,
        "dark_ms": _distribution_ms(audit.dark_s),
        "first_packet_ms": _distribution_ms(audit.first_packet_s),
        "excess_ms": {step: _distribution_ms(seconds) for step, seconds in audit.excess_s.items()},
        "byte_delay_ms": _distribution_ms(audit.byte_delay_s),
        "reconfigurations": len(audit.dark_s),
        "violations": audit.violations,
        "lost_by_the_capture": dict(lost),
    }


def _distribution_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    quantiles = {"min": 0, "p50": 50, "p95": 95, "max": 100}
    return {name: 1e3 * float(np.percentile(seconds, q)) for name, q in quantiles.items()} if seconds else None
