"""One calendar per instance: the booked windows of its circuit ports, and the peer the ports point to.

All ranks of an instance switch together, so one calendar stands for all its ports. A window lies on two calendars,
the prefill's and the decode's, and holds both from `start_s` to `end_s`: first dark (the reconfiguration delay,
absent where the circuit already stands), then live. Nothing here reads a clock.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

# Two run-clock times closer than this are the same instant; far below a packet's time, far above float noise at hour
# scale.
SAME_INSTANT_S = 1e-9


@dataclass(slots=True, eq=False)
class Window:
    """A reservation: `start_s`..`live_s` dark, `live_s`..`end_s` for the data; all planned, in run-clock seconds.

    `state` is booked, dark, live, released, refused or expired; `dark_at_s`, `live_at_s`, `released_at_s` are what
    happened.
    """

    id: int
    request_id: str
    part: str
    prefill: str
    decode: str
    start_s: float
    live_s: float
    end_s: float
    data_s: float
    needs_switch: bool
    state: str = "booked"
    doomed: bool = False  # its request died in the dark: it ends when its switch does
    dark_at_s: float | None = None
    live_at_s: float | None = None
    released_at_s: float | None = None
    reason: str = ""

    def joins(self, prefill: str, decode: str) -> bool:
        """Whether this window is a circuit between these two."""
        return self.prefill == prefill and self.decode == decode

    def move_to(self, start_s: float) -> None:
        """Shift the whole window so that it starts at `start_s`."""
        shift_s = start_s - self.start_s
        self.start_s, self.live_s, self.end_s = start_s, self.live_s + shift_s, self.end_s + shift_s


@dataclass(slots=True, eq=False)
class Calendar:
    """Windows of one instance that have not ended, in time order; `peer` and `owner` tell what its ports point to
    right now.

    `owner` is the request that used the circuit last: without reuse a circuit stands for its own request only.
    """

    instance: str
    peer: str | None = None
    owner: str | None = None

    windows: list[Window] = field(default_factory=list)

    def insert(self, window: Window) -> None:
        """Keep `window` in time order."""
        insort(self.windows, window, key=attrgetter("start_s"))

    def neighbours(self, window: Window) -> tuple[Window | None, Window | None]:
        """The windows just before and just after `window`."""
        at = self.windows.index(window)
        return self.windows[at - 1] if at else None, self.windows[at + 1] if at + 1 < len(self.windows) else None


@dataclass(frozen=True, slots=True)
class Ask:
    """What a booking wants.

    `data_s` seconds of live circuit for `request_id`, live at `live_min_s` or later, dark at `now_s` or later.
    """

    request_id: str
    data_s: float
    live_min_s: float
    now_s: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Where an `Ask` fits; `stands` tells that no reconfiguration is needed."""

    start_s: float
    live_s: float
    end_s: float
    stands: bool


def earliest_gap(prefill: Calendar, decode: Calendar, ask: Ask, *, dark_s: float, reuse: bool) -> Gap:
    """The earliest gap free on both calendars.

    The gap begins with `dark_s` unless the circuit stands when it begins. It may lie before a window booked as reuse
    only if that window can be given `dark_s` first, without being late. There is always one: behind the last window.
    """
    pair = (prefill.instance, decode.instance)
    free_s = ask.now_s
    points = [_Pointer(prefill.peer, prefill.owner), _Pointer(decode.peer, decode.owner)]
    for window, next_on_prefill, next_on_decode in _walk(prefill, decode):
        stands = (
            points[0].peer == pair[1]
            and points[1].peer == pair[0]
            and (reuse or points[0].owner == points[1].owner == ask.request_id)
        )
        dark = 0.0 if stands else dark_s
        live_s = max(ask.live_min_s, free_s + dark)
        end_s = live_s + ask.data_s
        limit_s = min(_deadline(follower, pair, ask, dark_s, reuse) for follower in (next_on_prefill, next_on_decode))
        if end_s <= limit_s + SAME_INSTANT_S:
            return Gap(live_s - dark, live_s, end_s, stands)
        assert window is not None, "behind the last window nothing limits a booking"
        free_s = max(free_s, window.end_s)
        if window.prefill == pair[0]:
            points[0] = _Pointer(window.decode, window.request_id)
        if window.decode == pair[1]:
            points[1] = _Pointer(window.prefill, window.request_id)
    raise AssertionError("unreachable: the walk ends with an open gap")


@dataclass(frozen=True, slots=True)
class _Pointer:
    peer: str | None
    owner: str | None


def _walk(prefill: Calendar, decode: Calendar) -> Iterator[tuple[Window | None, Window | None, Window | None]]:
    """Each window of either calendar in time order, with the next one on each calendar at that moment.

    Last, an open end.
    """
    at = [0, 0]
    lists = (prefill.windows, decode.windows)
    merged = heapq.merge(*lists, key=lambda window: (window.start_s, window.id))
    seen: set[int] = set()
    for window in merged:
        if window.id in seen:  # a window between these two lies on both calendars
            continue
        seen.add(window.id)
        upcoming = [lists[i][at[i]] if at[i] < len(lists[i]) else None for i in (0, 1)]
        yield window, upcoming[0], upcoming[1]
        for i in (0, 1):
            if upcoming[i] is window:
                at[i] += 1
    yield None, None, None


def _deadline(follower: Window | None, pair: tuple[str, str], ask: Ask, dark_s: float, reuse: bool) -> float:
    """When a booking of `pair` before `follower` must have ended."""
    if follower is None:
        return math.inf
    if follower.needs_switch or follower.state != "booked":
        return follower.start_s
    undisturbed = follower.joins(*pair) and (reuse or follower.request_id == ask.request_id)
    return follower.start_s if undisturbed else follower.live_s - dark_s
