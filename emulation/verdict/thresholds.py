"""The measures of a run and their thresholds. Pure: evidence in, measures out.

Thresholds of times are real: a cluster that is emulated slower may be measured by a slower clock. A reason names what
took the time, as far as the machine's own figures tell.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from emulation.monitor.machine import MachineUse
from emulation.probe.link import LINK_RATE_TOLERANCE
from emulation.verdict.evidence import Evidence
from emulation.verdict.measures import Measure, delay, percentile, ratio

ARRIVAL_LAG_P99_S = 0.005
TIMER_LATENESS_P99_S = 0.005
WINDOW_LATENESS_P95_S = 0.005
SWITCH_EXCESS_MEDIAN_S = 0.005
CONTROL_MEDIAN_S = 0.010
BUSY_PERCENT = 95.0
FOREIGN_PERCENT = 25.0
STEAL_PERCENT = 5.0
WAITING_PERCENT = 25.0
TIMEOUT_PERCENT = 1.0
MEMORY_PERCENT = 97.0
UNSEEN_S = 2.0
#: A CPU quota that was used up for no longer than this is not why anything was late.
THROTTLED_S = 0.1


def measures(evidence: Evidence) -> list[Measure]:
    """Every measure of a run, those without a limit too."""
    cause = busy_cause(evidence.observed.machine)
    return [
        *_links(evidence),
        *_timing(evidence, cause),
        *_control(evidence, cause),
        *_packets(evidence, cause),
        *_machine(evidence.observed.machine),
        *_sampling(evidence),
    ]


def busy_cause(use: MachineUse | None) -> str:
    """What took the processors, in words."""
    if use is None:
        return "the machine was too busy"
    if (quota := use.throttled) is not None and quota.throttled_s > THROTTLED_S:
        return (
            f"{quota.allowed()} and was throttled in {quota.throttled_periods} periods, {quota.throttled_s:.1f} s in "
            f"all: {quota.remedy()}"
        )
    if use.steal_percent > STEAL_PERCENT:
        return f"the hypervisor took {use.steal_percent:.0f} % of the cores; run it on a quiet host"
    if use.foreign_percent > FOREIGN_PERCENT / 2:
        return f"other programs took {use.foreign_percent:.0f} % of the cores; close them"
    if use.full_core_percent > 20:
        return f"one core was full for {use.full_core_percent:.0f} % of the time"
    return f"the cores were busy for {use.all_cores_percent:.0f} % on average, so in bursts"


def _links(evidence: Evidence) -> Iterator[Measure]:
    for path, of_rate in evidence.link_ratios.items():
        yield ratio(
            f"goodput error of {path}",
            abs(of_rate - 1.0),
            LINK_RATE_TOLERANCE,
            severity="invalid",
            remedy="the link does not carry its rate; lower scale.rate_scale or raise scale.time_dilation",
        )
    for path, rtt_s in evidence.rtt_s.items():
        yield delay(f"round trip of {path}", rtt_s, evidence.scale)
    if len(evidence.circuit_rate_ratios):
        yield ratio(
            "rate of long transfers on circuits below the configured one, median",
            1.0 - float(np.median(evidence.circuit_rate_ratios)),
            LINK_RATE_TOLERANCE,
            severity="degraded",
            remedy=f"{busy_cause(evidence.observed.machine)}; lower scale.rate_scale or raise scale.time_dilation",
        )


def _timing(evidence: Evidence, cause: str) -> Iterator[Measure]:
    scale, lag_s, late_s = evidence.scale, evidence.arrival_lag_s, evidence.prefill_lateness_s
    releases_s, limit_s = evidence.release_lateness_s, TIMER_LATENESS_P99_S
    p99 = percentile(lag_s, 99)
    yield delay("arrival lag p99", p99, scale, limit_s=ARRIVAL_LAG_P99_S, severity="invalid", cause=cause)
    yield delay("arrival lag maximum", percentile(lag_s, 100), scale)
    p99 = percentile(late_s, 99)
    yield delay("prefill timer lateness p99", p99, scale, limit_s=limit_s, severity="degraded", cause=cause)
    p99 = percentile(releases_s, 99)
    yield delay("layer release lateness p99", p99, scale, limit_s=limit_s, severity="degraded", cause=cause)
    if evidence.timer_lateness_s:
        agent, worst_s = max(evidence.timer_lateness_s.items(), key=lambda item: item[1])
        yield delay(f"timer lateness maximum (agent {agent})", worst_s, scale)
    if evidence.clock_offsets_s:
        yield delay("clock offset of an agent, largest", max(map(abs, evidence.clock_offsets_s.values())), scale)


def _control(evidence: Evidence, cause: str) -> Iterator[Measure]:
    scale = evidence.scale
    starts_s, excess_s = evidence.window_lateness_s, evidence.switch_excess_s
    slow = f"the controller answers slowly: a plug-in, or {cause}"
    for event, rtt_s in evidence.control_rtt_s.items():
        half, name = percentile(rtt_s, 50), f"control round trip of {event}"
        yield delay(f"{name}, median", half, scale, limit_s=CONTROL_MEDIAN_S, severity="degraded", cause=slow)
        yield delay(f"{name}, p99", percentile(rtt_s, 99), scale)
    yield delay("live circuit to sender told, median", percentile(evidence.live_lateness_s, 50), scale)
    yield delay("live circuit to sender told, p99", percentile(evidence.live_lateness_s, 99), scale)
    late = f"the controller was late: {cause}"
    p95, limit_s = percentile(starts_s, 95), WINDOW_LATENESS_P95_S
    yield delay("window start against plan, p95", p95, scale, limit_s=limit_s, severity="degraded", cause=late)
    half, limit_s = percentile(excess_s, 50), SWITCH_EXCESS_MEDIAN_S
    yield delay("reconfiguration beyond tau, median", half, scale, limit_s=limit_s, severity="degraded", cause=cause)
    yield delay("reconfiguration beyond tau, p95", percentile(excess_s, 95), scale)
    if evidence.calibrated_excess_s is not None:
        yield delay("calibrated excess of a switch", evidence.calibrated_excess_s, scale)


def _packets(evidence: Evidence, cause: str) -> Iterator[Measure]:
    yield Measure("TCP retransmissions", "segments", float(evidence.retransmits))
    # kernels before 6.7 do not tell
    yield Measure("TCP timeouts (RTO)", "", None if evidence.rtos is None else float(evidence.rtos))
    yield ratio_percent(
        "transfers hit by a TCP timeout",
        100 * evidence.transfers_with_rto / evidence.transfers if evidence.transfers else None,
        TIMEOUT_PERCENT,
        "a timeout does not scale with the cluster; it costs tens of ms that a real fabric would not: look for drops, "
        f"and whether {cause}",
    )
    yield Measure("packets dropped by queues", "packets", float(evidence.drops))
    if (queues := evidence.observed.queues) is not None:
        backlog_bytes = float(queues.largest_backlog_bytes)
        real_bytes = backlog_bytes / evidence.scale.rate_scale
        at = f" ({queues.largest_at})" if queues.largest_at else ""
        yield Measure(f"largest queue backlog seen{at}", "bytes", backlog_bytes, real_bytes)
        yield ratio(f"largest queue backlog of its limit{at}", queues.largest_share)
        yield Measure("samples with a queue more than half full", "%", queues.half_full_percent)
        for link, lost in sorted(queues.drops.items(), key=lambda item: -item[1])[:3]:
            yield Measure(f"packets dropped at {link}", "packets", float(lost))
    yield Measure(
        "requests unfinished at the end",
        "",
        float(evidence.unfinished),
        limit=0,
        severity="degraded",
        remedy="the cluster was overloaded, or something waits for ever; lower the load or look at requests.csv",
    )


def _machine(use: MachineUse | None) -> Iterator[Measure]:
    if use is None:
        return
    cause = busy_cause(use)
    yield Measure("CPU, mean of all cores", "%", use.all_cores_percent)
    yield ratio_percent(
        "CPU, p95 of all cores",
        use.p95_all_cores_percent,
        BUSY_PERCENT,
        f"{cause}; lower scale.rate_scale, raise scale.time_dilation or use fewer instances",
    )
    yield Measure("CPU, busiest core", "%", use.busiest_core_percent)
    for number, share in enumerate(use.cores_percent):
        yield Measure(f"CPU of core {number}", "%", share)
    yield Measure("samples with a full core", "%", use.full_core_percent)
    yield ratio_percent(
        "CPU taken by other programs", use.foreign_percent, FOREIGN_PERCENT, "close them, or run it when they are done"
    )
    yield Measure("CPU taken by other programs, p95", "%", use.p95_foreign_percent)
    yield ratio_percent(
        "CPU stolen by the hypervisor",
        use.steal_percent,
        STEAL_PERCENT,
        "other machines on this host took the cores; run it again on a quiet host",
    )
    for name, share in use.process_percent.items():
        yield Measure(f"CPU of {name}", "%", share)
    for name, share in use.waiting_percent.items():
        # packets wait with a switch; agents run in real time, and the rest is beside the path
        limit = WAITING_PERCENT if name.startswith("ovs-vswitchd") else None
        yield ratio_percent(f"time {name} waited for a core", share, limit, f"packets on circuits waited too: {cause}")
    if (quota := use.throttled) is not None:
        yield Measure(f"periods in which a CPU quota was used up ({quota.folder})", "", float(quota.throttled_periods))
        yield Measure(f"time for which a CPU quota was used up ({quota.folder})", "s", quota.throttled_s)
    yield Measure("least available memory", "MiB", use.least_available_memory_bytes / 2**20)
    yield ratio_percent(
        "memory in use, most",
        100 * (1 - use.least_available_memory_bytes / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))),
        MEMORY_PERCENT,
        "the machine may swap; close programs or use fewer instances (an agent takes 22 MiB)",
    )


def _sampling(evidence: Evidence) -> Iterator[Measure]:
    observed = evidence.observed
    if (cost := observed.cost) is not None:
        yield Measure("CPU of these measurements", "%", cost.cpu_percent)
        yield Measure(
            "longest time nobody looked",
            "ms",
            cost.longest_gap_s * 1e3,
            limit=UNSEEN_S * 1e3,
            severity="degraded",
            remedy="the run's own process was stopped or starved: what happened meanwhile was not seen; run it again",
        )
        yield unseen("watches that ended early", cost.failures, "what they look at was not seen from then on")
    if observed.unread_rules is not None:
        yield unseen(
            "circuit switches whose rules were never read",
            observed.unread_rules,
            f"foreign rules would not have been seen: {busy_cause(observed.machine)}",
        )
    if evidence.audit_gaps is not None:
        yield unseen(
            "gaps of the packet audit", evidence.audit_gaps, "the packets do not prove everything; run it again"
        )


def unseen(name: str, what: Sequence[str], remedy: str) -> Measure:
    """How much of what makes a run invalid could not have been seen; degraded above none."""
    said = "; ".join([*what[:2], *([f"and {len(what) - 2} more"] if len(what) > 2 else []), remedy])
    return Measure(name, "", float(len(what)), limit=0, severity="degraded", remedy=said if what else "")


def ratio_percent(name: str, value: float | None, limit: float | None, remedy: str) -> Measure:
    """A share of the machine, or of the transfers, in percent; degraded above its limit."""
    return Measure(name, "%", value, limit=limit, severity="info" if limit is None else "degraded", remedy=remedy)
