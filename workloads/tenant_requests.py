"""Where the requests of one tenant come from: drawn from a profile, or a slice of a trace."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workloads import synthetic
from workloads.prefill import PrefillTiming
from workloads.seeds import stream, uniform
from workloads.tenants import TenantSpec
from workloads.traces.formats import open_trace
from workloads.traces.reading import TraceReading
from workloads.traces.session_starts import calls_in, corpus, session_rate_per_s
from workloads.traces.slices import slice_of
from workloads.traces.trace import TraceError, TraceRow

SYNTHETIC = "synthetic-agentic"


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request before what depends on its id is drawn. Arrivals are run-clock times."""

    arrival_s: float
    new_tokens: int
    cached_tokens: int
    session: str


def synthetic_requests(
    tenant: TenantSpec, instances: int, timing: PrefillTiming, window_s: float, warmup_s: float, seed: int
) -> tuple[list[PlannedRequest], list[PlannedRequest]]:
    """Warm-up and measured requests: Poisson arrivals at the rate that offers the tenant's load, which is
    load * instances / mean prefill time. Raises ValueError."""
    if tenant.profile not in synthetic.PROFILES:
        known = ", ".join(synthetic.PROFILES)
        raise ValueError(f"tenant {tenant.name}: unknown profile {tenant.profile!r}; known profiles: {known}")
    if tenant.load is None:
        raise ValueError(
            f"tenant {tenant.name}: source {SYNTHETIC} needs a load (0.6 is 60 % of its prefill instances)"
        )
    profile = synthetic.PROFILES[tenant.profile]
    rate_per_s = tenant.load * instances / synthetic.mean_prefill_s(profile, timing)

    def draw(part: str, start_s: float, span_s: float) -> list[PlannedRequest]:
        def rng(what: str) -> np.random.Generator:
            return stream(seed, tenant.name, part, what)

        times_s = synthetic.poisson_arrivals(rng("arrivals"), rate_per_s, span_s)
        lengths = synthetic.draw_lengths(profile, rng("lengths"), len(times_s))
        prefix = f"{'warmup-' if part == 'warmup' else ''}{tenant.name}-s"
        sessions = synthetic.deal_sessions(rng("sessions"), len(times_s), rate_per_s, prefix)
        return [
            PlannedRequest(start_s + time_s, new, context - new, session)
            for time_s, (context, new), session in zip(times_s, lengths, sessions, strict=True)
        ]

    return draw("warmup", 0.0, warmup_s), draw("measured", warmup_s, window_s)


def content_of(path: str | None) -> tuple[int, ...] | None:
    """What tells that a file was written since; None where there is none, which its reader says."""
    if path is None:
        return None
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    return None


# A run asks for its arrivals four times (check, packets, and the twin of each fabric), and a trace may be a gigabyte.
@lru_cache(maxsize=32)  # a window of 128 GPUs holds 5 MB
def traced_requests(
    tenant: TenantSpec,
    instances: int,
    timing: PrefillTiming,
    window_s: float,
    warmup_s: float,
    seed: int,
    content: tuple[int, ...] | None,
) -> tuple[list[PlannedRequest], list[PlannedRequest], dict[str, object]]:
    """Warm-up and measured requests, and what a TenantReport says of them: a slice of the tenant's trace at its load,
    remembered as long as the file's `content` is the same. Raises ValueError or TraceError."""
    if tenant.path is None:
        raise ValueError(f"tenant {tenant.name}: source {tenant.source} needs a path to a trace file")
    reading = open_trace(
        tenant.path, tenant.source, max_context_tokens=tenant.max_context_tokens, time_unit=tenant.time_unit
    )
    if tenant.migrate == "affinity" and not reading.format.sessions:
        raise TraceError(
            tenant.path,
            None,
            f"migrate: affinity needs sessions and a {reading.format.title} trace has none; use always or a fraction",
        )

    # A row of lengths alone is read as a session of one call, which is none that affinity could act on.
    named = reading.format.sessions

    def planned(rows: list[tuple[float, TraceRow]], prefix: str, start_s: float = 0.0) -> list[PlannedRequest]:
        return [
            PlannedRequest(
                start_s + at_s,
                row.new_tokens,
                row.cached_tokens,
                f"{prefix}{row.session}" if named and row.session else "",
            )
            for at_s, row in rows
        ]

    if not reading.format.arrival_times:
        before, within, facts = _started(tenant, reading, instances, timing, window_s, warmup_s, seed)
        return planned(before, "warmup-"), planned(within, "", warmup_s), facts
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
    if tenant.migrate == "affinity" and not any(row.session for _, row in [*slice_.warmup, *slice_.measured]):
        raise TraceError(
            tenant.path,
            None,
            f"migrate: affinity needs sessions, and none of the {len(slice_.warmup) + len(slice_.measured)} rows that "
            "are replayed names one; use always or a fraction",
        )
    facts = {"time_factor": slice_.time_factor, "offset_s": slice_.offset_s, "trace": trace.report, "notes": notes}
    return planned(slice_.warmup, "warmup-"), planned(slice_.measured, ""), facts


def _drawn_shifts(tenant: TenantSpec, seed: int) -> list[float] | None:
    """By which share of the trace each copy is turned, where every seed has a window of its own."""
    if tenant.windows == "same":
        return None
    return [uniform(seed, tenant.name, "window", str(copy)) for copy in range(tenant.copies)]


def _started(
    tenant: TenantSpec,
    reading: TraceReading,
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
            lambda: open_trace(
                path, tenant.source, max_context_tokens=tenant.max_context_tokens, time_unit=tenant.time_unit
            ),
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
