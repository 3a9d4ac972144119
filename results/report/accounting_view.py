"""The key ``accounting`` of ``summary.json`` as rows of the report: where requests went, and what ports did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from results.records.summary import RunSummary
from results.report.table import UNDEFINED, label, share

MOVE_COLUMNS = (
    "fabric",
    "warm-up requests",
    "migrated",
    "head moved, GB per rank",
    "tail moved, GB per rank",
    "kept decode",
    "busiest decode / mean",
    "switches",
    "reuses",
)
PORT_COLUMNS = ("fabric", "dark, s", "live and moving, s", "live and idle, s", "busiest instance", "its ports held, s")


def move_row(run: RunSummary, runs: Sequence[RunSummary]) -> list[str]:
    """One run as the texts of ``MOVE_COLUMNS``; by tenant where there are several."""
    found = run.accounting or {}
    counted = [UNDEFINED if value is None else str(value) for value in (run.switches, run.reuses)]
    return [
        label(run, runs),
        str(run.requests.warmup),
        share(run.migrated_share),
        *(
            f"{found[key] / 1e9:.1f}" if key in found else UNDEFINED
            for key in ("head_bytes_per_rank", "tail_bytes_per_rank")
        ),
        _by_tenant(found.get("kept_decode_share"), share),
        _by_tenant(found.get("busiest_decode_over_mean"), lambda value: UNDEFINED if value is None else f"{value:.2f}"),
        *counted,
    ]


def port_rows(runs: Sequence[RunSummary]) -> list[list[str]]:
    """The runs over circuits as the texts of ``PORT_COLUMNS``: means over the instances, and the one held longest."""
    rows = []
    for run in runs:
        ports = (run.accounting or {}).get("ports")
        if not ports:
            continue
        held_s = {name: sum(seconds.values()) for name, seconds in ports.items()}
        busiest = max(held_s, key=held_s.__getitem__)
        means_s = [
            sum(seconds[key] for seconds in ports.values()) / len(ports)
            for key in ("dark_s", "live_moving_s", "live_idle_s")
        ]
        rows.append([label(run, runs), *(f"{mean_s:.2f}" for mean_s in means_s), busiest, f"{held_s[busiest]:.2f}"])
    return rows


def _by_tenant(values: Mapping[str, float | None] | None, text: Callable[[float | None], str]) -> str:
    if not values:
        return UNDEFINED
    if len(values) == 1:
        return text(next(iter(values.values())))
    return ", ".join(f"{tenant} {text(value)}" for tenant, value in values.items())
