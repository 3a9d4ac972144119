"""The gateway's books: which requests each prefill instance has, and how much prefill work is left there.

Pure functions of `now`: the gateway of an emulation and that of the twin drive the same object. It knows what a gateway
sees: when a request was sent, how long its prefill is predicted to take, and when its first token came back. Instances
are first in first out. A prefill that takes longer than predicted is not seen before its first token; one that took
less time than predicted brings forward what is predicted behind it. Times are run-clock seconds, real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inputs.plugin_fault import PluginFault, blamed, name_of
from workloads.prefill import PrefillTiming
from workloads.prefill_choice import PrefillCandidate, PrefillChoice, PrefillDemand
from workloads.request import Request


@dataclass(slots=True)
class _Books:
    """One prefill instance. `ends_s`: the predicted end of each unfinished request's prefill, in order of sending."""

    chosen_at: int = 0
    free_s: float = 0.0
    ends_s: dict[str, float] = field(default_factory=dict)

    def sent(self, request_id: str, prefill_s: float, now_s: float) -> None:
        self.free_s = self.ends_s[request_id] = max(self.free_s, now_s) + prefill_s

    def ended(self, request_id: str, now_s: float, *, prefilled: bool) -> None:
        end_s = self.ends_s.pop(request_id)
        if not prefilled or end_s <= now_s:
            return
        # whatever is predicted behind it was sent before now, so it follows without a gap: all of it is that much early
        early_s = end_s - now_s
        self.free_s -= early_s
        self.ends_s = {name: at_s - early_s if at_s > end_s else at_s for name, at_s in self.ends_s.items()}


class PrefillRouter:
    """Sends each request to one prefill instance, by a choice."""

    def __init__(self, choice: PrefillChoice, timing: PrefillTiming) -> None:
        self._choice = choice
        self._timing = timing
        self._books: dict[str, _Books] = {}
        self._choices = 0
        self._session_prefill: dict[tuple[str, str], str] = {}
        self._prefill_of: dict[str, str] = {}

    def send(self, request: Request, names: Sequence[str], now_s: float) -> str:
        """The instance, one of `names`, that gets a request now.

        Raises ValueError if there is none, and PluginFault where the choice fails.
        """
        if not names:
            raise ValueError("no instance to choose from")
        books = [self._books.setdefault(name, _Books()) for name in names]
        rank = {at: place for place, at in enumerate(sorted(range(len(names)), key=lambda at: books[at].chosen_at))}
        served = self._session_prefill.get((request.tenant, request.session)) if request.session else None
        candidates = [
            PrefillCandidate(
                prefill=name,
                unfinished=len(books[at].ends_s),
                work_s=max(books[at].free_s - now_s, 0.0),
                rank=rank[at],
                served=name == served,
            )
            for at, name in enumerate(names)
        ]
        predicted_s = request.predicted_prefill_s(self._timing)
        demand = PrefillDemand(
            request.id, request.tenant, request.session, request.new_tokens, request.cached_tokens, predicted_s
        )
        prefill = self._chosen(demand, candidates, now_s)
        self._choices += 1
        self._books[prefill].chosen_at = self._choices
        self._books[prefill].sent(request.id, predicted_s, now_s)
        self._prefill_of[request.id] = prefill
        if request.session:
            self._session_prefill[request.tenant, request.session] = prefill
        return prefill

    def ended(self, request_id: str, now_s: float, *, prefilled: bool = True) -> None:
        """A request that was sent is over. `prefilled`: its first token is here, so its prefill has ended; that of a
        request which failed may still run. Raises ValueError where it is not under way."""
        prefill = self._prefill_of.pop(request_id, None)
        if prefill is None:
            raise ValueError(f"{request_id} is not under way: it was never sent, or it is over")
        self._books[prefill].ended(request_id, now_s, prefilled=prefilled)

    def _chosen(self, demand: PrefillDemand, candidates: Sequence[PrefillCandidate], now_s: float) -> str:
        """The choice's answer, as our own name of it: what a user's own class answers may do anything where it is
        compared or shown."""
        name = f"prefill choice {name_of(self._choice)}"
        known = [candidate.prefill for candidate in candidates]
        with blamed(name):
            answer = self._choice.choose(demand, candidates, now_s)
            chosen = next((each for each in known if each == answer), None)
            shown = f"{answer!r:.200}" if chosen is None else ""
        if chosen is None:
            raise PluginFault(
                f"{name} returned {shown} for {demand.request_id!r}; it may choose among {', '.join(known)}"
            )
        return chosen
