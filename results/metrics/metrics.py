"""What a run amounts to: pure functions on the tables of ``results/records/schema.py``.

TTFT runs from the intended arrival to the first token at the client. Warm-up requests are left out of every figure
and counted apart. Failed and unfinished requests have no TTFT, but they stay in the denominator of SLO attainment. A
figure that cannot be had is None and says why; it is never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from results.metrics.ttft_parts import FabricKind
from results.records.schema import EXPOSED_PARTS, STATUSES, TTFT_PARTS, is_warmup
from results.records.summary import RequestCounts, RunSummary, TtftStatistics

PERCENTILES = (50, 90, 95, 99)
# So many samples must lie at or beyond a percentile: p99 of 71 samples is their maximum.
TAIL_SAMPLES = 5
PERCENTILE_METHOD = "linear interpolation between order statistics (numpy's default; Hyndman and Fan type 7)"
HIDDEN_SHARE_OF_PREFILL = 0.10
# Arrivals and floating-point sums: a transfer that ends exactly at the limit is hidden, a TTFT exactly at the SLO
# meets it.
ROUNDING = 1e-9


def measured(requests: pd.DataFrame) -> pd.DataFrame:
    """The requests that count: everything offered that is not warm-up."""
    return requests[~is_warmup(requests["id"])]


def completed(requests: pd.DataFrame) -> pd.DataFrame:
    """The measured requests whose first token reached the client."""
    kept = measured(requests)
    return kept[kept["status"] == "completed"]


def percentile(samples: Sequence[float] | pd.Series, percent: float) -> float:
    """The percentile by linear interpolation, whatever n supports. ValueError without a sample, or for one that is
    not finite.
    """
    values = np.asarray(samples, dtype=float)
    if values.size == 0:
        raise ValueError(f"p{percent:g} of no samples is undefined")
    if not np.isfinite(values).all():
        raise ValueError(
            f"p{percent:g}: {int((~np.isfinite(values)).sum())} of {values.size} samples are not finite numbers"
        )
    return float(np.percentile(values, percent, method="linear"))


def supports(n: int, percent: int) -> bool:
    """Whether n samples support a percentile: n (1 - q) >= 5, in whole numbers so that rounding cannot decide."""
    return n * (100 - percent) >= TAIL_SAMPLES * 100


def counts(requests: pd.DataFrame) -> RequestCounts:
    """Measured requests by outcome. ValueError for a status that is none of completed, failed, unfinished."""
    kept = measured(requests)
    if strange := sorted(set(kept["status"]) - set(STATUSES)):
        raise ValueError(f"requests: unknown status {', '.join(map(repr, strange))}; expected {', '.join(STATUSES)}")
    by_status = {status: int((kept["status"] == status).sum()) for status in STATUSES}
    return RequestCounts(offered=len(kept), warmup=len(requests) - len(kept), **by_status)


def ttft_statistics(requests: pd.DataFrame) -> TtftStatistics:
    """Mean and percentiles of TTFT, seconds, over completed measured requests; None with a reason where n is too
    small.
    """
    samples = completed(requests)["ttft_s"]
    n = len(samples)
    if n == 0:
        offered = len(measured(requests))
        reason = f"none of {offered} measured requests completed" if offered else "no measured requests were offered"
        return TtftStatistics(n=0, null_reasons={key: reason for key in ("mean", *(f"p{p}" for p in PERCENTILES))})
    values: dict[str, float] = {"mean": float(samples.mean())}
    reasons: dict[str, str] = {}
    for percent in PERCENTILES:
        if supports(n, percent):
            values[f"p{percent}"] = percentile(samples, percent)
        else:
            needed = -(-TAIL_SAMPLES * 100 // (100 - percent))
            reasons[f"p{percent}"] = (
                f"n = {n} is too small: p{percent} needs n (1 - q) >= {TAIL_SAMPLES}, that is n >= {needed}"
            )
    return TtftStatistics(n=n, null_reasons=reasons, **values)


def mean_parts_s(requests: pd.DataFrame) -> dict[str, float | None]:
    """The mean of each TTFT part over completed measured requests, seconds; None when there are none."""
    kept = completed(requests)
    return {part: _mean(kept[part]) for part in TTFT_PARTS}


def exposed_share(requests: pd.DataFrame) -> float | None:
    """Sum of circuit_wait + transfer_exposed over sum of TTFT, completed measured requests with known parts."""
    kept = completed(requests).dropna(subset=list(TTFT_PARTS))
    total_s = float(kept["ttft_s"].sum())
    return float(kept[list(EXPOSED_PARTS)].to_numpy(dtype=float).sum()) / total_s if total_s > 0 else None


def hidden_share(requests: pd.DataFrame) -> float | None:
    """Share of completed, migrated, measured requests whose last KV byte came within 10 % of the prefill after the
    prefill's end.
    """
    kept = completed(requests)
    kept = kept[kept["migrated"].fillna(False).astype(bool)].dropna(
        subset=["last_byte_s", "prefill_end_s", "prefill_s"]
    )
    late_s = kept["last_byte_s"] - kept["prefill_end_s"]
    return _mean(late_s <= HIDDEN_SHARE_OF_PREFILL * kept["prefill_s"] + ROUNDING)


def migrated_share(requests: pd.DataFrame) -> float | None:
    """Share of measured requests whose prefix crossed, among those whose decode was chosen."""
    return _mean(measured(requests)["migrated"].dropna().astype(float))


def slo_attainment(
    requests: pd.DataFrame, prefill_duration_s: Callable[[int, int], float], multiple: float
) -> tuple[float | None, dict[str, float | None]]:
    """Share of *offered* measured requests with TTFT <= multiple x the tenant's median T(n, c); overall and by tenant.

    ``prefill_duration_s(new_tokens, cached_tokens)`` is T. The median is over the tenant's offered requests, so that
    a fabric that loses its long requests does not move its own limit. A request without a first token is a miss.
    """
    kept = measured(requests)
    met: list[pd.Series] = []
    by_tenant: dict[str, float | None] = {}
    for tenant, of_tenant in kept.groupby("tenant", sort=True):
        durations_s = [
            prefill_duration_s(int(n), int(c))
            for n, c in zip(of_tenant["new_tokens"], of_tenant["cached_tokens"], strict=True)
        ]
        limit_s = multiple * percentile(durations_s, 50)
        within = (of_tenant["status"] == "completed") & (of_tenant["ttft_s"] <= limit_s + ROUNDING)
        met.append(within)
        by_tenant[str(tenant)] = _mean(within)
    return (_mean(pd.concat(met)) if met else None), by_tenant


def switches_and_reuses(circuits: pd.DataFrame) -> tuple[int, int]:
    """Of the measured windows that were live: those that took a reconfiguration, and those that found their circuit
    standing. A tail that follows its own head on the same circuit is no reuse.
    """
    live = circuits[circuits["live_at_s"].notna() & ~is_warmup(circuits["request"])]
    with_head = set(live.loc[live["part"] == "head", "request"])
    own_tail = (live["part"] == "tail") & live["request"].isin(with_head)
    live = live[~own_tail | live["needs_switch"].fillna(False).astype(bool)]
    switched = int(live["needs_switch"].fillna(False).astype(bool).sum())
    return switched, len(live) - switched


def faster_than_line(
    transfers: pd.DataFrame, line_rate_bytes_per_s: float, *, allowance_bytes: float, tolerance: float = 0.03
) -> list[str]:
    """Transfers that beat their own line, in words: their bytes and their time cannot belong to the same interval.

    A transfer of B bytes, first to last byte at the receiver in t seconds, may have B <= rate x (1 + tolerance) x t +
    allowance; the allowance is the burst that a shaper lets pass at line rate plus what arrives together with the
    first byte. Real bytes throughout.
    """
    known = transfers.dropna(subset=["bytes", "first_byte_s", "last_byte_s"])
    time_s = known["last_byte_s"] - known["first_byte_s"]
    size = known["bytes"].astype(float)
    possible = line_rate_bytes_per_s * (1 + tolerance) * time_s + allowance_bytes
    return [
        f"transfer {request} rank {rank}: {size_bytes:.4g} B in {seconds:.6g} s beat the line rate, "
        f"{line_rate_bytes_per_s:.4g} B/s"
        for request, rank, size_bytes, seconds, limit in zip(
            known["request"], known["rank"], size, time_s, possible, strict=True
        )
        if size_bytes > limit
    ]


def summarise(
    requests: pd.DataFrame,
    circuits: pd.DataFrame | None = None,
    *,
    name: str,
    fabric: FabricKind,
    seed: int,
    substrate: Literal["emulation", "simulation"],
    prefill_duration_s: Callable[[int, int], float],
    ttft_multiple: float,
    verdict: Literal["valid", "degraded", "invalid"],
    reasons: Iterable[str] = (),
    notes: Iterable[str] = (),
    accounting: dict[str, Any] | None = None,
) -> RunSummary:
    """The entry of one fabric and seed in ``summary.json``. ``name`` is the fabric's name, ``fabric`` its kind;
    ``accounting`` is what ``results.metrics.accounting.account`` found.
    """
    attained, by_tenant = slo_attainment(requests, prefill_duration_s, ttft_multiple)
    switched = switches_and_reuses(circuits) if fabric == "ocs" and circuits is not None else (None, None)
    return RunSummary(
        name=name,
        fabric=fabric,
        seed=seed,
        substrate=substrate,
        requests=counts(requests),
        ttft_s=ttft_statistics(requests),
        ttft_exposed_share=exposed_share(requests),
        hidden_share=hidden_share(requests),
        slo_attainment=attained,
        slo_attainment_by_tenant=by_tenant,
        verdict=verdict,
        reasons=list(reasons),
        ttft_parts_s=mean_parts_s(requests),
        migrated_share=migrated_share(requests),
        switches=switched[0],
        reuses=switched[1],
        notes=list(notes),
        accounting=accounting,
    )


def _mean(values: pd.Series) -> float | None:
    known = values.dropna()
    return float(known.astype(float).mean()) if len(known) else None
