"""What a measurement and its prediction disagree on, request by request. Pure functions on the tables of requests.

A residual is measured minus predicted, in seconds; as a share it is divided by the prediction. Positive: the network
with real packets was slower than ideal flows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from results.metrics.metrics import completed
from results.records.schema import TTFT_PARTS

WORST = 5


def paired(measured: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Measured requests (no warm-up) that completed on both sides, joined by id: columns end in `_m` and `_t`.

    Raises ValueError where the two tables do not hold the same requests.
    """
    if set(measured["id"]) != set(predicted["id"]):
        only = sorted(set(measured["id"]) ^ set(predicted["id"]))
        raise ValueError(
            f"{len(only)} requests are on one side only ({', '.join(only[:3])}, ...): both need the same arrivals; "
            "was the run made by another version, or from another trace?"
        )
    both = completed(measured).merge(completed(predicted), on="id", suffixes=("_m", "_t"))
    apart = both[(both["arrival_s_m"] - both["arrival_s_t"]).abs() > 1e-9]
    if len(apart):
        raise ValueError(f"request {apart['id'].iloc[0]} arrives at another time on each side: the arrivals differ")
    return both


def residuals(measured: pd.DataFrame, predicted: pd.DataFrame) -> dict[str, Any]:
    """Of TTFT and of each of its parts.

    `ttft`: the distribution over requests; `same_decisions`: the same over the requests that both sides gave to the
    same prefill and decode instance; `parts`: where the residual sits; `worst`: the largest ones. A figure of no
    request is None.
    """
    both = paired(measured, predicted)
    same = both[(both["prefill_m"] == both["prefill_t"]) & (both["decode_m"] == both["decode_t"])]
    return {
        "requests": len(both),
        "ttft": distribution(both),
        "same_decisions_share": len(same) / len(both) if len(both) else None,
        "same_decisions": distribution(same),
        "parts": {part: _part(both, part) for part in TTFT_PARTS},
        "worst": _worst(both),
    }


def distribution(both: pd.DataFrame) -> dict[str, Any]:
    """Residuals of TTFT over paired requests: shares of the prediction, and the ratio of the means."""
    if not len(both):
        return {"n": 0}
    share = ((both["ttft_s_m"] - both["ttft_s_t"]) / both["ttft_s_t"]).to_numpy(dtype=float)
    size = np.abs(share)
    return {
        "n": len(both),
        "mean_measured_s": float(both["ttft_s_m"].mean()),
        "mean_predicted_s": float(both["ttft_s_t"].mean()),
        "mean_ratio": float(both["ttft_s_m"].mean() / both["ttft_s_t"].mean()),
        "median_share": float(np.median(share)),
        "median_absolute_share": float(np.median(size)),
        "p95_absolute_share": float(np.percentile(size, 95)),
        "max_absolute_share": float(size.max()),
        "slower_share": float((share > 0).mean()),
    }


def _part(both: pd.DataFrame, part: str) -> dict[str, float | None]:
    residual_s = (both[f"{part}_m"] - both[f"{part}_t"]).dropna().to_numpy(dtype=float)
    if not residual_s.size:
        return {"mean_s": None, "median_s": None, "p95_absolute_s": None, "max_absolute_s": None}
    return {
        "mean_s": float(residual_s.mean()),
        "median_s": float(np.median(residual_s)),
        "p95_absolute_s": float(np.percentile(np.abs(residual_s), 95)),
        "max_absolute_s": float(np.abs(residual_s).max()),
    }


def _worst(both: pd.DataFrame) -> list[dict[str, Any]]:
    residual_s = (both["ttft_s_m"] - both["ttft_s_t"]).astype(float)
    rows = []
    for index in residual_s.abs().sort_values(ascending=False, kind="stable").index[:WORST]:
        row = both.loc[index]
        parts = {part: float(row[f"{part}_m"] - row[f"{part}_t"]) for part in TTFT_PARTS}
        rows.append(
            {
                "id": row["id"],
                "measured_s": float(row["ttft_s_m"]),
                "predicted_s": float(row["ttft_s_t"]),
                "largest_part": max(parts, key=lambda part: abs(parts[part])),
                "prefill": [row["prefill_m"], row["prefill_t"]],
                "decode": [row["decode_m"], row["decode_t"]],
            }
        )
    return rows
