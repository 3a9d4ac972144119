"""The shape of ``summary.json``, schema 1: what a run amounts to, per fabric and seed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from results.records.documents import Accounting, TwinSummary, first_problem

#: Of a request, in seconds: it took some time, and no more than 30 years.
Duration = Annotated[float, Field(gt=0, le=1e9)]


class _Record(BaseModel):
    """Unknown keys are kept: a reader must not lose what a newer writer added."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, allow_inf_nan=False)


def _shaped(shape: type[BaseModel]) -> AfterValidator:
    """Plain data that is what a shape says, kept as it is."""

    def check(value: dict[str, Any]) -> dict[str, Any]:
        try:
            shape.model_validate(value)
        except ValidationError as error:
            raise ValueError(first_problem(error)) from None
        return value

    return AfterValidator(check)


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
    mean: Duration | None = None
    p50: Duration | None = None
    p90: Duration | None = None
    p95: Duration | None = None
    p99: Duration | None = None
    null_reasons: dict[str, str] = Field(default_factory=dict)


class RunSummary(_Record):
    """One fabric and one seed. ``name`` is the fabric's name in the experiment file, ``fabric`` its kind."""

    name: str
    fabric: Literal["eps", "ocs", "none"]
    seed: int = Field(ge=0, lt=2**63)
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
    # of an emulation: what the flow-level twin predicts for the same requests
    twin: Annotated[dict[str, Any], _shaped(TwinSummary)] | None = None
    notes: list[str] = Field(default_factory=list)
    # results/metrics/accounting: migrations, bytes, decodes kept, port occupancy
    accounting: Annotated[dict[str, Any], _shaped(Accounting)] | None = None


class Summary(_Record):
    """``summary.json``, schema 1."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    runs: list[RunSummary] = Field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """A dictionary that ``json.dumps(..., allow_nan=False)`` takes, with the key ``schema``."""
        return self.model_dump(by_alias=True, mode="json")
