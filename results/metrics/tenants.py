"""What a run amounts to for each tenant: pure functions on the tables of ``results/records/schema.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from results.metrics.accounting import busiest_decode_over_mean, kept_decode_share
from results.metrics.metrics import (
    completed,
    exposed_share,
    hidden_share,
    measured,
    migrated_share,
    slo_attainment,
    ttft_statistics,
)


def by_tenant(
    requests: pd.DataFrame,
    *,
    prefill_duration_s: Callable[[int, int], float],
    ttft_multiple: float,
    decodes: dict[str, Sequence[str]] | None = None,
) -> dict[str, dict[str, Any]]:
    """By tenant: requests offered and completed, TTFT (seconds), and the shares of ``results/metrics/metrics.py``.

    ``later_over_earlier_ttft`` is mean TTFT of the last third of its completed requests, by arrival, over that of the
    first third: about 1 where the tenant's instances keep up, and growing with the window where they do not. A figure
    that cannot be had is None.
    """
    kept = measured(requests)
    decode_kept, busiest = kept_decode_share(kept), busiest_decode_over_mean(kept, decodes)
    found: dict[str, dict[str, Any]] = {}
    for name, rows in kept.groupby("tenant", sort=True):
        tenant = str(name)
        ttft = ttft_statistics(rows)
        found[tenant] = {
            "offered": len(rows),
            "completed": ttft.n,
            "ttft_mean_s": ttft.mean,
            "ttft_p50_s": ttft.p50,
            "ttft_p99_s": ttft.p99,
            "exposed_share": exposed_share(rows),
            "hidden_share": hidden_share(rows),
            "migrated_share": migrated_share(rows),
            "slo_attainment": slo_attainment(rows, prefill_duration_s, ttft_multiple)[0],
            "kept_decode_share": decode_kept.get(tenant),
            "busiest_decode_over_mean": busiest.get(tenant),
            "later_over_earlier_ttft": later_over_earlier(rows),
        }
    return found


def later_over_earlier(requests: pd.DataFrame) -> float | None:
    """Mean TTFT of the last third of the completed requests, by arrival, over that of the first third."""
    ttft_s = completed(requests).sort_values("arrival_s")["ttft_s"].to_numpy(dtype=float)
    third = len(ttft_s) // 3
    return float(ttft_s[-third:].mean() / ttft_s[:third].mean()) if third else None
