"""A small cluster's reservations and demands on them, as several tests begin with."""

from __future__ import annotations

from controllers.commit_rules import load as commit_rules
from controllers.core.demand import Demand
from controllers.core.reservations import Reservations
from controllers.decode_choices.by_network import CircuitAware

TAU_S = 0.025
PREFILLS, DECODES = ("p0", "p1", "p2"), ("d0", "d1")
REACHABLE = {prefill: DECODES for prefill in PREFILLS}


def reservations(transfer: str, reuse: bool = True, commit: str = "last-chunk") -> Reservations:
    return commit_rules.load(commit)(
        REACHABLE,
        rate_bytes_per_s=1e9,
        reconfiguration_s=TAU_S,
        decode_choice=CircuitAware(),
        transfer=transfer,
        reuse=reuse,
    )


def demand(request_id: str, prefill: str = "p0", head_bytes: int = 50_000_000, migrates: bool | None = True) -> Demand:
    return Demand(request_id, "t", "", prefill, head_bytes, 5_000_000, 62_500, 0.1, migrates)
