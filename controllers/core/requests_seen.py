"""The requests a controller knows: their state, where their decode is, and how loaded each decode instance is.

Shared by circuits and packets, so that an event out of order is refused alike and load means the same on every fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from controllers.core.calendar import Gap
from controllers.core.decode_choice import Candidate, DecodeChoice
from controllers.core.demand import Demand, DuplicateRequest, EventError, OutOfOrder, Placement, UnknownRequest
from inputs.plugin_fault import PluginFault, blamed, name_of

_ORDER = ("admitted", "prefill-started", "last-chunk-started", "done")


@dataclass(slots=True)
class SeenRequest:
    """A request in the controller's books; `parts` are the parts of its KV that have not been sent."""

    demand: Demand
    state: str = "admitted"
    placement: Placement | None = None
    parts: set[str] = field(default_factory=set)


class RequestsSeen:
    """Every request since the clock started, and the load of every decode instance."""

    def __init__(self, reachable: Mapping[str, Sequence[str]], decode_choice: DecodeChoice) -> None:
        """`reachable`: prefill instance -> the decode instances its KV can reach, never empty."""
        self._reachable = {prefill: tuple(decodes) for prefill, decodes in reachable.items()}
        self._choice = decode_choice
        decodes = sorted({decode for decodes in self._reachable.values() for decode in decodes})
        self.unfinished = dict.fromkeys(decodes, 0)
        self._last_chosen = {decode: index - len(decodes) for index, decode in enumerate(decodes)}
        self._choices = 0
        self._session_decode: dict[tuple[str, str], str] = {}
        self._previous: dict[str, str] = {}
        self._requests: dict[str, SeenRequest] = {}

    def admit(self, demand: Demand) -> SeenRequest:
        """Book in a new request; raises DuplicateRequest, or EventError for an instance nobody knows."""
        if demand.request_id in self._requests:
            raise DuplicateRequest(f"request {demand.request_id!r} was admitted before")
        if demand.prefill not in self._reachable:
            known = ", ".join(self._reachable)
            raise EventError(
                f"request {demand.request_id!r}: no prefill instance {demand.prefill!r} here, only {known}"
            )
        seen = self._requests[demand.request_id] = SeenRequest(demand)
        return seen

    def get(self, request_id: str) -> SeenRequest:
        """The request; raises UnknownRequest."""
        try:
            return self._requests[request_id]
        except KeyError:
            raise UnknownRequest(f"request {request_id!r} was never admitted") from None

    def advance(self, request_id: str, state: str, *, again: bool = False) -> SeenRequest:
        """Move a request to its next state (`again`: or leave it there); raises UnknownRequest or OutOfOrder."""
        seen = self.get(request_id)
        if again and seen.state == state:
            return seen
        wanted = _ORDER[_ORDER.index(state) - 1]
        if seen.state != wanted:
            raise OutOfOrder(f"request {request_id!r}: {state} while it is {seen.state}, not {wanted}")
        seen.state = state
        return seen

    def place(
        self,
        seen: SeenRequest,
        gap_to: Callable[[str, bool], Gap],
        wanted_live_s: Callable[[bool], float],
        now_s: float,
    ) -> Placement:
        """Choose the decode of a request.

        `gap_to(decode, head_moves)` tells when its KV could cross, `wanted_live_s(head_moves)` when it should. Raises
        PluginFault where the decode choice fails.
        """
        demand = seen.demand
        served = self._session_decode.get((demand.tenant, demand.session)) if demand.session else None

        def head_moves(decode: str) -> bool:
            return demand.head_bytes > 0 and (decode != served if demand.migrates is None else demand.migrates)

        reachable = self._reachable[demand.prefill]
        rank = {decode: at for at, decode in enumerate(sorted(reachable, key=self._last_chosen.__getitem__))}
        candidates = [
            Candidate(
                decode=decode,
                unfinished=self.unfinished[decode],
                rank=rank[decode],
                served=decode == served,
                previous=decode == self._previous.get(demand.prefill),
                wanted_live_s=wanted_live_s(head_moves(decode)),
                gap=lambda decode=decode: gap_to(decode, head_moves(decode)),  # type: ignore[misc]
            )
            for decode in reachable
        ]
        name = f"decode choice {name_of(self._choice)}"
        with blamed(name):
            answer = self._choice.choose(demand, candidates, now_s)
            # what a user's own class answers may do anything where it is compared or shown
            decode = next((decode for decode in reachable if decode == answer), None)
            shown = f"{answer!r:.200}" if decode is None else ""
        if decode is None:
            raise PluginFault(
                f"{name} returned {shown} for {demand.request_id!r}; it may choose among {', '.join(reachable)}"
            )
        moves = head_moves(decode)
        self._choices += 1
        self._last_chosen[decode] = self._choices
        self.unfinished[decode] += 1
        self._previous[demand.prefill] = decode
        if demand.session:
            self._session_decode[demand.tenant, demand.session] = decode
        seen.placement = Placement(decode, moves)
        return seen.placement

    def sent(self, seen: SeenRequest, part: str) -> None:
        """A part of the KV has left.

        With the last one the request is done. Raises OutOfOrder for a part that was not expected.
        """
        request_id = seen.demand.request_id
        if part not in seen.parts:
            expected = ", ".join(sorted(seen.parts)) or "nothing"
            raise OutOfOrder(f"request {request_id!r}: transfer of {part!r} done, but {expected} was to be sent")
        seen.parts.discard(part)
        if not seen.parts and seen.state == "last-chunk-started":
            self._finish(seen)

    def placed_from(self, prefill: str) -> list[str]:
        """Ids of the requests of a prefill instance that have a decode instance and are not over."""
        return [
            request_id
            for request_id, seen in self._requests.items()
            if seen.demand.prefill == prefill and seen.placement is not None and seen.state != "done"
        ]

    def bury(self, request_id: str) -> SeenRequest:
        """The request died in whatever state; raises UnknownRequest, or OutOfOrder where it had ended."""
        seen = self.get(request_id)
        if seen.state == "done":
            raise OutOfOrder(f"request {request_id!r} had ended")
        self._finish(seen)
        return seen

    def _finish(self, seen: SeenRequest) -> None:
        seen.state = "done"
        seen.parts.clear()
        if seen.placement:
            self.unfinished[seen.placement.decode] -= 1
