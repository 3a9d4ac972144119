"""What the placement and the circuits of a run amount to: pure functions on the tables of ``results/records``.

Warm-up requests are left out, as everywhere. Bytes are real bytes per rank (the ranks of an instance carry equal
shares), times run-clock seconds. A figure that cannot be had is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from experiments.schema.spec import Experiment
from results.metrics.ttft_parts import covered_s
from results.records.schema import BOOLEAN, INTEGER, is_warmup
from workloads.kv import KvModel

#: (new tokens, cached tokens) -> real bytes per rank of the prefix (head) and of the new tokens (tail).
PartBytes = Callable[[int, int], tuple[int, int]]


def part_bytes_of(kv: KvModel) -> PartBytes:
    """The sizes of a model's KV cache."""
    return lambda new, cached: (kv.rank_head_bytes(cached, new), kv.rank_bytes(new))


def account_run(
    experiment: Experiment, kind: str, requests: pd.DataFrame, circuits: pd.DataFrame | None
) -> dict[str, Any]:
    """``account`` for one fabric, of this kind, of an experiment."""
    return account(
        requests,
        circuits if kind == "ocs" else None,
        part_bytes=part_bytes_of(experiment.kv),
        rate_bytes_per_s=experiment.kv_goodput_bytes_per_s,
        decodes={tenant: owned.decodes for tenant, owned in experiment.owned_instances().items()},
    )


def with_sizes(circuits: pd.DataFrame, requests: pd.DataFrame, part_bytes: PartBytes) -> pd.DataFrame:
    """The windows with ``migrated`` (the prefix of their request crosses) and ``bytes`` (of their part) filled in.

    Both are missing for a window whose request is on no record, or whose sender never learnt of a placement.
    """
    migrated: dict[str, bool] = {}
    sizes: dict[tuple[str, str], int] = {}
    for row in _rows(requests[requests["migrated"].notna()]):
        head, tail = part_bytes(row["new_tokens"], row["cached_tokens"])
        head = head if row["migrated"] else 0
        migrated[row["id"]] = bool(row["migrated"])
        sizes |= {(row["id"], "head"): head, (row["id"], "tail"): tail, (row["id"], "all"): head + tail}
    found = circuits.copy()
    found["migrated"] = found["request"].map(migrated).astype(BOOLEAN)
    keys = zip(found["request"], found["part"], strict=True)
    found["bytes"] = pd.Series([sizes.get(key, pd.NA) for key in keys], index=found.index, dtype=INTEGER)
    return found


def account(
    requests: pd.DataFrame,
    circuits: pd.DataFrame | None,
    *,
    part_bytes: PartBytes,
    rate_bytes_per_s: float,
    decodes: dict[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """The key ``accounting`` of a run in ``summary.json``.

    ``rate_bytes_per_s`` is the real goodput of a rank's link, ``decodes`` the decode instances that each tenant owns
    (None: those that its requests went to), ``circuits`` the windows of a circuit fabric.
    """
    kept = requests[~is_warmup(requests["id"])]
    head_bytes, tail_bytes = moved_bytes(kept, part_bytes)
    found: dict[str, Any] = {
        "migrated": int(kept["migrated"].fillna(False).astype(bool).sum()),
        "head_bytes_per_rank": head_bytes,
        "tail_bytes_per_rank": tail_bytes,
        "kept_decode_share": kept_decode_share(kept),
        "busiest_decode_over_mean": busiest_decode_over_mean(kept, decodes),
    }
    if circuits is not None:
        found["ports"] = port_occupancy(requests, circuits, part_bytes, rate_bytes_per_s)
    return found


def moved_bytes(requests: pd.DataFrame, part_bytes: PartBytes) -> tuple[int, int]:
    """Head and tail bytes per rank that crossed, over the completed requests given."""
    head_bytes = tail_bytes = 0
    for row in _rows(requests[requests["status"] == "completed"]):
        head, tail = part_bytes(row["new_tokens"], row["cached_tokens"])
        head_bytes += head if pd.notna(row["migrated"]) and row["migrated"] else 0
        tail_bytes += tail
    return head_bytes, tail_bytes


def kept_decode_share(requests: pd.DataFrame) -> dict[str, float | None]:
    """By tenant: of each two consecutive prefills of one instance, the share that went to the same decode instance.

    Consecutive at an instance, because a circuit ends in one prefill instance: two prefills elsewhere in between change
    nothing for it.
    """
    placed = requests[(requests["decode"] != "") & requests["prefill_start_s"].notna()].sort_values("prefill_start_s")
    found: dict[str, float | None] = {}
    for tenant, rows in placed.groupby("tenant", sort=True):
        before = rows.groupby("prefill")["decode"].shift()
        pairs = before.notna()
        found[str(tenant)] = float((rows["decode"] == before)[pairs].mean()) if pairs.any() else None
    return found


def busiest_decode_over_mean(
    requests: pd.DataFrame, decodes: dict[str, Sequence[str]] | None = None
) -> dict[str, float | None]:
    """By tenant: requests placed on its busiest decode instance over the mean of all that it owns."""
    found: dict[str, float | None] = {}
    for tenant, rows in requests.groupby("tenant", sort=True):
        counts = rows.loc[rows["decode"] != "", "decode"].value_counts()
        instances = len((decodes or {}).get(str(tenant), ())) or len(counts)
        found[str(tenant)] = float(counts.max() * instances / counts.sum()) if len(counts) else None
    return found


def port_occupancy(
    requests: pd.DataFrame, circuits: pd.DataFrame, part_bytes: PartBytes, rate_bytes_per_s: float
) -> dict[str, dict[str, float]]:
    """By instance, seconds that its circuit ports were dark, live and moving KV, and live and idle.

    Over the windows of measured requests. Dark: from the dark time's start until live (or over, for one that never was
    live). Live: in a window that was live, until it was released. Moving: of that, bytes of the window's part / rate;
    a circuit that waits for a prefill, or for TCP, is idle.
    """
    sizes = {
        row["id"]: part_bytes(row["new_tokens"], row["cached_tokens"])
        for row in _rows(requests)
        if pd.notna(row["migrated"])
    }
    crossed = {row["id"] for row in _rows(requests) if pd.notna(row["migrated"]) and row["migrated"]}
    found: dict[str, dict[str, float]] = {}
    live: dict[str, list[tuple[float, float]]] = {}
    moving_s: dict[str, float] = {}
    for window in _rows(circuits[~is_warmup(circuits["request"])]):
        head, tail = sizes.get(window["request"], (0, 0))
        head = head if window["request"] in crossed else 0
        part_size = {"head": head, "tail": tail}.get(window["part"], head + tail)
        dark_until_s = window["live_at_s"] if pd.notna(window["live_at_s"]) else window["released_at_s"]
        for instance in (window["prefill"], window["decode"]):
            ports = found.setdefault(instance, {"dark_s": 0.0, "live_moving_s": 0.0, "live_idle_s": 0.0})
            if pd.notna(window["dark_at_s"]) and pd.notna(dark_until_s):
                ports["dark_s"] += dark_until_s - window["dark_at_s"]
            if pd.notna(window["live_at_s"]) and pd.notna(window["released_at_s"]):
                live.setdefault(instance, []).append((window["live_at_s"], window["released_at_s"]))
                if window["state"] == "released":
                    moving_s[instance] = moving_s.get(instance, 0.0) + part_size / rate_bytes_per_s
    for instance, intervals in live.items():
        # a head and its tail may be live together on one circuit: time counts once
        live_s = covered_s(intervals)
        found[instance]["live_moving_s"] = min(moving_s.get(instance, 0.0), live_s)
        found[instance]["live_idle_s"] = live_s - found[instance]["live_moving_s"]
    return dict(sorted(found.items()))


def _rows(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    return frame.to_dict("records")
