"""Ideal circuits in virtual time, for tests of the pure core: senders at exactly R, control and return take nothing."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from controllers.core.calendar import Window
from controllers.core.demand import Demand
from controllers.core.reservations import Reservations
from workloads.kv import KvModel
from workloads.prefill import PrefillPlan
from workloads.serving import KvStream, kv_due_s


@dataclass(frozen=True)
class Turn:
    """One request whose prefill starts at `start_s` on `prefill`; `predicted` and `actual` are its plans.

    It is admitted at `arrival_s`, by default when its prefill starts.
    """

    id: str
    prefill: str
    start_s: float
    actual: PrefillPlan
    predicted: PrefillPlan
    arrival_s: float | None = None


def finish_s(stream: KvStream, part: str, live_s: float, rate: float) -> float:
    """When the last byte of a part has been sent: the latest over all releases of its moment plus what is left then."""
    before = 0 if part in ("head", "all") else stream.head_bytes
    total = stream.head_bytes if part == "head" else stream.total_bytes
    done_s, at_s, sent = live_s + (total - before) / rate, stream.start_s - 1.0, before
    while (next_s := stream.next_release_s(at_s)) is not None:
        exists = min(max(stream.bytes_at(at_s), sent), total)
        done_s = max(done_s, max(live_s, next_s) + (total - exists) / rate if exists < total else 0.0)
        at_s = next_s
    return done_s


@dataclass
class VirtualCircuits:
    """Drives a `Reservations` as the shells do; `log` holds what happened, in milliseconds."""

    core: Reservations
    kv: KvModel
    transfer: str
    rate: float
    last_byte_ms: dict[str, float] = field(default_factory=dict)
    log: list[tuple[float, str, str, str]] = field(default_factory=list)

    def run(self, turns: Sequence[Turn]) -> None:
        """Until nothing is left to happen."""
        self._turns = {turn.id: turn for turn in turns}
        self._streams: dict[str, KvStream] = {}
        self._sent_s: dict[str, float] = {}
        self._queue: list[tuple[float, int, str, object]] = []
        self._order = 0
        for turn in turns:
            self._at(turn.start_s if turn.arrival_s is None else turn.arrival_s, "arrive", turn)
            self._at(turn.start_s, "start", turn)
            self._at(turn.start_s + turn.predicted.last_chunk_start_s, "last chunk", turn)
            if turn.predicted.duration_s > turn.actual.duration_s:
                due_s = kv_due_s(turn.actual, self.kv, self.transfer, turn.start_s, self.rate)
                self._at(due_s, "ready", turn)
        while True:
            due_s = self.core.next_due_s()
            if due_s is not None and (not self._queue or due_s < self._queue[0][0]):
                self._start_due(due_s)
            elif self._queue:
                now_s, _, what, subject = heapq.heappop(self._queue)
                self._handle(now_s, what, subject)
            else:
                return
            self._check_ports()

    def _at(self, at_s: float, what: str, subject: object) -> None:
        self._order += 1
        heapq.heappush(self._queue, (at_s, self._order, what, subject))

    def _handle(self, now_s: float, what: str, subject: object) -> None:
        if isinstance(subject, Turn):
            self._tell(what, subject, now_s)
        elif isinstance(subject, Window) and what == "live":
            self.core.live(subject.id, now_s)
            if subject.state == "live":
                self._send(subject, now_s)
        elif isinstance(subject, Window):
            self.log.append((round(now_s * 1e3, 3), subject.request_id, subject.part, "done"))
            self.last_byte_ms[subject.request_id] = now_s * 1e3
            self.core.transfer_done(subject.request_id, subject.part, now_s)
        self._start_due(now_s)

    def _tell(self, what: str, turn: Turn, now_s: float) -> None:
        """The agent's side of the four events."""
        predicted_end_s, end_s = turn.start_s + turn.predicted.duration_s, turn.start_s + turn.actual.duration_s
        if what == "arrive":
            placement = self.core.admitted(self._demand(turn), now_s)
        elif what == "start":
            placement = self.core.prefill_started(turn.id, predicted_end_s, now_s)
        elif what == "last chunk":
            placement = self.core.last_chunk_started(turn.id, predicted_end_s, now_s)
            if placement is None:
                self._at(end_s, "ready", turn)
        else:
            granted = {
                window.part
                for window in self.core.windows.values()
                if window.request_id == turn.id and window.live_at_s is not None
            }
            if granted & {"tail", "all"}:
                return
            placement = self.core.last_chunk_started(turn.id, end_s, now_s)
        if placement and turn.id not in self._streams:
            self._streams[turn.id] = KvStream(turn.actual, self.kv, self.transfer, turn.start_s, placement.head_moves)

    def _start_due(self, now_s: float) -> None:
        for window in self.core.due(now_s):
            if window.state == "dark":
                self.log.append((round(now_s * 1e3, 3), window.request_id, window.part, "dark"))
                self._at(window.live_s, "live", window)
            else:
                self._send(window, now_s)

    def _send(self, window: Window, live_s: float) -> None:
        self.log.append((round(live_s * 1e3, 3), window.request_id, window.part, "live"))
        stream = self._streams[window.request_id]
        # a connection is first in, first out: the tail never overtakes the head
        free_s = max(live_s, self._sent_s.get(window.request_id, 0.0))
        self._sent_s[window.request_id] = finish_s(stream, window.part, free_s, self.rate)
        self._at(self._sent_s[window.request_id], "done", window)

    def _demand(self, turn: Turn) -> Demand:
        return Demand(
            request_id=turn.id,
            tenant="t",
            session="",
            prefill=turn.prefill,
            head_bytes=self.kv.rank_bytes(turn.actual.cached_tokens),
            tail_bytes=self.kv.rank_bytes(turn.actual.new_tokens),
            layer_bytes=self.kv.rank_layer_bytes(turn.actual.chunks[-1].new_tokens),
            predicted_prefill_s=turn.predicted.duration_s,
            migrates=True,
        )

    def _check_ports(self) -> None:
        """At most one started window a port, and no two planned windows of a port overlap."""
        for calendar in self.core.timetable.calendars.values():
            for earlier, later in zip(calendar.windows, calendar.windows[1:], strict=False):
                assert earlier.end_s <= later.start_s + 1e-9, (calendar.instance, earlier, later)
                assert later.state == "booked" or later.request_id == earlier.request_id, (calendar.instance, later)
