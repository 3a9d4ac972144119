"""What would be replayed: counts, percentiles, the hit rate of an infinite cache, and what a cluster would see of it.

One pass, whatever the file's size: token counts are tallied by value, demands in steps of half a percent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from workloads.kv import KvModel
from workloads.prefill import PrefillTiming
from workloads.traces.reading import TraceReading

PERCENTILES: Final = (10, 50, 90, 99)
_STEP: Final = math.log(1.005)


@dataclass(frozen=True)
class Server:
    """The cluster a trace is held against: the tenant's prefill instances, their timing, the model's KV sizes."""

    prefill_instances: int
    timing: PrefillTiming
    kv: KvModel


class Tally:
    """Values with their counts. `percentile(q)` is the smallest value with at least q % of all at or below it."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, value: int) -> None:
        self._counts[value] += 1

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    def percentile(self, q: float) -> int | None:
        rank, seen = math.ceil(q / 100 * self.total), 0
        for value, count in sorted(self._counts.items()):
            seen += count
            if seen >= max(rank, 1):
                return value
        return None

    def summary(self) -> dict[str, float | int | None]:
        """n, mean, the percentiles and the maximum; all but n are null where there is no value."""
        n = self.total
        found: dict[str, float | int | None] = {"n": n}
        found["mean"] = sum(value * count for value, count in self._counts.items()) / n if n else None
        found |= {f"p{q}": self.percentile(q) for q in PERCENTILES}
        found["max"] = max(self._counts, default=None)
        return found


def summarise(reading: TraceReading, server: Server | None = None) -> dict[str, Any]:
    """Read the whole trace. Raises TraceError.

    Keys of the result: what `TraceReport` says, `context_tokens`, `new_tokens`, `output_tokens` (each a
    `Tally.summary`), `prefix_hit_rate` (cached tokens / input tokens; null where the format has no prefix information)
    and, with a `server`, `cluster`: prefill time and load of its instances, KV demand per GPU.
    """
    context, new, output, demand = Tally(), Tally(), Tally(), Tally()
    work_s, context_bytes, tail_bytes = 0.0, 0, 0
    for row in reading:
        tokens = row.new_tokens + row.cached_tokens
        context.add(tokens)
        new.add(row.new_tokens)
        if row.output_tokens is not None:
            output.add(row.output_tokens)
        if server is not None:
            prefill_s = server.timing.duration_s(row.new_tokens, row.cached_tokens)
            work_s += prefill_s
            whole = server.kv.rank_bytes(tokens)
            context_bytes += whole
            tail_bytes += server.kv.rank_bytes(row.new_tokens)
            demand.add(round(math.log(whole / prefill_s) / _STEP))
    report = reading.report()
    found: dict[str, Any] = {"schema": 1, **asdict(report)}
    found |= {
        "mean_rate_per_s": report.mean_rate_per_s,
        "prefix_hit_rate": None if report.prefixes == "none" else report.token_hit_rate,
        "context_tokens": context.summary(),
        "new_tokens": new.summary(),
        "output_tokens": output.summary(),
    }
    del found["token_hit_rate"]
    if server is None:
        return found
    instances, rows = server.prefill_instances, report.rows_kept
    timed = report.has_arrival_times and report.span_s > 0
    demands = {f"p{q}": math.exp(_STEP * step) for q in PERCENTILES if (step := demand.percentile(q)) is not None}
    found["cluster"] = {
        "prefill_instances": instances,
        "model": server.kv.name,
        "mean_prefill_s": work_s / rows,
        "offered_load": work_s / (report.span_s * instances) if timed else None,
        "sessions_per_s_at_load_1": instances * (report.sessions or rows) / work_s if not timed else None,
        "kv_bytes_per_gpu": {"mean_context": context_bytes / rows, "mean_new": tail_bytes / rows},
        "kv_demand_bytes_per_s_per_gpu": demands,
        "kv_rate_bytes_per_s_per_gpu": context_bytes / (report.span_s * instances) if timed else None,
    }
    return found


def lines(found: dict[str, Any], report_lines: Iterable[str]) -> list[str]:
    """The summary as lines of text, after those of the report."""
    text = list(report_lines)
    for key in ("context_tokens", "new_tokens", "output_tokens"):
        numbers = found[key]
        if numbers["n"]:
            parts = ", ".join(f"p{q} {numbers[f'p{q}']:,}" for q in PERCENTILES)
            text.append(f"{key.replace('_', ' ')}: {parts}, max {numbers['max']:,}, mean {numbers['mean']:,.0f}")
    cluster = found.get("cluster")
    if cluster is None:
        return text
    text.append(
        f"on {cluster['prefill_instances']} prefill instances: mean prefill {1e3 * cluster['mean_prefill_s']:.0f} ms, "
        + (
            f"load {cluster['offered_load']:.3f} at the recorded rate"
            if cluster["offered_load"] is not None
            else f"load 1 at {cluster['sessions_per_s_at_load_1']:.3g} session starts per s"
        )
    )
    size, demand = cluster["kv_bytes_per_gpu"], cluster["kv_demand_bytes_per_s_per_gpu"]
    text.append(
        f"KV of {cluster['model']} per request and GPU: {size['mean_context'] / 1e9:.3g} GB of the context, "
        f"{size['mean_new'] / 1e9:.3g} GB of the new tokens (means)"
    )
    text.append(
        "KV demand per GPU, context / prefill time: "
        + ", ".join(f"{name} {value / 1e9:.3g} GB/s" for name, value in demand.items())
    )
    if cluster["kv_rate_bytes_per_s_per_gpu"] is not None:
        text.append(
            f"mean KV rate per GPU where every prefix crosses: {cluster['kv_rate_bytes_per_s_per_gpu'] / 1e9:.3g} GB/s"
        )
    return text
