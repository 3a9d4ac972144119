"""The requests of one run: what every tenant asks, and when. The same for every fabric, policy and substrate.

Everything drawn depends on the seed and the tenant's name (lengths, arrivals, sessions, ties) or on the seed and the
request's id (migration, prediction error). A tenant's arrivals therefore do not change when another tenant is added,
when the warm-up is longer, or when the prediction error is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from workloads.prediction import prediction_factor
from workloads.prefill import PrefillTiming
from workloads.request import Request
from workloads.tenant_requests import SYNTHETIC, PlannedRequest, content_of, synthetic_requests, traced_requests
from workloads.tenants import TenantSpec, migrates, owned_instances, owned_prefill_counts
from workloads.traces.formats import FORMATS, SOURCES
from workloads.traces.own import names_plugin
from workloads.traces.trace import TraceReport

__all__ = ["TRACE_READERS", "WITHOUT_SESSIONS", "Arrivals", "TenantReport", "arrivals", "owned_instances", "requests"]

#: What deviates from the timing model: the scheduler's prediction, or what the prefill takes.
ErrorOn: TypeAlias = Literal["prediction", "actual"]
#: Every `source` that is a trace file.
TRACE_READERS = SOURCES
WITHOUT_SESSIONS = frozenset(SOURCES) - {form.name for form in FORMATS if form.sessions} - {"auto"}


@dataclass(frozen=True, slots=True)
class TenantReport:
    """What one tenant offers. `offered_load` is measured: prefill time of its requests / (window * its prefill
    instances). `in_sessions` of its requests have a session, and `returning` follow another of theirs: affinity acts on
    nothing else."""

    tenant: str
    source: str
    prefill_instances: int
    warmup_requests: int
    measured_requests: int
    mean_prefill_s: float | None
    offered_load: float
    time_factor: float | None = None
    offset_s: float | None = None
    trace: TraceReport | None = None
    notes: tuple[str, ...] = ()
    in_sessions: int = 0
    returning: int = 0

    def lines(self) -> list[str]:
        """The report as lines of text."""
        mean = "" if self.mean_prefill_s is None else f", mean prefill {1e3 * self.mean_prefill_s:.0f} ms"
        text = [
            f"{self.tenant} ({self.source}): {self.measured_requests} requests and {self.warmup_requests} of warm-up"
            f"{mean}, load {self.offered_load:.3f} on {self.prefill_instances} prefill instances"
        ]
        if self.time_factor is not None:
            text.append(
                f"trace time * {self.time_factor:.4g} = run time, measured from {self.offset_s:.3f} s of the trace on"
            )
        requests = self.warmup_requests + self.measured_requests
        if not self.in_sessions:
            text.append("no request has a session: session affinity has nothing to act on")
        elif not self.returning:
            text.append("no request follows another of its session: session affinity has nothing to act on")
        else:
            text.append(f"{self.returning} of {requests} requests follow another of their session")
        return text + list(self.notes) + (self.trace.lines() if self.trace else [])


@dataclass(frozen=True, slots=True)
class Arrivals:
    """All requests of a run sorted by arrival, warm-up first, and a report per tenant."""

    requests: list[Request]
    reports: list[TenantReport]


def requests(
    tenants: Sequence[TenantSpec],
    *,
    prefill_instances: int,
    timing: PrefillTiming,
    window_s: float,
    warmup_s: float,
    seed: int,
    median_error: float,
    error_on: ErrorOn = "prediction",
) -> list[Request]:
    """The requests of one run, sorted by arrival. Raises as `arrivals`."""
    return arrivals(
        tenants,
        prefill_instances=prefill_instances,
        timing=timing,
        window_s=window_s,
        warmup_s=warmup_s,
        seed=seed,
        median_error=median_error,
        error_on=error_on,
    ).requests


def arrivals(
    tenants: Sequence[TenantSpec],
    *,
    prefill_instances: int,
    timing: PrefillTiming,
    window_s: float,
    warmup_s: float,
    seed: int,
    median_error: float,
    error_on: ErrorOn = "prediction",
) -> Arrivals:
    """The requests of one run and what each tenant offers.

    Measured requests arrive in [warmup_s, warmup_s + window_s) with ids `<tenant>-<number>`; warm-up requests come
    from the same process, arrive in [0, warmup_s) and have ids `warmup-<tenant>-<number>` and sessions of their own.
    Raises ValueError for tenants that cannot be served and TraceError for traces that cannot be replayed.
    """
    owned = owned_prefill_counts(tenants, prefill_instances)
    merged: list[Request] = []
    reports: list[TenantReport] = []
    for tenant in tenants:
        instances = owned[tenant.name]
        if tenant.source == SYNTHETIC:
            warmup, measured = synthetic_requests(tenant, instances, timing, window_s, warmup_s, seed)
            facts: dict[str, object] = {}
        elif tenant.source in TRACE_READERS or names_plugin(tenant.source):
            content = content_of(tenant.path)
            warmup, measured, facts = traced_requests(tenant, instances, timing, window_s, warmup_s, seed, content)
        else:
            known = ", ".join((SYNTHETIC, *TRACE_READERS, "module:Class"))
            raise ValueError(f"tenant {tenant.name}: unknown source {tenant.source!r}; known sources: {known}")
        for period, prefix in ((warmup, f"warmup-{tenant.name}"), (measured, tenant.name)):
            merged += [
                _request(planned, f"{prefix}-{i:06d}", tenant, seed, median_error, error_on, warmup=period is warmup)
                for i, planned in enumerate(period)
            ]
        reports.append(_report(tenant, instances, timing, window_s, warmup, measured, facts))
    merged.sort(key=lambda request: (request.arrival_s, request.id))
    return Arrivals(merged, reports)


def _request(
    planned: PlannedRequest,
    request_id: str,
    tenant: TenantSpec,
    seed: int,
    median_error: float,
    error_on: ErrorOn,
    *,
    warmup: bool,
) -> Request:
    factor = prediction_factor(median_error, seed=seed, request_id=request_id)
    return Request(
        id=request_id,
        tenant=tenant.name,
        session=planned.session,
        arrival_s=planned.arrival_s,
        new_tokens=planned.new_tokens,
        cached_tokens=planned.cached_tokens,
        migrates=migrates(tenant.migrate, seed=seed, request_id=request_id),
        prediction_factor=factor if error_on == "prediction" else 1.0,
        duration_factor=factor if error_on == "actual" else 1.0,
        warmup=warmup,
    )


def _report(
    tenant: TenantSpec,
    instances: int,
    timing: PrefillTiming,
    window_s: float,
    warmup: Sequence[PlannedRequest],
    measured: Sequence[PlannedRequest],
    facts: dict[str, object],
) -> TenantReport:
    sessions = [planned.session for planned in (*warmup, *measured) if planned.session]
    work_s = math.fsum(timing.duration_s(planned.new_tokens, planned.cached_tokens) for planned in measured)
    return TenantReport(
        tenant=tenant.name,
        source=tenant.source,
        prefill_instances=instances,
        warmup_requests=len(warmup),
        measured_requests=len(measured),
        mean_prefill_s=work_s / len(measured) if measured else None,
        offered_load=work_s / (window_s * instances),
        in_sessions=len(sessions),
        returning=len(sessions) - len(set(sessions)),
        **facts,  # type: ignore[arg-type]
    )
