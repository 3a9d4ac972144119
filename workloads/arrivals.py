"""The requests of one run: what every tenant asks, and when. The same for every fabric, policy and substrate.

Everything drawn depends on the seed and the tenant's name (lengths, arrivals, sessions, ties) or on the seed and the
request's id (migration, prediction error). A tenant's arrivals therefore do not change when another tenant is added,
when the warm-up is longer, or when the prediction error is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workloads import synthetic
from workloads.prediction import prediction_factor
from workloads.prefill import PrefillTiming
from workloads.request import Request
from workloads.seeds import stream, uniform
from workloads.tenants import TenantSpec, migrates, owned_instances, owned_prefill_counts
from workloads.traces.formats import FORMATS, SOURCES, open_trace
from workloads.traces.reading import Reading
from workloads.traces.session_starts import calls_in, corpus, session_rate_per_s
from workloads.traces.slices import slice_of
from workloads.traces.trace import TraceError, TraceReport, TraceRow

__all__ = ["TRACE_READERS", "WITHOUT_SESSIONS", "Arrivals", "TenantReport", "arrivals", "owned_instances", "requests"]

#: Every `source` that is a trace file.
TRACE_READERS = SOURCES
WITHOUT_SESSIONS = frozenset(SOURCES) - {form.name for form in FORMATS if form.sessions} - {"auto"}
SYNTHETIC = "synthetic-agentic"


@dataclass(frozen=True, slots=True)
class TenantReport:
    """What one tenant offers. `offered_load` is measured: prefill time of its requests / (window * its prefill
    instances)."""

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
        return text + list(self.notes) + (self.trace.lines() if self.trace else [])


@dataclass(frozen=True, slots=True)
class Arrivals:
    """All requests of a run sorted by arrival, warm-up first, and a report per tenant."""

    requests: list[Request]
    reports: list[TenantReport]


@dataclass(frozen=True, slots=True)
class _Draft:
    """A request before what depends on its id is drawn. Arrivals are run-clock times."""

    arrival_s: float
    new_tokens: int
    cached_tokens: int
    session: str


def requests(
    tenants: Sequence[TenantSpec],
    *,
    prefill_instances: int,
    timing: PrefillTiming,
    window_s: float,
    warmup_s: float,
    seed: int,
    median_error: float,
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
            warmup, measured = _synthetic(tenant, instances, timing, window_s, warmup_s, seed)
            facts: dict[str, object] = {}
        elif tenant.source in TRACE_READERS:
            warmup, measured, facts = _traced(tenant, instances, timing, window_s, warmup_s, seed)
        else:
            known = ", ".join((SYNTHETIC, *TRACE_READERS))
            raise ValueError(f"tenant {tenant.name}: unknown source {tenant.source!r}; known sources: {known}")
        for drafts, prefix in ((warmup, f"warmup-{tenant.name}"), (measured, tenant.name)):
            merged += [
                _request(draft, f"{prefix}-{i:06d}", tenant, seed, median_error, warmup=drafts is warmup)
                for i, draft in enumerate(drafts)
            ]
        reports.append(_report(tenant, instances, timing, window_s, warmup, measured, facts))
    merged.sort(key=lambda request: (request.arrival_s, request.id))
    return Arrivals(merged, reports)


def _request(
    draft: _Draft, request_id: str, tenant: TenantSpec, seed: int, median_error: float, *, warmup: bool
) -> Request:
    return Request(
        id=request_id,
        tenant=tenant.name,
        session=draft.session,
        arrival_s=draft.arrival_s,
        new_tokens=draft.new_tokens,
        cached_tokens=draft.cached_tokens,
        migrates=migrates(tenant.migrate, seed=seed, request_id=request_id),
        prediction_factor=prediction_factor(median_error, seed=seed, request_id=request_id),
        warmup=warmup,
    )


def _synthetic(
    tenant: TenantSpec, instances: int, timing: PrefillTiming, window_s: float, warmup_s: float, seed: int
) -> tuple[list[_Draft], list[_Draft]]:
    """Poisson arrivals at the rate that offers the tenant's load: load * instances / mean prefill time."""
    if tenant.profile not in synthetic.PROFILES:
        known = ", ".join(synthetic.PROFILES)
        raise ValueError(f"tenant {tenant.name}: unknown profile {tenant.profile!r}; known profiles: {known}")
    if tenant.load is None:
        raise ValueError(
            f"tenant {tenant.name}: source {SYNTHETIC} needs a load (0.6 is 60 % of its prefill instances)"
        )
    profile = synthetic.PROFILES[tenant.profile]
    rate_per_s = tenant.load * instances / synthetic.mean_prefill_s(profile, timing)

    def draw(part: str, start_s: float, span_s: float) -> list[_Draft]:
        def rng(what: str) -> np.random.Generator:
            return stream(seed, tenant.name, part, what)

        times_s = synthetic.poisson_arrivals(rng("arrivals"), rate_per_s, span_s)
        lengths = synthetic.draw_lengths(profile, rng("lengths"), len(times_s))
        prefix = f"{'warmup-' if part == 'warmup' else ''}{tenant.name}-s"
        sessions = synthetic.deal_sessions(rng("sessions"), len(times_s), rate_per_s, prefix)
        return [
            _Draft(start_s + time_s, new, context - new, session)
            for time_s, (context, new), session in zip(times_s, lengths, sessions, strict=True)
        ]

    return draw("warmup", 0.0, warmup_s), draw("measured", warmup_s, window_s)


def _traced(
    tenant: TenantSpec, instances: int, timing: PrefillTiming, window_s: float, warmup_s: float, seed: int
) -> tuple[list[_Draft], list[_Draft], dict[str, object]]:
    """A slice of the tenant's trace at its load."""
    if tenant.path is None:
        raise ValueError(f"tenant {tenant.name}: source {tenant.source} needs a path to a trace file")
    reading = open_trace(tenant.path, tenant.source, max_context_tokens=tenant.max_context_tokens)
    if tenant.migrate == "affinity" and not reading.format.sessions:
        raise TraceError(
            tenant.path,
            None,
            f"migrate: affinity needs sessions and a {reading.format.title} trace has none; use always or a fraction",
        )

    def drafts(rows: list[tuple[float, TraceRow]], prefix: str, start_s: float = 0.0) -> list[_Draft]:
        return [
            _Draft(start_s + at_s, row.new_tokens, row.cached_tokens, f"{prefix}{row.session}" if row.session else "")
            for at_s, row in rows
        ]

    if not reading.format.arrival_times:
        before, within, facts = _started(tenant, reading, instances, timing, window_s, warmup_s, seed)
        return drafts(before, "warmup-"), drafts(within, "", warmup_s), facts
    if tenant.load is not None and tenant.speedup != 1:
        raise TraceError(
            tenant.path,
            None,
            f"speedup {tenant.speedup:g} and load {tenant.load:g} both set the speed of the replay; leave one out",
        )
    slice_, trace, notes = slice_of(
        reading,
        load=tenant.load,
        instances=instances,
        timing=timing,
        window_s=window_s,
        warmup_s=warmup_s,
        offset_s=tenant.offset_s,
        speedup=tenant.speedup,
        copies=tenant.copies,
        ties=tenant.ties,
        rng=stream(seed, tenant.name, "ties"),
        shifts=_drawn_shifts(tenant, seed),
    )
    facts = {"time_factor": slice_.time_factor, "offset_s": slice_.offset_s, "trace": trace.report, "notes": notes}
    return drafts(slice_.warmup, "warmup-"), drafts(slice_.measured, ""), facts


def _drawn_shifts(tenant: TenantSpec, seed: int) -> list[float] | None:
    """By which share of the trace each copy is turned, where every seed has a window of its own."""
    if tenant.windows == "same":
        return None
    return [uniform(seed, tenant.name, "window", str(copy)) for copy in range(tenant.copies)]


def _started(
    tenant: TenantSpec,
    reading: Reading,
    instances: int,
    timing: PrefillTiming,
    window_s: float,
    warmup_s: float,
    seed: int,
) -> tuple[list[tuple[float, TraceRow]], list[tuple[float, TraceRow]], dict[str, object]]:
    """The calls of a trace of sessions without arrival times, whose starts are drawn to offer the tenant's load."""
    path = str(tenant.path)
    if tenant.load is None:
        raise TraceError(path, None, "the trace has no arrival times, so its sessions are started at a load; give one")
    for key, given in (
        ("offset_s", tenant.offset_s is not None),
        ("copies", tenant.copies != 1),
        ("windows", tenant.windows != "same"),
    ):
        if given:
            raise TraceError(path, None, f"the trace has no arrival times for {key} to act on; remove {key}")
    found = corpus(reading, timing)
    rate_per_s = session_rate_per_s(found, tenant.load, instances)

    def calls(part: str, span_s: float) -> list[tuple[float, TraceRow]]:
        return calls_in(
            lambda: open_trace(path, tenant.source, max_context_tokens=tenant.max_context_tokens),
            rate_per_s=rate_per_s,
            sessions=found.sessions,
            span_s=span_s,
            speedup=tenant.speedup,
            seed=seed,
            labels=(tenant.name, part),
        )

    think = "keep their times" if tenant.speedup == 1 else f"have their times divided by {tenant.speedup:g}"
    notes = (
        f"session starts are synthesised: a Poisson process of {rate_per_s:.3g} per s (seed {seed}) that was running "
        f"long before the window; sessions {think}",
    )
    return calls("warmup", warmup_s), calls("measured", window_s), {"trace": found.report, "notes": notes}


def _report(
    tenant: TenantSpec,
    instances: int,
    timing: PrefillTiming,
    window_s: float,
    warmup: Sequence[_Draft],
    measured: Sequence[_Draft],
    facts: dict[str, object],
) -> TenantReport:
    work_s = math.fsum(timing.duration_s(draft.new_tokens, draft.cached_tokens) for draft in measured)
    return TenantReport(
        tenant=tenant.name,
        source=tenant.source,
        prefill_instances=instances,
        warmup_requests=len(warmup),
        measured_requests=len(measured),
        mean_prefill_s=work_s / len(measured) if measured else None,
        offered_load=work_s / (window_s * instances),
        **facts,  # type: ignore[arg-type]
    )
