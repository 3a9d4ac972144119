"""How much of a fabric's spread comes from the ECMP hash, and how much from the arrivals.

Fabrics of one experiment that differ in nothing but name and `ecmp_seed` are one fabric under several hashes. With the
same arrivals (seed) under each of them, the deviation over hash seeds is that of one arrival seed's runs, and the
deviation over arrivals that of the means over hash seeds; both are sample deviations (n - 1).
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.records.summary import RunSummary


@dataclass(frozen=True, slots=True)
class HashSpread:
    """Of one fabric's mean TTFT, seconds. `over_hashes_s`: root mean square over arrival seeds of the deviation over
    hash seeds; `over_arrivals_s`: None with one arrival seed."""

    fabric: str
    hash_seeds: tuple[int, ...]
    arrival_seeds: tuple[int, ...]
    mean_s: float
    over_hashes_s: float
    over_arrivals_s: float | None

    def line(self) -> str:
        """In a sentence."""
        arrivals = (
            "one arrival seed, so nothing is known of arrivals"
            if self.over_arrivals_s is None
            else f"{self.over_arrivals_s:.4f} s over {len(self.arrival_seeds)} arrival seeds"
        )
        return (
            f"{self.fabric}: mean TTFT {self.mean_s:.3f} s; standard deviation {self.over_hashes_s:.4f} s over "
            f"{len(self.hash_seeds)} hash seeds under the same arrivals, {arrivals}"
        )


def family(fabric: Mapping[str, Any]) -> str:
    """What fabrics (as in config.yaml) have in common that differ in nothing but name and hash seed."""
    same = {key: value for key, value in fabric.items() if key not in ("name", "ecmp_seed", "ecmp_seeds")}
    return hashlib.blake2b(json.dumps(same, sort_keys=True).encode(), digest_size=8).hexdigest()


def hash_spreads(runs: Sequence[RunSummary]) -> list[HashSpread]:
    """One for each fabric that was run under several hash seeds.

    A fabric without a mean for each pair of seeds is left out.
    """
    families: dict[str, dict[str, int]] = defaultdict(dict)
    for run in runs:
        if ecmp := (run.accounting or {}).get("ecmp"):
            families[ecmp["family"]][run.name] = ecmp["hash_seed"]
    found = []
    for seeds in families.values():
        if len(set(seeds.values())) < 2:
            continue
        means: dict[int, dict[int, float]] = defaultdict(dict)
        for run in runs:
            if run.name in seeds and run.ttft_s.mean is not None:
                means[run.seed][seeds[run.name]] = run.ttft_s.mean
        rows = [row for row in means.values() if len(row) == len(seeds)]
        if not rows or len(rows) < len(means):
            continue
        by_arrival = [statistics.fmean(row.values()) for row in rows]
        within = statistics.fmean([statistics.variance(row.values()) for row in rows])
        found.append(
            HashSpread(
                fabric=_common_name(list(seeds.items())),
                hash_seeds=tuple(seeds.values()),
                arrival_seeds=tuple(means),
                mean_s=statistics.fmean(by_arrival),
                over_hashes_s=within**0.5,
                over_arrivals_s=statistics.stdev(by_arrival) if len(rows) > 1 else None,
            )
        )
    return found


def _common_name(fabrics: Sequence[tuple[str, int]]) -> str:
    """NAME where they are called NAME-hSEED, else the first one's name and how many more."""
    stems = {name.removesuffix(f"-h{seed}") for name, seed in fabrics}
    return stems.pop() if len(stems) == 1 else f"{fabrics[0][0]} and {len(fabrics) - 1} more"
