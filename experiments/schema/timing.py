"""A prefill timing model from a file of one's own, as `./heliograph fit` writes it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from experiments.schema.errors import issues
from experiments.schema.models import SpecModel
from experiments.schema.source import read
from workloads.prefill import PrefillTiming


class TimingFile(SpecModel):
    """`T_ms = max(floor_ms, t0_ms + a_ms_per_token*n + b_ms_per_token2*n*(c + n/2))` for n new and c cached tokens."""

    t0_ms: float = Field(ge=0, le=1e6, description="fixed part of a prefill in ms")
    a_ms_per_token: float = Field(gt=0, le=1e6, description="ms of one new token")
    b_ms_per_token2: float = Field(ge=0, le=1e6, description="ms of one new token attending over one token before it")
    floor_ms: float = Field(default=0.0, ge=0, le=1e6, description="shortest prefill in ms")
    chunk_tokens: int = Field(default=2048, ge=1, description="most new tokens of one chunk")
    tp: int = Field(ge=1, description="tensor-parallel ranks that were measured")

    def timing(self) -> PrefillTiming:
        """The model as the workloads know it."""
        return PrefillTiming(self.t0_ms, self.a_ms_per_token, self.b_ms_per_token2, self.floor_ms, self.chunk_tokens)


def read_timing(path: Path) -> TimingFile:
    """Read a timing file. Raises SpecError with the file's own lines and keys."""
    source = read(path)
    try:
        return TimingFile.model_validate(source.data)
    except ValidationError as error:
        raise source.error(issues(error, {(): TimingFile}, frozenset())) from None
