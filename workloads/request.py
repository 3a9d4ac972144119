"""One request as the testbed sees it: when it arrives and how many tokens its prefill must compute.

Output tokens are not modelled: a decode instance is a KV sink, and TTFT ends with the first token.
"""

from __future__ import annotations

from dataclasses import dataclass

from workloads.prefill import PrefillTiming


@dataclass(frozen=True, slots=True)
class Request:
    """A request, in real units on the run clock.

    `cached_tokens` of its prompt are a prefix whose KV the prefill pool already holds; `new_tokens` (at least 1) must
    be computed. `migrates` says whether the prefix has to cross to the decode instance: True always, False never,
    None when it depends on whether the chosen decode instance holds the session. Of the prefill's duration by the
    timing model, `prediction_factor` makes what a scheduler predicts, and `duration_factor` what it takes: both are
    exactly 1.0 where predictions are exact.
    """

    id: str
    tenant: str
    session: str
    arrival_s: float
    new_tokens: int
    cached_tokens: int
    migrates: bool | None
    prediction_factor: float
    warmup: bool = False
    duration_factor: float = 1.0

    @property
    def context_tokens(self) -> int:
        """Tokens of the whole prompt: cached and new."""
        return self.cached_tokens + self.new_tokens

    def predicted_prefill_s(self, timing: PrefillTiming) -> float:
        """How long a scheduler expects its prefill to take."""
        return timing.duration_s(self.new_tokens, self.cached_tokens) * self.prediction_factor
