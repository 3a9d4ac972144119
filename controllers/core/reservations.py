"""Algorithm 1: when a circuit is committed.

R is the circuit rate, tau the reconfiguration delay (with the calibrated excess of a switch over it). One calendar
per instance holds the booked windows and the peer its ports point to; a window is [tau unless the circuit already
stands] + the transfer, and takes the earliest gap free on both calendars.

    1. admitted(r, p)               nothing is booked.
    2. prefill_started(r, p, now)
       2a. choose the decode d: one whose circuit to p stands and is free in time, else the earliest gap, else the
           least loaded
       2b. book the head (the cached prefix, which p already holds) from `now`
    3. last_chunk_started(r, now)
       3a. the chunk's own plan predicts the end t_e
       3b. layerwise: book the tail (the new tokens' KV) to end at t_e + (one layer's bytes) / R, or in the earliest
           gap after
       3c. pull: choose d here, and book everything with live = max(t_e, now + tau, port free + tau)
       3d. sent again with a later end: a window that has started is extended and pushes those behind it that are not
           yet dark; one that is still booked is booked anew
       3e. sent again with an earlier end: a window that is still booked starts at once, if its circuit stands and its
           ports are idle, else as soon as what stands before it allows (not with `bring_forward: false`)
    4. transfer_done(r, now)        release what is left of the window; the circuit keeps standing.

This is the policy `commit: last-chunk`. Another policy is a subclass that overrides an event or two and calls the steps
by name: those in `controllers/commit_rules/`, or a user's own (docs/how-to/own-commit-rule.md).

Between events the shell (or virtual time) asks `due(now)` for the windows that must start, switches, and reports
`live`. Nothing here reads a clock or touches a network. All times are run-clock seconds, all bytes real bytes per
rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from controllers.core.calendar import Ask, Gap, Window
from controllers.core.decode_choice import DecodeChoice
from controllers.core.demand import Demand, OutOfOrder, Placement
from controllers.core.requests_seen import RequestsSeen, SeenRequest
from controllers.core.timetable import Timetable


class Reservations:
    """The reservation scheduler of a circuit fabric; satisfies `FabricController`."""

    def __init__(
        self,
        reachable: Mapping[str, Sequence[str]],
        *,
        rate_bytes_per_s: float,
        reconfiguration_s: float,
        decode_choice: DecodeChoice,
        excess_s: float = 0.0,
        transfer: str = "pull",
        reuse: bool = True,
        bring_forward: bool = True,
    ) -> None:
        """`reachable`: prefill -> the decodes at its GPU positions; `excess_s`: what a switch takes beyond
        `reconfiguration_s`.

        Raises ValueError for a rate that is not positive, or a negative or non-finite delay.
        """
        if not (math.isfinite(rate_bytes_per_s) and rate_bytes_per_s > 0):
            raise ValueError(f"rate_bytes_per_s is {rate_bytes_per_s}; a circuit needs a positive, finite rate")
        if transfer not in ("pull", "layerwise"):
            raise ValueError(f"transfer is {transfer!r}; allowed: pull, layerwise")
        self.rate_bytes_per_s = rate_bytes_per_s
        self.layerwise = transfer == "layerwise"
        self.requests = RequestsSeen(reachable, decode_choice)
        self.timetable = Timetable(reachable, dark_s=0.0, reuse=reuse, brings_forward=bring_forward)
        self.calibrate(reconfiguration_s, excess_s)

    def calibrate(self, reconfiguration_s: float, excess_s: float) -> None:
        """Set tau and the measured excess that every later booking allows for.

        Raises ValueError where one is negative or not finite.
        """
        for name, value in (("reconfiguration_s", reconfiguration_s), ("excess_s", excess_s)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be finite and not negative")
        self.timetable.dark_s = reconfiguration_s + excess_s

    # -- the four events -------------------------------------------------------------------------------------

    def admitted(self, demand: Demand, now_s: float) -> Placement | None:
        """Step 1: nothing is booked."""
        self.requests.admit(demand)
        return None

    def prefill_started(self, request_id: str, predicted_end_s: float, now_s: float) -> Placement | None:
        """Step 2. In `pull` nothing is decided before the last chunk, and the answer is None."""
        self.timetable.settle(now_s)
        seen = self.requests.advance(request_id, "prefill-started")
        return self.commit_head(seen, now_s, now_s) if self.layerwise else None

    def last_chunk_started(self, request_id: str, predicted_end_s: float, now_s: float) -> Placement | None:
        """Step 3. None (of other policies only): nothing is decided before the KV is ready; send it again then."""
        self.timetable.settle(now_s)
        again = self.requests.get(request_id).state == "last-chunk-started"
        seen = self.requests.advance(request_id, "last-chunk-started", again=True)
        if again:
            self.predict_anew(seen, predicted_end_s, now_s)  # 3d, 3e
        elif self.layerwise:
            self.book_tail(seen, predicted_end_s, now_s)  # 3b
        else:
            self.commit_all(seen, predicted_end_s, now_s)  # 3c
        return seen.placement

    def transfer_done(self, request_id: str, part: str, now_s: float) -> None:
        """Step 4. Raises OutOfOrder for a part that has no live window."""
        self.timetable.settle(now_s)
        seen = self.requests.get(request_id)
        window = self.timetable.open_window(request_id, part)
        if window is None or window.state != "live":
            state = window.state if window else "not booked"
            raise OutOfOrder(f"request {request_id!r}: transfer of {part!r} done, but its window is {state}")
        self.requests.sent(seen, part)
        self.timetable.end(window, "released", "", now_s)

    # -- what else happens -----------------------------------------------------------------------------------

    def expire(self, request_id: str, reason: str, now_s: float) -> None:
        """The request died: its windows are free again, and successors that relied on them get tau back."""
        self.timetable.settle(now_s)
        self.requests.bury(request_id)
        for window in self.timetable.open_windows(request_id):
            self.timetable.end(window, "expired", reason, now_s)

    def sender_lost(self, prefill: str, reason: str, now_s: float) -> list[str]:
        """A prefill instance is gone: its requests that have a placement die with it. Returns their ids.

        Those without one hold nothing, and where only the instance's ear was lost they go on.
        """
        lost = self.requests.placed_from(prefill)
        for request_id in lost:
            self.expire(request_id, reason, now_s)
        return lost

    def refuse(self, window_id: int, reason: str, now_s: float) -> Window:
        """The shell could not set this circuit up: the window ends as refused, and its request with it."""
        window = self.windows[window_id]
        self.timetable.settle(now_s)
        self.timetable.end(window, "refused", reason, now_s, switch_failed=True)
        if self.requests.get(window.request_id).state != "done":
            self.expire(window.request_id, reason, now_s)
        return window

    def due(self, now_s: float) -> list[Window]:
        """Windows that start now: dark where `needs_switch` (switch, wait tau, then call `live`), else live at once."""
        return self.timetable.start_due(now_s)

    def next_due_s(self) -> float | None:
        """When `due` next has something; None while nothing can start before an event."""
        return self.timetable.next_due_s()

    def live(self, window_id: int, now_s: float) -> Window:
        """The shell reports a circuit up.

        A window whose request died meanwhile comes back expired: its circuit stands, unused.
        """
        return self.timetable.switched(self.windows[window_id], now_s)

    def standing(self) -> dict[str, str]:
        """Prefill -> decode, of every circuit that stands."""
        return self.timetable.standing()

    def stand(self, pairs: Mapping[str, str]) -> None:
        """Before the clock starts: exactly these circuits stand now."""
        self.timetable.stand(pairs)

    @property
    def windows(self) -> Mapping[int, Window]:
        """Every window ever booked, by id."""
        return self.timetable.windows

    # -- steps, for this policy and those that derive from it ---------------------------------------------------

    def commit_head(self, seen: SeenRequest, live_min_s: float, now_s: float) -> Placement:
        """Steps 2a and 2b: choose the decode, and book the head where the prefix moves."""
        placement = self.choose(seen, lambda head_moves: live_min_s, now_s)
        seen.parts = {"head", "tail"} if placement.head_moves else {"tail"}
        if placement.head_moves:
            self.book(seen, "head", seen.demand.head_bytes, live_min_s=live_min_s, now_s=now_s)
        return placement

    def commit_all(self, seen: SeenRequest, predicted_end_s: float, now_s: float) -> Placement:
        """Step 3c: choose the decode, and book head and tail as one part."""
        seen.parts = {"all"}
        placement = self.choose(seen, lambda head_moves: max(predicted_end_s, now_s), now_s)
        self.book(seen, "all", self.all_bytes(seen), live_min_s=predicted_end_s, now_s=now_s)
        return placement

    def choose(self, seen: SeenRequest, live_min_s: Callable[[bool], float], now_s: float) -> Placement:
        """The decode by the experiment's choice; `live_min_s(head_moves)` is when the KV should start to move.

        The gap that a candidate shows is that of the bytes to be booked first.
        """

        def gap_to(decode: str, head_moves: bool) -> Gap:
            data_bytes = self._first_bytes(seen.demand, head_moves)
            ask = Ask(seen.demand.request_id, data_bytes / self.rate_bytes_per_s, live_min_s(head_moves), now_s)
            return self.timetable.earliest_gap(seen.demand.prefill, decode, ask)

        return self.requests.place(seen, gap_to, live_min_s, now_s)

    def book_tail(self, seen: SeenRequest, predicted_end_s: float, now_s: float) -> Window:
        """Step 3b; the tail never overtakes the head."""
        live_min_s = self.tail_live_s(seen.demand, predicted_end_s)
        head = self.timetable.open_window(seen.demand.request_id, "head")
        if head is not None:
            live_min_s = max(live_min_s, head.end_s)
        return self.book(seen, "tail", seen.demand.tail_bytes, live_min_s=live_min_s, now_s=now_s)

    def book(self, seen: SeenRequest, part: str, data_bytes: int, *, live_min_s: float, now_s: float) -> Window:
        """The earliest gap on both calendars, live at `live_min_s` or later, and the window in it."""
        assert seen.placement is not None
        demand = seen.demand
        ask = Ask(demand.request_id, data_bytes / self.rate_bytes_per_s, max(live_min_s, now_s), now_s)
        return self.timetable.book(demand.prefill, seen.placement.decode, part, ask)

    def predict_anew(self, seen: SeenRequest, predicted_end_s: float, now_s: float) -> None:
        """Steps 3d and 3e, for the window that the prefill's end decides."""
        window = self.timetable.open_window(seen.demand.request_id, "tail" if self.layerwise else "all")
        if window is None:
            return
        if window.state == "booked":
            live_min_s = self.tail_live_s(seen.demand, predicted_end_s) if self.layerwise else predicted_end_s
            if live_min_s <= window.live_s:
                self.timetable.bring_forward(window, live_min_s, now_s)
            else:
                self.rebook(seen, window, predicted_end_s, now_s)
        elif self.layerwise:
            self.timetable.extend(window, predicted_end_s + seen.demand.layer_bytes / self.rate_bytes_per_s, now_s)
        else:
            self.timetable.extend(window, max(window.live_s, predicted_end_s) + window.data_s, now_s)

    def rebook(self, seen: SeenRequest, window: Window, predicted_end_s: float, now_s: float) -> None:
        """Step 3d for a window that has not started: give it up and book anew."""
        self.timetable.end(window, "released", "booked anew: new prediction", now_s)
        if self.layerwise:
            self.book_tail(seen, predicted_end_s, now_s)
        else:
            self.book(seen, "all", self.all_bytes(seen), live_min_s=predicted_end_s, now_s=now_s)

    def all_bytes(self, seen: SeenRequest) -> int:
        """Real bytes per rank that cross for this request, once it has a placement."""
        assert seen.placement is not None
        return seen.demand.tail_bytes + (seen.demand.head_bytes if seen.placement.head_moves else 0)

    def tail_live_s(self, demand: Demand, predicted_end_s: float) -> float:
        """When the tail has to be live to end one layer after the prefill."""
        return predicted_end_s + (demand.layer_bytes - demand.tail_bytes) / self.rate_bytes_per_s

    def _first_bytes(self, demand: Demand, head_moves: bool) -> int:
        if self.layerwise:
            return demand.head_bytes if head_moves else demand.tail_bytes
        return demand.tail_bytes + (demand.head_bytes if head_moves else 0)
