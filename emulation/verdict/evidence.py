"""What a run says about itself, put together for the verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from emulation.monitor.observed import Observed
from emulation.plan.fabric_plan import FabricPlan
from emulation.scale import ScaleModel
from emulation.verdict.faults import clock_offsets, in_records, of_clocks, of_rules, seen
from emulation.verdict.unscaled import Quantities
from results.metrics.merge import Frames

if TYPE_CHECKING:
    from emulation.probe.paths import PathProbe

#: Shorter transfers say more of their first and last packet than of their link.
LONG_TRANSFER_BYTES = 500_000


@dataclass(slots=True)
class Evidence:
    """What a run measured. Times are wall-clock (emulated) seconds; each sentence of `faults` makes it invalid.
    `audit_gaps`: what the packet audit could not check, None without one."""

    scale: ScaleModel
    datapath: str
    link_ratios: dict[str, float] = field(default_factory=dict)
    rtt_s: dict[str, float] = field(default_factory=dict)
    arrival_lag_s: Sequence[float] = ()
    prefill_lateness_s: Sequence[float] = ()
    release_lateness_s: Sequence[float] = ()
    timer_lateness_s: dict[str, float] = field(default_factory=dict)
    live_lateness_s: Sequence[float] = ()
    window_lateness_s: Sequence[float] = ()
    switch_excess_s: Sequence[float] = ()
    calibrated_excess_s: float | None = None
    control_rtt_s: Mapping[str, Sequence[float]] = field(default_factory=dict)
    clock_offsets_s: dict[str, float] = field(default_factory=dict)
    retransmits: int = 0
    rtos: int | None = 0
    transfers: int = 0
    transfers_with_rto: int = 0
    circuit_rate_ratios: Sequence[float] = ()
    completed: int = 0
    unfinished: int = 0
    drops: int = 0
    observed: Observed = field(default_factory=Observed)
    quantities: Quantities | None = None
    calibration: Mapping[str, Any] | None = None
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    audit_gaps: Sequence[str] | None = None


def gather(
    plan: FabricPlan,
    *,
    datapath: str,
    frames: Frames,
    records: Sequence[Mapping[str, Any]],
    errors: Sequence[Mapping[str, Any]],
    controller_events: Sequence[Mapping[str, Any]],
    links: Sequence[Mapping[str, Any]],
    probe: PathProbe | None,
    excess_s: float | None,
    observed: Observed,
    faults: Sequence[str],
    t0_s: float | None = None,
    clock_readings: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    byes: Mapping[str, Mapping[str, Any]] | None = None,
    calibration: Mapping[str, Any] | None = None,
    audit_gaps: Sequence[str] | None = None,
) -> Evidence:
    """The evidence of one run; real seconds of the records become wall seconds.

    t0_s: CLOCK_MONOTONIC of the run clock's zero. clock_readings: agent -> (CLOCK_MONOTONIC when it was heard, what its
    run clock said). byes: agent -> its last words.
    """
    scale = plan.scale
    of = {kind: [record for record in records if record.get("of") == kind] for kind in ("request", "prefill", "sender")}
    switches = [event for event in controller_events if event.get("event") == "switch"]
    reconfiguration_s = getattr(plan.fabric, "reconfiguration_s", 0.0)
    timeouts = [record["rtos"] for record in of["sender"] if record.get("rtos") is not None]
    statuses = frames.requests["status"].tolist()
    offsets_s = clock_offsets(clock_readings or {}, t0_s, scale.time_dilation)
    control_rtt_s: dict[str, list[float]] = {}
    for record in of["prefill"]:
        for event, rtt_s in record.get("answered_s") or ():
            control_rtt_s.setdefault(event, []).append(scale.wall_s(rtt_s))
    return Evidence(
        scale=scale,
        datapath=datapath,
        link_ratios=dict(probe.goodput_ratios) if probe else {},
        rtt_s=dict(probe.rtt_s) if probe else {},
        arrival_lag_s=[
            scale.wall_s(record["sent_s"] - record["arrival_s"])
            for record in of["request"]
            if record.get("sent_s") is not None
        ],
        prefill_lateness_s=[
            scale.wall_s(record[f"{edge}_actual_s"] - record[f"{edge}_s"])
            for record in of["prefill"]
            for edge in ("start", "end")
            if record.get(f"{edge}_actual_s") is not None
        ],
        release_lateness_s=[
            scale.wall_s(record["release_lateness_s"])
            for record in of["prefill"]
            if record.get("release_lateness_s") is not None
        ],
        timer_lateness_s={
            agent: scale.wall_s(bye["timer_lateness_s"]["max"])
            for agent, bye in (byes or {}).items()
            if (bye.get("timer_lateness_s") or {}).get("max") is not None
        },
        live_lateness_s=[
            scale.wall_s(told_s - live_s)
            for record in of["prefill"]
            for _, live_s, told_s, *_ in record.get("told_live") or ()
            if told_s is not None and live_s is not None
        ],
        window_lateness_s=[
            scale.wall_s(event["late_s"])
            for event in controller_events
            if event.get("event") == "window" and event.get("late_s") is not None
        ],
        switch_excess_s=[
            scale.wall_s(event["dark_s"] - reconfiguration_s) for event in switches if event.get("dark_s") is not None
        ],
        calibrated_excess_s=excess_s,
        control_rtt_s=control_rtt_s,
        clock_offsets_s=offsets_s,
        retransmits=sum(record.get("retransmits") or 0 for record in of["sender"]),
        rtos=sum(timeouts) if timeouts else None,
        transfers=len(timeouts),
        transfers_with_rto=sum(1 for count in timeouts if count),
        circuit_rate_ratios=_circuit_rates(plan, frames),
        completed=statuses.count("completed"),
        unfinished=statuses.count("unfinished"),
        drops=sum(row.get("drops") or 0 for row in links),
        observed=observed,
        quantities=_quantities(plan, frames, probe, control_rtt_s),
        calibration=calibration,
        faults=[
            *faults,
            *in_records(plan, frames, errors, controller_events),
            *seen(observed, t0_s),
            *of_rules(plan, observed, controller_events, t0_s),
            *of_clocks(offsets_s, scale),
        ],
        audit_gaps=audit_gaps,
        notes=[*_notes(plan), *(probe.notes if probe else ()), *(observed.cost.failures if observed.cost else ())],
    )


def _quantities(
    plan: FabricPlan, frames: Frames, probe: PathProbe | None, control_rtt_s: Mapping[str, Sequence[float]]
) -> Quantities | None:
    """What the things that do not scale compete with, as this run had it; None where no KV crossed a link."""
    arrived = frames.transfers.dropna(subset=["first_byte_s", "last_byte_s"])
    if plan.fabric.kind == "none" or arrived.empty:
        return None
    prefills = (frames.requests["prefill_end_s"] - frames.requests["prefill_start_s"]).dropna()
    reconfiguration_s = getattr(plan.fabric, "reconfiguration_s", None)
    answers_s = [rtt_s for samples in control_rtt_s.values() for rtt_s in samples]
    return Quantities(
        transfer_bytes=float(arrived["emulated_bytes"].median()),
        link_bytes_per_s=plan.kv_goodput_bps / 8,
        prefill_s=plan.scale.wall_s(float(prefills.median())) if len(prefills) else None,
        reconfiguration_s=None if reconfiguration_s is None else plan.scale.wall_s(reconfiguration_s),
        round_trip_s=median(probe.rtt_s.values()) if probe and probe.rtt_s else None,
        control_s=median(answers_s) if answers_s else None,
        window_bytes=plan.window_bytes,
        queue_bytes=plan.queue_bytes,
        rto_min_s=plan.rto_min_ms / 1e3,
        rto_follows_window=plan.rto_follows_window,
        new_connections=not plan.keeps_connections,
    )


def _circuit_rates(plan: FabricPlan, frames: Frames) -> list[float]:
    """Achieved over configured rate of the long transfers that had a circuit to themselves, first to last byte.

    Pull only: a layer-wise transfer also waits for its layers.
    """
    if plan.fabric.kind != "ocs" or plan.experiment.transfer != "pull":
        return []
    long = frames.transfers[frames.transfers["emulated_bytes"] >= LONG_TRANSFER_BYTES].dropna(
        subset=["first_byte_s", "last_byte_s"]
    )
    rates = long["bytes"] / (long["last_byte_s"] - long["first_byte_s"])
    return [float(rate) / plan.experiment.kv_goodput_bytes_per_s for rate in rates]


def _notes(plan: FabricPlan) -> list[str]:
    """What does not scale, said once a run."""
    segment_real_bytes = 1448 / plan.scale.rate_scale
    layer_bytes = plan.experiment.kv.rank_layer_bytes(1100)
    notes = [f"one TCP segment stands for {segment_real_bytes / 1e6:.3g} MB of KV"]
    if plan.experiment.transfer == "layerwise" and layer_bytes < segment_real_bytes:
        notes.append(
            f"one layer of 1,100 new tokens is {layer_bytes * plan.scale.rate_scale:.0f} emulated bytes: less than a "
            "segment, so the layer granularity of such a tail is invisible to packets"
        )
    return notes
