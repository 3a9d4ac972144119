"""What a run says about itself, put together for the verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from emulation.fabric_plan import FabricPlan
from emulation.observed import Observed
from emulation.scale import ScaleModel
from emulation.unscaled import Quantities
from results.merge import Frames
from results.metrics import faster_than_line
from topologies.cluster import PRIORITY_RTO_MIN_MS, RTO_MIN_MS

if TYPE_CHECKING:
    from emulation.paths import PathProbe

#: A receiver may count what a shaper let out as one burst, and what arrived with the first byte, in no time at all.
BURST_BYTES = 3 * 65_536
#: Shorter transfers say more of their first and last packet than of their link.
LONG_TRANSFER_BYTES = 500_000
CLOCK_ROUNDING_S = 1e-6
#: How far an agent's clock may be off the others', real seconds: what a message between two processes may take.
CLOCK_OFFSET_S = 0.005


@dataclass(slots=True)
class Evidence:
    """What a run measured. Times are wall-clock (emulated) seconds; each sentence of `faults` makes it invalid."""

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
) -> Evidence:
    """The evidence of one run; real seconds of the records become wall seconds.

    t0_s: CLOCK_MONOTONIC of the run clock's zero. clock_readings: agent -> (CLOCK_MONOTONIC when it was heard, what its
    run clock said). byes: agent -> its last words.
    """
    scale = plan.scale
    of = {kind: [record for record in records if record.get("of") == kind] for kind in ("request", "prefill", "sender")}
    switches = [event for event in controller_events if event.get("event") == "switch"]
    tau_s = getattr(plan.fabric, "reconfiguration_s", 0.0)
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
            scale.wall_s(event["dark_s"] - tau_s) for event in switches if event.get("dark_s") is not None
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
            *_faults(plan, frames, errors, controller_events),
            *_seen(observed, t0_s),
            *_clocks(offsets_s, scale),
        ],
        notes=[*_notes(plan), *(probe.notes if probe else ()), *(observed.cost.failures if observed.cost else ())],
    )


def clock_offsets(
    readings: Mapping[str, Sequence[tuple[float, float]]], t0_s: float | None, time_dilation: float
) -> dict[str, float]:
    """How far each agent's run clock is behind the others' (wall seconds; negative: ahead).

    A reading is late by what its message took, which is little but now and then, so the median counts: it does not hide
    a clock that was right at first. What all agents have in common is our own.
    """
    if t0_s is None:
        return {}
    behind_s = {
        agent: median(heard_s - t0_s - run_s * time_dilation for heard_s, run_s in pairs)
        for agent, pairs in readings.items()
        if pairs
    }
    common_s = median(behind_s.values()) if behind_s else 0.0
    return {agent: late_s - common_s for agent, late_s in behind_s.items()}


def _clocks(offsets_s: Mapping[str, float], scale: ScaleModel) -> list[str]:
    limit_s = scale.wall_s(CLOCK_OFFSET_S)
    return _few(
        "a clock is wrong",
        [
            f"agent {agent}'s is {abs(offset_s) * 1e3:.1f} ms {'behind' if offset_s > 0 else 'ahead of'} the others'; "
            f"{limit_s * 1e3:g} ms are allowed. Its times, and every duration that begins or ends there, are off"
            for agent, offset_s in offsets_s.items()
            if abs(offset_s) > limit_s
        ],
    )


def _seen(observed: Observed, t0_s: float | None) -> list[str]:
    """What was seen while the clock was on and must not happen: changes, foreign rules, stopped processes."""
    t0_s = 0.0 if t0_s is None else t0_s
    stops = observed.machine.stops if observed.machine else ()
    found = _few(
        "a process was stopped",
        [f"{stop.name}, {stop.at_s - t0_s:.1f} s after the start, for about {stop.seconds:.1f} s" for stop in stops],
    )
    found += _few("the circuit switches held", observed.rule_faults)
    changes = [
        f"{change.where}: {change.what}, {change.at_s - t0_s:.1f} s after the start" for change in observed.changes
    ]
    return found + _few("the network was changed while the run was on", changes)


def _quantities(
    plan: FabricPlan, frames: Frames, probe: PathProbe | None, control_rtt_s: Mapping[str, Sequence[float]]
) -> Quantities | None:
    """What the things that do not scale compete with, as this run had it; None where no KV crossed a link."""
    arrived = frames.transfers.dropna(subset=["first_byte_s", "last_byte_s"])
    if plan.fabric.kind == "none" or arrived.empty:
        return None
    prefills = (frames.requests["prefill_end_s"] - frames.requests["prefill_start_s"]).dropna()
    tau_s = getattr(plan.fabric, "reconfiguration_s", None)
    answers_s = [rtt_s for samples in control_rtt_s.values() for rtt_s in samples]
    return Quantities(
        transfer_bytes=float(arrived["emulated_bytes"].median()),
        link_bytes_per_s=plan.kv_goodput_bps / 8,
        prefill_s=plan.scale.wall_s(float(prefills.median())) if len(prefills) else None,
        reconfiguration_s=None if tau_s is None else plan.scale.wall_s(tau_s),
        round_trip_s=median(probe.rtt_s.values()) if probe and probe.rtt_s else None,
        control_s=median(answers_s) if answers_s else None,
        rto_min_s=(PRIORITY_RTO_MIN_MS if getattr(plan.fabric, "queue", "") == "priority" else RTO_MIN_MS) / 1e3,
        new_connections=not plan.keeps_connections,
    )


def _faults(
    plan: FabricPlan,
    frames: Frames,
    errors: Sequence[Mapping[str, Any]],
    controller_events: Sequence[Mapping[str, Any]],
) -> list[str]:
    found = []
    if frames.unaccounted:
        found.append(f"{frames.unaccounted} requests are not accounted for: no record says what became of them")
    found += _few("records contradict each other", frames.inconsistencies)
    found += _few("an agent reported", [f"{e.get('agent')}: {e.get('where')}: {e.get('text')}" for e in errors])
    faults = [str(event.get("reason")) for event in controller_events if event.get("event") == "fault"]
    found += _few("the controller reported", faults)
    found += _few("dark for less than tau", _too_short(plan, controller_events))
    rate = plan.experiment.kv_goodput_bytes_per_s
    burst_bytes = BURST_BYTES / plan.scale.rate_scale
    found += _few("bytes and times do not fit", faster_than_line(frames.transfers, rate, allowance_bytes=burst_bytes))
    return found


def _too_short(plan: FabricPlan, controller_events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Reconfigurations whose dark time, or wait, was shorter than the delay: the circuit was live too early."""
    tau_s = getattr(plan.fabric, "reconfiguration_s", 0.0)
    found = []
    for event in controller_events:
        if event.get("event") != "switch":
            continue
        waited_s = min(float(event["dark_s"]), float(event.get("steps_s", {}).get("dark_wait", event["dark_s"])))
        if waited_s < tau_s - CLOCK_ROUNDING_S:
            found.append(f"window {event['window']} waited {waited_s * 1e3:.3f} ms of {tau_s * 1e3:g} ms")
    return found


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


def _few(what: str, lines: Sequence[str], most: int = 3) -> list[str]:
    shown = [f"{what}: {line}" for line in lines[:most]]
    return [*shown, f"{what}: and {len(lines) - most} more"] if len(lines) > most else shown


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
