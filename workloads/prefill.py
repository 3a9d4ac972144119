"""How long a prefill takes and at which moment the KV of each of its tokens and layers exists.

A prefill is a timed plan, not compute. Its duration is

    T_ms = max(floor, t0 + a*n + b*n*(c + n/2))        n new tokens, c cached tokens

which is linear in the new tokens (GEMMs) plus attention of every new token over the cached prefix and, on average,
half of the new ones. New tokens run in chunks; t0 and the floor are paid once, in the first chunk, so that the chunk
times add up to T. Within a chunk every layer takes the same time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# A moment computed as start + duration and read back as moment - start may lose a bit; a nanosecond is far below one
# layer.
_CLOCK_TOLERANCE_S: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Chunk:
    """`new_tokens` tokens computed between `start_s` and `end_s`, counted from the start of the prefill."""

    new_tokens: int
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """Which KV exists when, in seconds from the start of one prefill. Chunks are contiguous and start at 0."""

    new_tokens: int
    cached_tokens: int
    layers: int
    chunks: tuple[Chunk, ...]

    @property
    def duration_s(self) -> float:
        return self.chunks[-1].end_s

    @property
    def last_chunk_start_s(self) -> float:
        return self.chunks[-1].start_s

    def layer_end_s(self, chunk: int, layer: int) -> float:
        """When layer `layer` (from 0) of chunk `chunk` (from 0) is finished."""
        if layer == self.layers - 1:
            return self.chunks[chunk].end_s
        return self.chunks[chunk].start_s + self.chunks[chunk].duration_s * (layer + 1) / self.layers

    def layers_ready(self, elapsed_s: float) -> Iterator[tuple[Chunk, int]]:
        """The chunks that have begun by `elapsed_s`, in order, each with how many of its layers have ended. A layer
        that ends at this very moment counts."""
        for chunk in self.chunks:
            if chunk.end_s > elapsed_s + _CLOCK_TOLERANCE_S:
                yield chunk, self._layers_ended(chunk, elapsed_s)
                return
            yield chunk, self.layers

    def token_layers_ready(self, elapsed_s: float) -> int:
        """Finished pairs of (new token, layer) after `elapsed_s`; `new_tokens * layers` at the end. A layer that ends
        at this very moment counts."""
        return sum(chunk.new_tokens * layers for chunk, layers in self.layers_ready(elapsed_s))

    def new_tokens_ready(self, elapsed_s: float) -> float:
        """New tokens whose KV exists after `elapsed_s`, as equivalents: finished (token, layer) pairs / layers."""
        return self.token_layers_ready(elapsed_s) / self.layers

    def next_layer_s(self, elapsed_s: float) -> float | None:
        """When the next layer after `elapsed_s` ends; None once the prefill is over."""
        index = bisect_right(self.chunks, elapsed_s + _CLOCK_TOLERANCE_S, key=lambda chunk: chunk.end_s)
        if index == len(self.chunks):
            return None
        return self.layer_end_s(index, self._layers_ended(self.chunks[index], elapsed_s))

    def _layers_ended(self, chunk: Chunk, elapsed_s: float) -> int:
        """Layers of an unfinished chunk that have ended."""
        share = (elapsed_s + _CLOCK_TOLERANCE_S - chunk.start_s) / chunk.duration_s
        return min(max(int(share * self.layers), 0), self.layers - 1)


@dataclass(frozen=True, slots=True)
class PrefillTiming:
    """The timing model of one system: `t0_ms`, `a_ms_per_token`, `b_ms_per_token2`, `floor_ms`, and the largest
    chunk."""

    t0_ms: float
    a_ms_per_token: float
    b_ms_per_token2: float
    floor_ms: float
    chunk_tokens: int = 2048

    def __post_init__(self) -> None:
        if self.chunk_tokens < 1:
            raise ValueError(f"chunk_tokens is {self.chunk_tokens}; a chunk holds at least 1 token")
        for field in ("t0_ms", "a_ms_per_token", "b_ms_per_token2", "floor_ms"):
            value = getattr(self, field)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{field} is {value}; it must be finite and at least 0")
        if self.a_ms_per_token == 0:
            raise ValueError("a_ms_per_token is 0; a token must take time")

    def duration_s(self, new_tokens: int, cached_tokens: int) -> float:
        """T(n, c) in seconds. Raises ValueError for fewer than 1 new or 0 cached tokens."""
        if new_tokens < 1 or cached_tokens < 0:
            raise ValueError(
                f"a prefill of {new_tokens} new and {cached_tokens} cached tokens: it takes at least 1 new and 0 cached"
            )
        return max(self.floor_ms, self._raw_ms(new_tokens, cached_tokens)) / 1e3

    def plan(self, new_tokens: int, cached_tokens: int, layers: int, factor: float = 1.0) -> PrefillPlan:
        """The plan of one prefill in chunks of `chunk_tokens` (the last one may be shorter), every time of it
        `factor` times the model's. Raises ValueError as `duration_s`."""
        if layers < 1:
            raise ValueError(f"a plan of {layers} layers; it takes at least 1")
        duration_s = self.duration_s(new_tokens, cached_tokens)
        floor_extra_s = duration_s - self._raw_ms(new_tokens, cached_tokens) / 1e3
        chunks: list[Chunk] = []
        done_tokens, start_s = 0, 0.0
        while done_tokens < new_tokens:
            chunk_tokens = min(self.chunk_tokens, new_tokens - done_tokens)
            done_tokens += chunk_tokens
            # T itself, cut after `done_tokens`: later chunks attend over the earlier ones, so this needs no sum of
            # parts.
            last = done_tokens == new_tokens
            end_s = duration_s if last else self._raw_ms(done_tokens, cached_tokens) / 1e3 + floor_extra_s
            end_s *= factor
            chunks.append(Chunk(chunk_tokens, start_s, end_s))
            start_s = end_s
        return PrefillPlan(new_tokens, cached_tokens, layers, tuple(chunks))

    def _raw_ms(self, new_tokens: int, cached_tokens: int) -> float:
        attended = new_tokens * (cached_tokens + new_tokens / 2)
        return self.t0_ms + self.a_ms_per_token * new_tokens + self.b_ms_per_token2 * attended


# Llama-3.1-70B, BF16, TP4, 4 x H100, batch of 1. The linear term is a fit to measured GEMM and all-reduce times; b is
# set so that T(1100, 65600) = 191 ms. The two bounds take attention at its asymptotic and at its tiled speed instead.
TIMINGS: Final = {
    "h100-tp4": PrefillTiming(8.82, 0.0586, 1.616e-6, 18.0),
    "h100-tp4-low": PrefillTiming(8.82, 0.0586, 1.03e-6, 18.0),
    "h100-tp4-mid": PrefillTiming(8.82, 0.0586, 1.16e-6, 18.0),
}
