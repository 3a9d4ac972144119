"""What a run says about itself, put together for the verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from emulation.fabric_plan import FabricPlan
from emulation.fidelity import Evidence
from emulation.machine import MachineUse
from results.merge import Frames
from results.metrics import faster_than_line

if TYPE_CHECKING:
    from emulation.paths import PathProbe

#: A receiver may count what a shaper let out as one burst, and what arrived with the first byte, in no time at all.
BURST_BYTES = 3 * 65_536
#: Shorter transfers say more of their first and last packet than of their link.
LONG_TRANSFER_BYTES = 500_000
CLOCK_ROUNDING_S = 1e-6


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
    machine: MachineUse | None,
    faults: Sequence[str],
) -> Evidence:
    """The evidence of one run; real seconds of the records become wall seconds."""
    scale = plan.scale
    of = {kind: [record for record in records if record.get("of") == kind] for kind in ("request", "prefill", "sender")}
    switches = [event for event in controller_events if event.get("event") == "switch"]
    tau_s = getattr(plan.fabric, "reconfiguration_s", 0.0)
    timeouts = [record["rtos"] for record in of["sender"] if record.get("rtos") is not None]
    statuses = frames.requests["status"].tolist()
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
        live_lateness_s=[
            scale.wall_s(told_s - live_s)
            for record in of["prefill"]
            for _, live_s, told_s, *_ in record.get("told_live") or ()
            if told_s is not None and live_s is not None
        ],
        switch_excess_s=[
            scale.wall_s(event["dark_s"] - tau_s) for event in switches if event.get("dark_s") is not None
        ],
        calibrated_excess_s=excess_s,
        retransmits=sum(record.get("retransmits") or 0 for record in of["sender"]),
        rtos=sum(timeouts) if timeouts else None,
        transfers=len(timeouts),
        transfers_with_rto=sum(1 for count in timeouts if count),
        circuit_rate_ratios=_circuit_rates(plan, frames),
        completed=statuses.count("completed"),
        unfinished=statuses.count("unfinished"),
        drops=sum(row.get("drops") or 0 for row in links),
        machine=machine,
        faults=[*faults, *_faults(plan, frames, errors, controller_events)],
        notes=[*_notes(plan), *(probe.notes if probe else ())],
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
