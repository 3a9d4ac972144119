"""The calendars of all instances together: booking on two at once, pushing, cancelling, and what is due.

Every circuit port is in at most one open circuit, because a window holds both of its calendars and windows on a
calendar never overlap.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from controllers.core.calendar import SAME_INSTANT_S, Ask, Calendar, Gap, Window, earliest_gap, gap_behind


class Timetable:
    """All windows, and the circuits that stand. `dark_s` is tau plus the calibrated excess, in seconds."""

    def __init__(
        self, reachable: Mapping[str, Sequence[str]], *, dark_s: float, reuse: bool, brings_forward: bool = True
    ) -> None:
        self.dark_s = dark_s
        self._reuse = reuse
        self._brings_forward = brings_forward
        self._prefills = list(reachable)
        decodes = {decode for decodes in reachable.values() for decode in decodes}
        self.calendars = {instance: Calendar(instance) for instance in (*self._prefills, *sorted(decodes))}
        self.windows: dict[int, Window] = {}
        self._open: dict[str, list[Window]] = {}
        # by prefill: its first window, where that is the first one of its decode too
        self._first: dict[str, Window | None] = dict.fromkeys(self._prefills)

    # -- booking ---------------------------------------------------------------------------------------------

    def earliest_gap(self, prefill: str, decode: str, ask: Ask) -> Gap:
        """Where `ask` would be booked."""
        return earliest_gap(self.calendars[prefill], self.calendars[decode], ask, dark_s=self.dark_s, reuse=self._reuse)

    def book(self, prefill: str, decode: str, part: str, ask: Ask) -> Window:
        """Book on both calendars at once; a reuse window behind it that loses its circuit gets `dark_s` before it."""
        return self._add(prefill, decode, part, ask, self.earliest_gap(prefill, decode, ask), queued=False)

    def queue(self, prefill: str, decode: str, part: str, ask: Ask) -> Window:
        """Stand behind every window of both calendars; the window starts as soon as it is first on both.

        Its planned times move up when what stands before it ends early.
        """
        pair = self.calendars[prefill], self.calendars[decode]
        gap = gap_behind(*pair, ask, dark_s=self.dark_s, reuse=self._reuse)
        return self._add(prefill, decode, part, ask, gap, queued=True)

    def _add(self, prefill: str, decode: str, part: str, ask: Ask, gap: Gap, *, queued: bool) -> Window:
        window = Window(
            id=len(self.windows),
            request_id=ask.request_id,
            part=part,
            prefill=prefill,
            decode=decode,
            start_s=gap.start_s,
            live_s=gap.live_s,
            end_s=gap.end_s,
            data_s=ask.data_s,
            needs_switch=not gap.stands,
            queued=queued,
        )
        self.windows[window.id] = window
        self._open.setdefault(ask.request_id, []).append(window)
        for calendar in self._both(window):
            calendar.insert(window)
        first_on_decode = self.calendars[decode].windows[:2]
        if first_on_decode[0] is window and len(first_on_decode) > 1:
            self._find_first(first_on_decode[1].prefill)
        self._find_first(prefill)
        self._restore(self._followers(window), ask.now_s)
        return window

    def open_windows(self, request_id: str) -> list[Window]:
        """The request's windows that have not ended."""
        return list(self._open.get(request_id, ()))

    def open_window(self, request_id: str, part: str) -> Window | None:
        """The request's window for `part` that has not ended, if any."""
        return next((window for window in self._open.get(request_id, ()) if window.part == part), None)

    # -- changing --------------------------------------------------------------------------------------------

    def extend(self, window: Window, end_s: float, now_s: float) -> None:
        """Keep a started window's circuit until `end_s` (shorter allowed, not before now); push those behind it."""
        # However early the new end: a circuit still dark has to come up and carry its data, and a part that is live
        # behind its request's first one comes after it.
        waits = window.state == "dark" or window.start_s > now_s
        window.end_s = max(end_s, window.live_s + window.data_s if waits else now_s)
        self._moved(window)
        self._push(self._followers(window), now_s)

    def bring_forward(self, window: Window, live_min_s: float, now_s: float) -> None:
        """Let a booked window be live at `live_min_s`, or as soon after it as what stands before it allows.

        Never later than planned, and nothing else moves. A window that is not booked (any more) stays as it is, and so
        do all of them where the experiment brings none forward.
        """
        if window.state != "booked" or not self._brings_forward:
            return
        dark_s = self.dark_s if window.needs_switch else 0.0
        start_s = max(now_s, self._free_s(window), live_min_s - dark_s)
        if start_s < window.start_s - SAME_INSTANT_S:
            self._move(window, start_s)

    def end(self, window: Window, state: str, reason: str, now_s: float, *, switch_failed: bool = False) -> None:
        """Take a window off both calendars.

        One that is dark stays, doomed, until its switch is over: its rules are on their way.
        """
        window.reason = reason or window.reason
        if window.state == "dark" and not switch_failed:
            window.doomed = True
            return
        if window.state not in ("booked", "dark", "live"):
            return
        followers = self._followers(window)
        for calendar in self._both(window):
            calendar.remove(window)
        self._find_first(window.prefill)
        if left := self.calendars[window.decode].windows:
            self._find_first(left[0].prefill)
        self._open[window.request_id].remove(window)
        if not self._open[window.request_id]:
            del self._open[window.request_id]
        window.state = state
        window.released_at_s = now_s
        self._restore(followers, now_s)
        self._pull(followers, now_s)

    def settle(self, now_s: float) -> None:
        """Let the plan catch up with the clock.

        A window still open after its end holds its ports until now, and pushes the rest.
        """
        for window in self._first_windows():
            if window.state == "live" and window.end_s < now_s:
                window.end_s = now_s
            elif window.state == "dark" and window.live_s < now_s:
                window.live_s, window.end_s = now_s, now_s + window.data_s
            else:
                continue
            self._moved(window)
            self._push(self._followers(window), now_s)

    # -- starting --------------------------------------------------------------------------------------------

    def next_due_s(self) -> float | None:
        """The earliest start among booked windows that nothing stands before."""
        next_s: float | None = None
        for window in self._first_windows():
            if window.state == "booked":
                start_s = window.start_s
            elif window.state == "live" and self._continuation(window) is not None:
                start_s = window.live_at_s or 0.0
            else:
                continue
            if next_s is None or start_s < next_s:
                next_s = start_s
        return next_s

    def start_due(self, now_s: float) -> list[Window]:
        """Start every booked window whose time has come and whose ports are free, in time order.

        Where a request's next window follows on the same circuit without a gap, it is live together with the first:
        between the two its sender would wait for nothing but our word.
        """
        self.settle(now_s)
        started = []
        for window in sorted(self._first_windows(), key=lambda window: (window.start_s, window.id)):
            if window.state == "booked" and window.start_s <= now_s + SAME_INSTANT_S:
                self._start(window, now_s)
                started.append(window)
            if window.state == "live" and (joined := self._continuation(window)) is not None:
                joined.state = "live"
                joined.live_at_s = now_s
                started.append(joined)
        return started

    def switched(self, window: Window, now_s: float) -> Window:
        """The circuit of a dark window is up."""
        if window.state != "dark":
            raise ValueError(f"window {window.id} is {window.state}, not dark: its switch cannot end now")
        self._join(window)
        window.state = "live"
        if window.doomed:
            self.end(window, "expired", window.reason, now_s)
            return window
        window.live_at_s = now_s
        late_s = now_s - window.live_s
        window.live_s = now_s
        self._moved(window)
        if late_s > 0:
            self.extend(window, window.end_s + late_s, now_s)
        return window

    def standing(self) -> dict[str, str]:
        """Prefill -> decode of the circuits that stand."""
        return {prefill: peer for prefill in self._prefills if (peer := self.calendars[prefill].peer) is not None}

    def stand(self, pairs: Mapping[str, str]) -> None:
        """Exactly these circuits stand.

        Raises ValueError once anything is booked, or where a port would be in two circuits.
        """
        if self.windows:
            raise ValueError("circuits can only be laid by hand before anything is booked")
        if len(set(pairs.values())) != len(pairs):
            raise ValueError(f"a port can be in one circuit only: {dict(pairs)}")
        for calendar in self.calendars.values():
            calendar.peer = calendar.owner = None
        for prefill, decode in pairs.items():
            self.calendars[prefill].peer, self.calendars[decode].peer = decode, prefill

    # -- inside ----------------------------------------------------------------------------------------------

    def _start(self, window: Window, now_s: float) -> None:
        prefill, decode = self._both(window)
        stands = prefill.peer == window.decode and decode.peer == window.prefill
        stands = stands and (self._reuse or prefill.owner == decode.owner == window.request_id)
        late_s = max(0.0, now_s - window.start_s)
        window.start_s, window.late_s = now_s, 0.0 if window.queued else late_s
        if stands:
            window.needs_switch = False
            window.state = "live"
            window.live_at_s = window.live_s = now_s
            window.end_s = max(window.end_s, now_s + window.data_s)
            self._join(window)
        else:
            window.needs_switch = True
            window.state = "dark"
            window.dark_at_s = now_s
            window.live_s = max(window.live_s, now_s + self.dark_s)
            window.end_s = max(window.end_s + late_s, window.live_s + window.data_s)
            for calendar in (prefill, decode):  # tear both old circuits: up to four ports
                if calendar.peer is not None:
                    self.calendars[calendar.peer].peer = None
                    calendar.peer = calendar.owner = None
        self._moved(window)
        self._push(self._followers(window), now_s)

    def _continuation(self, window: Window) -> Window | None:
        """The booked window right behind a live one, on both calendars, of the same request and circuit."""
        follower = self.calendars[window.prefill].after_window(window)
        if follower is None or follower.request_id != window.request_id or follower.state != "booked":
            return None
        contiguous = follower.start_s <= window.end_s + SAME_INSTANT_S
        return follower if contiguous and self.calendars[window.decode].after_window(window) is follower else None

    def _join(self, window: Window) -> None:
        for calendar, peer in zip(self._both(window), (window.decode, window.prefill), strict=True):
            calendar.peer, calendar.owner = peer, window.request_id

    def _both(self, window: Window) -> tuple[Calendar, Calendar]:
        return self.calendars[window.prefill], self.calendars[window.decode]

    def _followers(self, window: Window) -> list[Window]:
        return [after for calendar in self._both(window) if (after := calendar.after_window(window)) is not None]

    def _first_windows(self) -> list[Window]:
        """The windows that nothing stands before, on either calendar."""
        return [window for window in self._first.values() if window is not None]

    def _find_first(self, prefill: str) -> None:
        """The windows of `prefill`, or those of a decode before which its first one stood, have changed."""
        windows = self.calendars[prefill].windows
        is_first = bool(windows) and self.calendars[windows[0].decode].windows[0] is windows[0]
        self._first[prefill] = windows[0] if is_first else None

    def _stands_before(self, window: Window) -> bool:
        """Whether the windows before it leave the circuit of `window` standing."""
        for calendar in self._both(window):
            previous = calendar.before_window(window)
            peer = calendar.peer if previous is None else self._peer_of(previous, calendar)
            owner = calendar.owner if previous is None else previous.request_id
            if peer != self._peer_of(window, calendar) or not (self._reuse or owner == window.request_id):
                return False
        return True

    @staticmethod
    def _peer_of(window: Window, calendar: Calendar) -> str:
        return window.decode if calendar.instance == window.prefill else window.prefill

    def _restore(self, windows: Iterable[Window], now_s: float) -> None:
        """Give tau back to booked windows whose circuit no longer stands before them.

        Earlier if there is room, else later.
        """
        pushed = []
        for window in windows:
            if window.state != "booked" or window.needs_switch or self._stands_before(window):
                continue
            window.needs_switch = True
            free_s = max(now_s, self._free_s(window))
            window.start_s = max(window.live_s - self.dark_s, free_s)
            window.live_s = window.start_s + self.dark_s
            window.end_s = window.live_s + window.data_s
            self._moved(window)
            pushed += self._followers(window)
        self._push(pushed, now_s)

    def _free_s(self, window: Window) -> float:
        before = [calendar.before_window(window) for calendar in self._both(window)]
        return max((previous.end_s for previous in before if previous is not None), default=0.0)

    def _push(self, windows: Iterable[Window], now_s: float) -> None:
        """Move booked windows behind whatever now stands before them, and those behind them in turn.

        Order is kept, so it ends.
        """
        waiting = [(window.start_s, window.id) for window in windows]
        heapq.heapify(waiting)
        while waiting:
            _, window_id = heapq.heappop(waiting)
            window = self.windows[window_id]
            free_s = self._free_s(window)
            # one that is live behind its request's first window moves with it; a window that is first never does
            movable = window.state == "booked" or (window.state == "live" and free_s > 0)
            if not movable or window.start_s >= free_s - SAME_INSTANT_S:
                continue
            self._move(window, free_s)
            for follower in self._followers(window):
                heapq.heappush(waiting, (follower.start_s, follower.id))

    def _pull(self, windows: Iterable[Window], now_s: float) -> None:
        """Move queued windows up to whatever now stands before them, and those behind them in turn."""
        waiting = [(window.start_s, window.id) for window in windows]
        heapq.heapify(waiting)
        while waiting:
            _, window_id = heapq.heappop(waiting)
            window = self.windows[window_id]
            free_s = max(now_s, self._free_s(window))
            if not window.queued or window.state != "booked" or free_s >= window.start_s - SAME_INSTANT_S:
                continue
            self._move(window, free_s)
            for follower in self._followers(window):
                heapq.heappush(waiting, (follower.start_s, follower.id))

    def _move(self, window: Window, start_s: float) -> None:
        window.move_to(start_s)
        self._moved(window)

    def _moved(self, window: Window) -> None:
        for calendar in self._both(window):
            calendar.moved()
