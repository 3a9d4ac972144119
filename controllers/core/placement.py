"""The four events on a packet fabric: the same decode choice at the same moments, and nothing to reserve."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from controllers.core.calendar import Gap
from controllers.core.decode_choice import DecodeChoice
from controllers.core.demand import Demand, OutOfOrder, Placement
from controllers.core.requests_seen import RequestsSeen, SeenRequest


class PacketPlacement:
    """Chooses the decode at prefill start (`layerwise`) or at the last chunk (`pull`), as `Reservations` does."""

    def __init__(
        self,
        reachable: Mapping[str, Sequence[str]],
        *,
        transfer: str,
        decode_choice: DecodeChoice,
        rate_bytes_per_s: float = math.inf,
    ) -> None:
        """`rate_bytes_per_s`: of a rank's link. With it a candidate's gap is live when its decode would have received
        what is on its way to it, and ends with this request's KV."""
        self._layerwise = transfer == "layerwise"
        self._rate = rate_bytes_per_s
        self._coming_bytes: Counter[str] = Counter()
        self.requests = RequestsSeen(reachable, decode_choice)

    def admitted(self, demand: Demand, now_s: float) -> Placement | None:
        """Nothing is decided."""
        self.requests.admit(demand)
        return None

    def prefill_started(self, request_id: str, predicted_end_s: float, now_s: float) -> Placement | None:
        """`layerwise`: the decode is chosen, KV may move."""
        seen = self.requests.advance(request_id, "prefill-started")
        return self._place(seen, now_s, now_s) if self._layerwise else None

    def last_chunk_started(self, request_id: str, predicted_end_s: float, now_s: float) -> Placement:
        """`pull`: the decode is chosen."""
        seen = self.requests.advance(request_id, "last-chunk-started", again=True)
        return seen.placement or self._place(seen, max(predicted_end_s, now_s), now_s)

    def transfer_done(self, request_id: str, part: str, now_s: float) -> None:
        """The decode's load falls with the last part."""
        seen = self.requests.get(request_id)
        if seen.placement is None:
            raise OutOfOrder(f"request {request_id!r}: transfer done before it had a decode instance")
        self.requests.sent(seen, part)
        if seen.state == "done":
            self._coming_bytes[seen.placement.decode] -= _bytes(seen.demand, seen.placement.head_moves)

    def expire(self, request_id: str, reason: str, now_s: float) -> None:
        """The request no longer counts as load."""
        seen = self.requests.bury(request_id)
        if seen.placement is not None:
            self._coming_bytes[seen.placement.decode] -= _bytes(seen.demand, seen.placement.head_moves)

    def _place(self, seen: SeenRequest, wanted_live_s: float, now_s: float) -> Placement:
        def gap_to(decode: str, head_moves: bool) -> Gap:
            free_s = now_s + self._coming_bytes[decode] / self._rate
            return Gap(now_s, free_s, free_s + _bytes(seen.demand, head_moves) / self._rate, stands=True)

        placement = self.requests.place(seen, gap_to, lambda head_moves: wanted_live_s, now_s)
        self._coming_bytes[placement.decode] += _bytes(seen.demand, placement.head_moves)
        if not self._layerwise:
            seen.parts = {"all"}
        else:
            seen.parts = {"head", "tail"} if placement.head_moves else {"tail"}
        return placement


def _bytes(demand: Demand, head_moves: bool) -> int:
    return demand.tail_bytes + (demand.head_bytes if head_moves else 0)
