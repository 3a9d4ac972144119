"""`commit: none`, the baseline: no circuit is asked for before there is KV to send.

    1. admitted(r, p)               nothing.
    2. prefill_started(r, p, now)   layerwise: the prefix is KV, so choose the decode d, by load, and queue for the
                                    ports of p and d; they are held until the last layer has been sent
    3. last_chunk_started(r, now)   pull: nothing, and the answer is None; sent again at the prefill's end, choose d and
                                    queue for the ports
    4. transfer_done(r, now)        release; who is next on both ports starts at once

Ports are first come, first served: a window stands behind all others on both calendars and starts when it is first on
both. Its planned times tell nothing but the order.
"""

from __future__ import annotations

from controllers.core.calendar import Ask, Window
from controllers.core.demand import Placement
from controllers.core.requests_seen import SeenRequest
from controllers.core.reservations import Reservations


class NoReservation(Reservations):
    """A circuit when KV is ready, held to the end of the transfer; see `Reservations` for its arguments."""

    def prefill_started(self, request_id: str, predicted_end_s: float, now_s: float) -> Placement | None:
        """Step 2."""
        self.timetable.settle(now_s)
        seen = self.requests.advance(request_id, "prefill-started")
        if not self.layerwise:
            return None
        placement = self.choose(seen, lambda head_moves: now_s, now_s)
        demand, rate = seen.demand, self.rate_bytes_per_s
        live_s = now_s
        if placement.head_moves:
            live_s = self._queue(seen, "head", demand.head_bytes / rate, now_s).end_s
        seen.parts = {"head", "tail"} if placement.head_moves else {"tail"}
        last_byte_s = predicted_end_s + demand.layer_bytes / rate
        # right behind the head, so that one circuit is held from the first byte to the last
        self._queue(seen, "tail", max(last_byte_s - live_s, demand.tail_bytes / rate), now_s)
        return placement

    def last_chunk_started(self, request_id: str, predicted_end_s: float, now_s: float) -> Placement | None:
        """Step 3."""
        self.timetable.settle(now_s)
        again = self.requests.get(request_id).state == "last-chunk-started"
        seen = self.requests.advance(request_id, "last-chunk-started", again=True)
        if again and not self.layerwise and seen.placement is None:
            seen.parts = {"all"}
            self.choose(seen, lambda head_moves: now_s, now_s)
            self._queue(seen, "all", self.all_bytes(seen) / self.rate_bytes_per_s, now_s)
        return seen.placement

    def _queue(self, seen: SeenRequest, part: str, data_s: float, now_s: float) -> Window:
        assert seen.placement is not None
        ask = Ask(seen.demand.request_id, data_s, now_s, now_s)
        return self.timetable.queue(seen.demand.prefill, seen.placement.decode, part, ask)
