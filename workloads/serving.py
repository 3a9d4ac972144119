"""The queue-and-release logic of serving, as pure functions of `now`: which prefill runs, and which KV bytes exist.

A wall-clock agent and a virtual-time simulator drive the same two objects: `PrefillQueue` (one instance, first in first
out) and `KvStream` (the bytes of one transfer on one rank). Neither reads a clock. Every time is a run-clock time in
real seconds, every size in real bytes per rank. Which instance is next is `prefill_router.py`'s.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, TypeAlias

from workloads.kv import KvModel
from workloads.prefill import PrefillPlan, PrefillTiming
from workloads.request import Request

TransferMode: TypeAlias = Literal["layerwise", "pull"]


@dataclass(frozen=True, slots=True)
class PrefillStarted:
    """A prefill starts. `predicted_end_s` is what a scheduler is told, not what will happen."""

    request: Request
    plan: PrefillPlan
    start_s: float
    predicted_end_s: float

    @property
    def at_s(self) -> float:
        return self.start_s


@dataclass(frozen=True, slots=True)
class LastChunkStarted:
    """The last chunk starts; the prediction now covers this chunk only."""

    request: Request
    at_s: float
    predicted_end_s: float


@dataclass(frozen=True, slots=True)
class PrefillEnded:
    """The last layer of the last chunk is finished."""

    request: Request
    at_s: float


Event: TypeAlias = PrefillStarted | LastChunkStarted | PrefillEnded


class PrefillQueue:
    """The prefills of one instance: first in first out, one at a time.

    Times are the planned ones, however late `advance` is called: a prefill starts when its request was received or
    when the one before it was planned to end, whichever is later, so that timer lateness never adds up.
    """

    def __init__(self, timing: PrefillTiming, layers: int) -> None:
        self.timing = timing
        self.layers = layers
        self.free_s = 0.0
        self._events: deque[Event] = deque()

    def submit(self, request: Request, now_s: float) -> PrefillPlan:
        """Queue a request received at `now_s` and return its plan."""
        plan = self.timing.plan(request.new_tokens, request.cached_tokens, self.layers, request.duration_factor)
        start_s = max(self.free_s, now_s)
        last_chunk_s = start_s + plan.last_chunk_start_s
        end_s = start_s + plan.duration_s
        # of what is predicted to what it takes: once the last chunk runs, the prediction covers this chunk only
        ratio = request.prediction_factor / request.duration_factor
        # Prefills of one instance do not overlap, so appending keeps the events in time order.
        self._events.append(PrefillStarted(request, plan, start_s, start_s + request.predicted_prefill_s(self.timing)))
        predicted_end_s = end_s if ratio == 1.0 else last_chunk_s + plan.chunks[-1].duration_s * ratio
        self._events.append(LastChunkStarted(request, last_chunk_s, predicted_end_s))
        self._events.append(PrefillEnded(request, end_s))
        self.free_s = end_s
        return plan

    def advance(self, now_s: float) -> list[Event]:
        """The events planned up to and including `now_s` that have not been returned yet, in time order."""
        events: list[Event] = []
        while self._events and self._events[0].at_s <= now_s:
            events.append(self._events.popleft())
        return events

    def next_s(self) -> float | None:
        """When `advance` next has something; None while the queue is empty."""
        return self._events[0].at_s if self._events else None


class KvStream:
    """The KV bytes of one transfer on one rank that exist at a moment.

    Head: the KV of the cached prefix, which the prefill instance holds from the start; empty unless `head_moves`.
    Tail: the KV of the new tokens, which exists layer by layer. In `layerwise` mode the head is there at the
    prefill's start and the tail as its layers finish, head first; in `pull` mode everything becomes available at the
    prefill's end.
    """

    def __init__(
        self, plan: PrefillPlan, kv: KvModel, mode: TransferMode, start_s: float, head_moves: bool = True
    ) -> None:
        if mode not in ("layerwise", "pull"):
            raise ValueError(f"transfer mode {mode!r}; known: layerwise, pull")
        if plan.layers != kv.layers:
            raise ValueError(f"a plan of {plan.layers} layers for {kv.name}, which has {kv.layers}")
        self.plan = plan
        self.kv = kv
        self.mode = mode
        self.start_s = start_s
        self.end_s = start_s + plan.duration_s
        self.head_bytes = kv.rank_head_bytes(plan.cached_tokens, plan.new_tokens) if head_moves else 0
        self.tail_bytes = kv.rank_bytes(plan.new_tokens)

    @property
    def total_bytes(self) -> int:
        return self.head_bytes + self.tail_bytes

    def bytes_at(self, now_s: float) -> int:
        """Bytes that exist at `now_s`: never decreasing, exactly `total_bytes` from the prefill's end on."""
        if now_s >= self.end_s:
            return self.total_bytes
        if self.mode == "pull" or now_s < self.start_s:
            return 0
        elapsed_s = now_s - self.start_s
        if self.kv.slides:
            return self.head_bytes + self._sliding_tail_bytes(elapsed_s)
        ready = self.plan.token_layers_ready(elapsed_s)
        return self.head_bytes + self.tail_bytes * ready // (self.plan.new_tokens * self.plan.layers)

    def _sliding_tail_bytes(self, elapsed_s: float) -> int:
        """The tail so far where layers forget: a sliding layer adds only tokens that are in its window at the end."""
        token_layers, tokens_after = 0, self.plan.new_tokens
        for chunk, layers in self.plan.layers_ready(elapsed_s):
            tokens_after -= chunk.new_tokens
            in_window = min(max(self.kv.window_tokens - tokens_after, 0), chunk.new_tokens)
            sliding = self.kv.sliding_before(layers)
            token_layers += (layers - sliding) * chunk.new_tokens + sliding * in_window
        return token_layers * self.kv.layer_unit_bytes

    def next_release_s(self, now_s: float) -> float | None:
        """The next moment after `now_s` at which more bytes exist; None once all of them do."""
        if now_s >= self.end_s:
            return None
        if self.mode == "pull":
            return self.end_s
        if now_s < self.start_s:
            return self.start_s if self.head_bytes else self.start_s + self.plan.layer_end_s(0, 0)
        next_layer_s = self.plan.next_layer_s(now_s - self.start_s)
        return self.end_s if next_layer_s is None else min(self.start_s + next_layer_s, self.end_s)


def kv_due_s(plan: PrefillPlan, kv: KvModel, mode: TransferMode, start_s: float, rate_bytes_per_s: float) -> float:
    """When the last part of a transfer should be moving: from then on its bytes exist as fast as a rank can send them.

    In `pull` the prefill's end; in `layerwise` the moment from which the tail, at `rate_bytes_per_s`, ends one layer
    after the prefill, but not before the last chunk starts.
    """
    end_s = start_s + plan.duration_s
    if mode == "pull":
        return end_s
    to_send_bytes = kv.rank_bytes(plan.new_tokens) - kv.rank_layer_bytes(plan.chunks[-1].new_tokens)
    return max(start_s + plan.last_chunk_start_s, end_s - to_send_bytes / rate_bytes_per_s)
