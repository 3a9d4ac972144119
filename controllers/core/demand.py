"""What the controller knows of a request, what it answers, and how it refuses an event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Demand:
    """A request as its prefill instance announces it.

    `head_bytes` (cached prefix), `tail_bytes` (new tokens) and `layer_bytes` (one layer of the last chunk's new
    tokens) are real bytes per rank; `predicted_prefill_s` is the predicted duration of the prefill in real seconds.
    `migrates` is True where the prefix has to cross whatever the decode, False where it never does, None where it
    crosses unless the chosen decode served the session before.
    """

    request_id: str
    tenant: str
    session: str
    prefill: str
    head_bytes: int
    tail_bytes: int
    layer_bytes: int
    predicted_prefill_s: float
    migrates: bool | None


@dataclass(frozen=True, slots=True)
class Placement:
    """The decode instance of a request, and whether its prefix (the head) has to be sent there."""

    decode: str
    head_moves: bool


class EventError(Exception):
    """An event the controller refuses; `status` is the HTTP status of the refusal."""

    status = 400


class UnknownRequest(EventError):
    """An event for an id that was never admitted."""

    status = 404


class OutOfOrder(EventError):
    """An event that its request's state does not allow."""

    status = 409


class DuplicateRequest(EventError):
    """An id that was admitted before."""

    status = 409


class FabricController(Protocol):
    """The four events of Algorithm 1, on any fabric, and the death of a request.

    Every method takes the run clock, `now_s`.
    """

    def admitted(self, demand: Demand, now_s: float) -> Placement | None:
        """The request reached its prefill instance."""

    def prefill_started(self, request_id: str, predicted_end_s: float, now_s: float) -> Placement | None:
        """Its prefill runs; a placement where KV may move already."""

    def last_chunk_started(self, request_id: str, predicted_end_s: float, now_s: float) -> Placement | None:
        """Its last chunk runs; may be sent again with a better prediction.

        None: nothing is decided before the KV is ready. Send it again then, with the prefill's actual end.
        """

    def transfer_done(self, request_id: str, part: str, now_s: float) -> None:
        """All ranks have sent `part` (head, tail or all) and hold no unacknowledged byte of it."""

    def expire(self, request_id: str, reason: str, now_s: float) -> None:
        """The request died; whatever is reserved for it is free again."""
