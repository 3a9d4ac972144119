"""`commit: admission`: everything is booked when a request arrives, from predicted times of the whole queue before it.

    1. admitted(r, p, now)
       1a. predict the prefill: it starts at the predicted end of p's queue and ends T later
       1b. choose the decode d
       1c. layerwise: book the head from the predicted start, the tail to end one layer after the predicted end;
           pull: book everything from the predicted end
    2. prefill_started(r, p, now)   the queue's end is predicted anew; a head booked for later starts as soon as its
                                    ports are idle
    3. last_chunk_started(r, now)   a window that has started is extended and pushes those behind it; one booked for
                                    later than needed is brought forward; one booked too early is kept: it will hold
                                    its ports until the KV is there
    4. transfer_done(r, now)        as ever

A booking absorbs the error of every prefill queued ahead of its request: that is what this policy is measured for.
"""

from __future__ import annotations

from typing import Any

from controllers.core.calendar import Window
from controllers.core.demand import Demand, Placement
from controllers.core.requests_seen import SeenRequest
from controllers.core.reservations import Reservations


class AdmissionCommit(Reservations):
    """Books at admission; see `Reservations` for its arguments."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._queues: dict[str, PredictedQueue] = {}

    def admitted(self, demand: Demand, now_s: float) -> Placement | None:
        """Step 1. The placement is known now, and is answered again at the prefill's start."""
        self.timetable.settle(now_s)
        seen = self.requests.admit(demand)
        queue = self._queues.setdefault(demand.prefill, PredictedQueue())
        start_s = queue.end_s(now_s)  # 1a
        end_s = start_s + demand.predicted_prefill_s
        queue.waiting[demand.request_id] = demand.predicted_prefill_s
        if not self.layerwise:
            return self.commit_all(seen, end_s, now_s)
        placement = self.commit_head(seen, start_s, now_s)
        self.book_tail(seen, end_s, now_s)
        return placement

    def prefill_started(self, request_id: str, predicted_end_s: float, now_s: float) -> Placement | None:
        """Step 2."""
        self.timetable.settle(now_s)
        seen = self.requests.advance(request_id, "prefill-started")
        self._queues[seen.demand.prefill].started(request_id, predicted_end_s)
        head = self.timetable.open_window(request_id, "head")
        if head is not None:
            self.timetable.bring_forward(head, now_s, now_s)
        return seen.placement

    def last_chunk_started(self, request_id: str, predicted_end_s: float, now_s: float) -> Placement | None:
        """Step 3, the first time and again."""
        self.timetable.settle(now_s)
        seen = self.requests.advance(request_id, "last-chunk-started", again=True)
        self._queues[seen.demand.prefill].running_until(request_id, predicted_end_s)
        self.predict_anew(seen, predicted_end_s, now_s)
        return seen.placement

    def rebook(self, seen: SeenRequest, window: Window, predicted_end_s: float, now_s: float) -> None:
        """A window booked too early is kept: it starts as planned and holds its ports until the KV is there."""


class PredictedQueue:
    """What one prefill instance is predicted to be busy with: the prefill that runs, and those that wait."""

    def __init__(self) -> None:
        self.waiting: dict[str, float] = {}  # request -> predicted duration, seconds, in order of admission
        self._running = ""
        self._running_end_s = 0.0

    def end_s(self, now_s: float) -> float:
        """When a request admitted now is predicted to start."""
        return max(now_s, self._running_end_s) + sum(self.waiting.values())

    def started(self, request_id: str, predicted_end_s: float) -> None:
        """The prefill of a request that waited runs now; whoever stood before it has run, or died unsaid."""
        while request_id in self.waiting:
            del self.waiting[next(iter(self.waiting))]
        self._running, self._running_end_s = request_id, predicted_end_s

    def running_until(self, request_id: str, predicted_end_s: float) -> None:
        """A new prediction for the prefill that runs; one for an earlier prefill changes nothing."""
        if request_id == self._running:
            self._running_end_s = predicted_end_s
