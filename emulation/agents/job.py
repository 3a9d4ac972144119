"""What a prefill instance knows of one request, from its receipt to its record."""

from dataclasses import dataclass, field
from typing import Any

from emulation.agents.config import AgentConfig
from emulation.agents.outgoing import OutgoingTransfer
from emulation.agents.wire import Message
from workloads.prefill import PrefillPlan
from workloads.request import Request


@dataclass(slots=True)
class PrefillJob:
    """One request at this instance; times are run-clock seconds. `asked`: the event that reserves was posted.

    `undecided`: the controller wants to be told when the KV is ready; `told_ready`: it was. `answered_s`: [event,
    seconds from its post to its answer].
    """

    index: int
    request: Request
    received_s: float
    plan: PrefillPlan | None = None
    start_s: float | None = None
    start_actual_s: float | None = None
    end_s: float | None = None
    end_actual_s: float | None = None
    decode: str | None = None
    head_moves: bool | None = None
    decided_s: float | None = None
    told_live: list[list[Any]] = field(default_factory=list)
    early_grants: list[tuple[Message, float]] = field(default_factory=list)
    transfer: OutgoingTransfer | None = None
    answered_s: list[list[Any]] = field(default_factory=list)
    asked: bool = False
    undecided: bool = False
    told_ready: bool = False
    failed: str | None = None
    recorded: bool = False

    @property
    def complete(self) -> bool:
        """Whether every part of its KV has arrived."""
        return self.transfer is not None and self.transfer.complete

    def record(self, prefill: str) -> Message:
        """Its prefill record, as far as it got; a request is recorded once."""
        self.recorded = True
        return {
            "type": "record",
            "of": "prefill",
            "id": self.request.id,
            "prefill": prefill,
            "received_s": self.received_s,
            "start_s": self.start_s,
            "start_actual_s": self.start_actual_s,
            "end_s": self.end_s,
            "end_actual_s": self.end_actual_s,
            "chunks": None if self.plan is None else len(self.plan.chunks),
            "decode": self.decode,
            "head_moves": self.head_moves,
            "decided_s": self.decided_s,
            "told_live": self.told_live,
            "release_lateness_s": None if self.transfer is None else self.transfer.release_lateness_s,
            "answered_s": self.answered_s,
            "failed": self.failed,
        }


def demand(request: Request, prefill: str, config: AgentConfig) -> Message:
    """What the controller is told of a request when it arrives, in real bytes per rank."""
    timing, model = config.timing, config.model
    plan = timing.plan(request.new_tokens, request.cached_tokens, model.layers)
    return {
        "prefill": prefill,
        "tenant": request.tenant,
        "session": request.session,
        "head_bytes": model.rank_head_bytes(request.cached_tokens, request.new_tokens),
        "tail_bytes": model.rank_bytes(request.new_tokens),
        "layer_bytes": model.rank_layer_bytes(plan.chunks[-1].new_tokens),
        "predicted_prefill_s": request.predicted_prefill_s(timing),
        "migrates": request.migrates,
    }
