"""The shape of ``summary.json``, schema 1: what a run amounts to, per fabric and seed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Record(BaseModel):
    """Unknown keys are kept: a reader must not lose what a newer writer added."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)


class RequestCounts(_Record):
    """Measured requests by outcome: ``offered == completed + failed + unfinished``. Warm-up requests are counted
    apart.
    """

    offered: int = Field(ge=0)
    completed: int = Field(ge=0)
    failed: int = Field(ge=0)
    unfinished: int = Field(ge=0)
    warmup: int = Field(default=0, ge=0)


class TtftStatistics(_Record):
    """Over the n completed measured requests, seconds. A statistic that n cannot support is None, with its reason."""

    n: int = Field(ge=0)
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    null_reasons: dict[str, str] = Field(default_factory=dict)


class RunSummary(_Record):
    """One fabric and one seed. ``name`` is the fabric's name in the experiment file, ``fabric`` its kind."""

    name: str
    fabric: Literal["eps", "ocs", "none"]
    seed: int
    substrate: Literal["emulation", "simulation"]
    requests: RequestCounts
    ttft_s: TtftStatistics
    ttft_exposed_share: float | None = None
    hidden_share: float | None = None
    slo_attainment: float | None = None
    verdict: Literal["valid", "degraded", "invalid"]
    reasons: list[str] = Field(default_factory=list)
    slo_attainment_by_tenant: dict[str, float | None] = Field(default_factory=dict)
    ttft_parts_s: dict[str, float | None] = Field(default_factory=dict)
    migrated_share: float | None = None
    switches: int | None = None
    reuses: int | None = None
    twin: dict[str, Any] | None = None  # of an emulation: what the flow-level twin predicts for the same requests
    notes: list[str] = Field(default_factory=list)
    accounting: dict[str, Any] | None = (
        None  # results/metrics/accounting: migrations, bytes, decodes kept, port occupancy
    )


class Summary(_Record):
    """``summary.json``, schema 1."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    runs: list[RunSummary] = Field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """A dictionary that ``json.dumps(..., allow_nan=False)`` takes, with the key ``schema``."""
        return self.model_dump(by_alias=True, mode="json")
