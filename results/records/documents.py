"""What readers count on in `provenance.json`, `fidelity.json` and parts of `summary.json`: the keys and their types.

A document is checked as it is read, so that whoever uses it need not doubt it; keys beyond these are kept.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from inputs.errors import dotted, shown


class _Shape(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _File(_Shape):
    path: str
    sha256: str


class _Plugin(_File):
    key: str
    plugin: str


class Provenance(_Shape):
    """Of whatever a record has; which keys it must have depends on what it is read for."""

    seeds: list[int] = []
    traces: list[_File] = []
    plugins: list[_Plugin] = []
    machine: dict[str, Any] = {}
    packages: dict[str, str | None] = {}
    sysctls: dict[str, str] = {}


class _Measure(_Shape):
    name: str
    unit: str = ""
    emulated: float | None = None
    limit: float | None = None
    real: float | None = None
    limit_real: float | None = None
    exceeded: bool = False
    severity: str | None = None


class _Unscaled(_Shape):
    name: str
    unit: str
    emulated: float
    real: float
    against: str
    against_emulated: float
    ratio: float


class _Audit(_Shape):
    packets: int
    violations: list[Any]
    dark_ms: dict[str, float] | None = None
    reconfigurations: int
    lost_by_the_capture: dict[str, int] = {}
    gaps: list[Any] = []


class _Calibration(_Shape):
    constants: dict[str, float] | None = None


class Fidelity(_Shape):
    """One fabric and seed."""

    measures: list[_Measure] = []
    unscaled: list[_Unscaled] = []
    audit: _Audit | None = None
    calibration: _Calibration | None = None


class _Collisions(_Shape):
    collided: int
    shared_s: float
    shared_share_of_time: float
    most_sharers: int


class _Ecmp(_Shape):
    """With transfers comes what became of them."""

    hash_seed: int
    family: str
    transfers: int

    @model_validator(mode="after")
    def _told_with_transfers(self) -> _Ecmp:
        if self.transfers:
            _Collisions.model_validate(self.model_extra)
        return self


class _Occupancy(_Shape):
    dark_s: float
    live_moving_s: float
    live_idle_s: float


class Accounting(_Shape):
    """The key `accounting` of a run in `summary.json`."""

    head_bytes_per_rank: int = 0
    tail_bytes_per_rank: int = 0
    kept_decode_share: dict[str, float | None] | None = None
    busiest_decode_over_mean: dict[str, float | None] | None = None
    ports: dict[str, _Occupancy] | None = None
    ecmp: _Ecmp | None = None


class _TwinTtft(_Shape):
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None


class TwinSummary(_Shape):
    """The key `twin` of a run in `summary.json`."""

    ttft_s: _TwinTtft
    mean_ratio: float | None


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong, on one line: place, value, what is expected."""
    details = error.errors(include_url=False)
    first = details[0]
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    place = dotted(first["loc"]) or "the file"
    if first["type"] == "missing":
        return f"{place}: missing{more}; was it written by another version?"
    return f"{place}: {shown(first['input'])}: {first['msg'][:1].lower()}{first['msg'][1:]}{more}"
