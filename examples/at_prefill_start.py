"""A commit rule of one's own: in `pull`, commit when the prefill starts, not when its last chunk does."""

from controllers.core.demand import Placement
from controllers.core.reservations import Reservations


class AtPrefillStart(Reservations):
    """More time to hide tau behind a long prefill, for a prediction of the whole of it and not of its last chunk."""

    def prefill_started(self, request_id: str, predicted_end_s: float, now_s: float) -> Placement | None:
        """Choose the decode and book everything from the predicted end."""
        if self.layerwise:
            return super().prefill_started(request_id, predicted_end_s, now_s)
        self.timetable.settle(now_s)
        seen = self.requests.advance(request_id, "prefill-started")
        return self.commit_all(seen, predicted_end_s, now_s)

    def last_chunk_started(self, request_id: str, predicted_end_s: float, now_s: float) -> Placement | None:
        """The end is known better now: extend, bring forward, or book anew."""
        if self.layerwise:
            return super().last_chunk_started(request_id, predicted_end_s, now_s)
        self.timetable.settle(now_s)
        seen = self.requests.advance(request_id, "last-chunk-started", again=True)
        self.predict_anew(seen, predicted_end_s, now_s)
        return seen.placement
