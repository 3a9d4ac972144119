"""What must not happen in a run, in sentences: each of them makes it invalid. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emulation.monitor.observed import Observed
from emulation.plan.fabric_plan import FabricPlan
from emulation.scale import ScaleModel
from emulation.verdict.circuit_rules import differences
from results.metrics.merge import Frames
from results.metrics.metrics import faster_than_line

#: A receiver may count what a shaper let out as one burst, and what arrived with the first byte, in no time at all.
BURST_BYTES = 3 * 65_536
CLOCK_ROUNDING_S = 1e-6
#: How far an agent's clock may be off the run's, real seconds; two readings of one clock differ by microseconds.
CLOCK_OFFSET_S = 0.001


def in_records(
    plan: FabricPlan,
    frames: Frames,
    errors: Sequence[Mapping[str, Any]],
    controller_events: Sequence[Mapping[str, Any]],
) -> list[str]:
    """What records, agents and controller say."""
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
    reconfiguration_s = getattr(plan.fabric, "reconfiguration_s", 0.0)
    found = []
    for event in controller_events:
        if event.get("event") != "switch":
            continue
        waited_s = min(float(event["dark_s"]), float(event.get("steps_s", {}).get("dark_wait", event["dark_s"])))
        if waited_s < reconfiguration_s - CLOCK_ROUNDING_S:
            found.append(f"window {event['window']} waited {waited_s * 1e3:.3f} ms of {reconfiguration_s * 1e3:g} ms")
    return found


def clock_offsets(
    readings: Mapping[str, Sequence[tuple[float, float]]], t0_s: float | None, time_dilation: float
) -> dict[str, float]:
    """How far each agent's run clock was behind the run's (wall seconds; negative: ahead), where it was furthest.

    readings: agent -> (CLOCK_MONOTONIC, its run clock at the same moment); how long the message took does not matter.
    """
    if t0_s is None:
        return {}
    return {
        agent: max((at_s - t0_s - run_s * time_dilation for at_s, run_s in pairs), key=abs)
        for agent, pairs in readings.items()
        if pairs
    }


def of_clocks(offsets_s: Mapping[str, float], scale: ScaleModel) -> list[str]:
    """Agents whose run clock is another one. offsets_s: as `clock_offsets` finds them."""
    limit_s = scale.wall_s(CLOCK_OFFSET_S)
    return _few(
        "a clock is wrong",
        [
            f"agent {agent}'s is {abs(offset_s) * 1e3:.1f} ms {'behind' if offset_s > 0 else 'ahead of'} the run's; "
            f"{limit_s * 1e3:g} ms are allowed. Its times, and every duration that begins or ends there, are off"
            for agent, offset_s in offsets_s.items()
            if abs(offset_s) > limit_s
        ],
    )


def seen(observed: Observed, t0_s: float | None) -> list[str]:
    """What was seen while the clock was on and must not happen: changes, stopped processes."""
    t0_s = 0.0 if t0_s is None else t0_s
    stops = observed.machine.stops if observed.machine else ()
    found = _few(
        "a process was stopped",
        [f"{stop.name}, {stop.at_s - t0_s:.1f} s after the start, for about {stop.seconds:.1f} s" for stop in stops],
    )
    first_s: dict[tuple[str, str], float] = {}
    for change in observed.changes:
        first_s.setdefault((change.where, change.what), change.at_s - t0_s)
    changes = [f"{where}: {what}, {at_s:.1f} s after the start" for (where, what), at_s in first_s.items()]
    return found + _few("the network was changed while the run was on", changes, most=6)


def of_rules(
    plan: FabricPlan, observed: Observed, controller_events: Sequence[Mapping[str, Any]], t0_s: float | None
) -> list[str]:
    """What the circuit switches held and should not have, and what they should have held and did not."""
    if t0_s is None or not observed.rules:
        return []
    ports = plan.switch_ports(plan.cluster())
    held, lacked = differences(observed.rules, ports, controller_events, t0_s, plan.scale.time_dilation)
    return [*_few("the circuit switches held", held, most=6), *_few("the circuit switches lacked", lacked, most=6)]


def _few(what: str, lines: Sequence[str], most: int = 3) -> list[str]:
    shown = [f"{what}: {line}" for line in lines[:most]]
    return [*shown, f"{what}: and {len(lines) - most} more"] if len(lines) > most else shown
