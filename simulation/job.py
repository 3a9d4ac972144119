"""One request in the twin, from its arrival to its first token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from controllers.core.demand import Placement
from controllers.core.reservations import Reservations
from simulation.release import Piece
from workloads.prefill import PrefillPlan
from workloads.request import Request
from workloads.serving import KvStream


@dataclass(slots=True, eq=False)
class Sent:
    """What one rank received: first and last byte (None: not all of it), and over which uplink."""

    first_byte_s: float
    last_byte_s: float | None = None
    uplink: int | None = None


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request; times are run-clock seconds, None where nothing has happened yet."""

    index: int
    request: Request
    prefill: str
    sent_s: float
    received_s: float | None = None
    plan: PrefillPlan | None = None
    start_s: float | None = None
    end_s: float | None = None
    placement: Placement | None = None
    decided_s: float | None = None
    stream: KvStream | None = None
    pieces: tuple[Piece, ...] = ()
    ranks: dict[int, Sent] = field(default_factory=dict)
    told_live: list[list[Any]] = field(default_factory=list)
    told_ready: bool = False
    last_byte_s: float | None = None
    first_token_s: float | None = None

    def records(self, ranks: int, *, alike: bool) -> list[dict[str, Any]]:
        """As the agents of an emulation would have written them down; `alike`: rank 0 stands for all of them."""
        request, completed = self.request, self.first_token_s is not None
        rows: list[dict[str, Any]] = [
            {
                "of": "request",
                "id": request.id,
                "index": self.index,
                "tenant": request.tenant,
                "arrival_s": request.arrival_s,
                "sent_s": self.sent_s,
                "prefill": self.prefill,
                "first_token_s": self.first_token_s,
                "status": "completed" if completed else "unfinished",
                "reason": "" if completed else "no first token before the end of the run",
            }
        ]
        if self.received_s is None:
            return rows
        rows.append(
            {
                "of": "prefill",
                "id": request.id,
                "prefill": self.prefill,
                "received_s": self.received_s,
                "start_s": self.start_s,
                "end_s": self.end_s,
                "decode": None if self.placement is None else self.placement.decode,
                "head_moves": None if self.placement is None else self.placement.head_moves,
                "decided_s": self.decided_s,
                "told_live": self.told_live,
            }
        )
        for rank in range(ranks):
            sent = self.ranks.get(0 if alike else rank)
            if sent is None:
                continue  # it has sent nothing: its stream or its connection is not there yet
            assert self.stream is not None
            assert self.placement is not None
            rows.append(
                {
                    "of": "transfer",
                    "id": request.id,
                    "decode": self.placement.decode,
                    "rank": rank,
                    "bytes": self.stream.total_bytes,
                    "first_byte_s": sent.first_byte_s,
                    "last_byte_s": sent.last_byte_s,
                    "uplink": sent.uplink,
                }
            )
        return rows


def circuit_events(core: Reservations) -> list[dict[str, Any]]:
    """What the controller's log would hold at the end: for each window, its last plan and what happened when."""
    events = []
    for window in core.windows.values():
        row = {
            "event": "window",
            "window": window.id,
            "request": window.request_id,
            "part": window.part,
            "prefill": window.prefill,
            "decode": window.decode,
            "start_s": window.start_s,
            "live_s": window.live_s,
            "end_s": window.end_s,
            "needs_switch": window.needs_switch,
            "reason": window.reason,
        }
        reached = (("dark", window.dark_at_s), ("live", window.live_at_s), (window.state, window.released_at_s))
        events += [row | {"state": state, "t_s": at_s} for state, at_s in reached if at_s is not None]
        if events and events[-1]["window"] == window.id:
            continue
        events.append(row | {"state": window.state, "t_s": window.start_s})
    return events
