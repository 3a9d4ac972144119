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
    tau_s = scale.wall_s(getattr(plan.fabric, "reconfiguration_s", 0.0))
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
        switch_excess_s=[event["dark_s"] - tau_s for event in switches if event.get("dark_s") is not None],
        calibrated_excess_s=excess_s,
        retransmits=sum(record.get("retransmits") or 0 for record in of["sender"]),
        rtos=sum(record.get("rtos") or 0 for record in of["sender"]),
        transfers=len(of["sender"]),
        transfers_with_rto=sum(1 for record in of["sender"] if record.get("rtos")),
        drops=sum(row.get("drops") or 0 for row in links),
        machine=machine,
        faults=[*faults, *_faults(plan, frames, errors, controller_events)],
        notes=_notes(plan),
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
    rate = plan.experiment.kv_goodput_bytes_per_s
    burst_bytes = BURST_BYTES / plan.scale.rate_scale
    found += _few("bytes and times do not fit", faster_than_line(frames.transfers, rate, allowance_bytes=burst_bytes))
    return found


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
