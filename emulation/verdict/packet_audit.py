"""The audit of one run: its captures read against its records, and what goes into `fidelity.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from emulation.agents.wire import HEADER_BYTES
from emulation.monitor.capture import CaptureError, Captures
from emulation.plan.fabric_plan import FabricPlan
from emulation.verdict.audit import Audit, Segment, audit_circuits, audit_paths, read
from results.metrics.merge import Frames
from topologies.cluster import Cluster


def audited(
    plan: FabricPlan,
    cluster: Cluster,
    captures: Captures,
    frames: Frames,
    controller_events: Iterable[Mapping[str, Any]],
    *,
    t0_monotonic_s: float,
    lost: Mapping[str, int],
) -> tuple[Audit | None, list[str]]:
    """The audit, None where it failed, and what of it makes the run invalid, in sentences. Raises nothing: half a file
    on a full disk, or a record that makes no sense, must not cost the rest."""
    try:
        found = audit_run(plan, cluster, captures, frames, controller_events, t0_monotonic_s=t0_monotonic_s, lost=lost)
    except Exception as error:
        return None, [f"the packet audit failed: {type(error).__name__}: {error}"]
    said = [f"packet audit: {violation}" for violation in found.violations[:3]]
    more = len(found.violations) - len(said)
    return found, [*said, f"packet audit: and {more} more"] if more else said


def audit_run(
    plan: FabricPlan,
    cluster: Cluster,
    captures: Captures,
    frames: Frames,
    controller_events: Iterable[Mapping[str, Any]],
    *,
    t0_monotonic_s: float,
    lost: Mapping[str, int],
) -> Audit:
    """Read every capture and check it; see `audit.py` for what. `lost`: packets that a capture did not see,
    by point; one that is not named did not say. Raises scapy's or another error on what cannot be read."""
    dilation, clocks = plan.scale.time_dilation, captures.clocks
    if clocks is None:
        raise CaptureError("the captures have not been stopped")
    segments: dict[str, list[Segment]] = {
        point.name: list(read(path, clocks=clocks, t0_monotonic_s=t0_monotonic_s, time_dilation=dilation))
        for point, path in captures.files.items()
    }
    addresses = {instance.name: instance.gpu_ips for instance in cluster.instances}
    arrived = frames.transfers.dropna(subset=["last_byte_s"]).to_dict("records")
    unsure = [point.name for point in captures.files if lost.get(point.name) != 0]
    if plan.fabric.kind == "ocs":
        found = audit_circuits(
            [segment for captured in segments.values() for segment in captured],
            controller_events,
            arrived,
            addresses=addresses,
            reconfiguration_s=getattr(plan.fabric, "reconfiguration_s", 0.0),
            time_dilation=dilation,
            unfinished_bytes=unfinished_bytes(plan, frames),
            complete=not unsure,
        )
    else:
        by_link = {(point.node, point.interface): segments[point.name] for point in captures.files}
        found = audit_paths(by_link, arrived, addresses=addresses, paths=cluster.kv_paths, complete=not unsure)
    found.gaps[:0] = [
        f"the capture {name} lost {lost[name]} packets" if name in lost else f"the capture {name} did not end in order"
        for name in unsure
    ]
    if clocks.stepped_s:
        found.gaps.insert(
            0, f"the machine's clock was set by {clocks.stepped_s * 1e3:.3g} ms while packets were stamped by it"
        )
    return found


def unfinished_bytes(plan: FabricPlan, frames: Frames) -> int:
    """Emulated bytes that transfers without a last byte on record may have delivered, at most: all of theirs, their
    prefix too where no record says that it stayed."""
    kv, ranks = plan.experiment.kv, plan.experiment.cluster.gpus_per_instance
    arrived = frames.transfers.dropna(subset=["last_byte_s"])["request"].value_counts()
    most = 0
    for row in frames.requests.to_dict("records"):
        missing = ranks - int(arrived.get(row["id"], 0))
        if missing <= 0 or pd.isna(row["sent_s"]):
            continue
        moves = pd.isna(row["migrated"]) or bool(row["migrated"])
        head_bytes = kv.rank_head_bytes(row["cached_tokens"], row["new_tokens"]) if moves else 0
        real_bytes = head_bytes + kv.rank_bytes(row["new_tokens"])
        most += missing * (plan.scale.emulated_bytes(real_bytes) + 2 * HEADER_BYTES)  # a part is never below its header
    return most


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
        "gaps": audit.gaps,
        "lost_by_the_capture": dict(lost),
    }


def _distribution_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    quantiles = {"min": 0, "p50": 50, "p95": 95, "max": 100}
    return {name: 1e3 * float(np.percentile(seconds, q)) for name, q in quantiles.items()} if seconds else None
