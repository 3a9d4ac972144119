"""One calendar per instance: the booked windows of its circuit ports, and the peer the ports point to.

All ranks of an instance switch together, so one calendar stands for all its ports. A window lies on two calendars,
the prefill's and the decode's, and holds both from `start_s` to `end_s`: first dark (the reconfiguration delay,
absent where the circuit already stands), then live. Nothing here reads a clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
import numpy.typing as npt

# Two run-clock times closer than this are the same instant; far below a packet's time, far above float noise at hour
# scale.
SAME_INSTANT_S = 1e-9

# A calendar of at most this many windows is searched window by window: arrays pay only behind a long queue.
FEW_WINDOWS = 48

_START = attrgetter("start_s")


@dataclass(slots=True, eq=False)
class Window:
    """A reservation: `start_s`..`live_s` dark, `live_s`..`end_s` for the data; all planned, in run-clock seconds.

    `state` is booked, dark, live, released, refused or expired; `dark_at_s`, `live_at_s`, `released_at_s` are what
    happened; `late_s` is by how much it began after its plan.
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
    queued: bool = False  # not reserved for a time: it starts as soon as it is first on both calendars
    state: str = "booked"
    doomed: bool = False  # its request died in the dark: it ends when its switch does
    dark_at_s: float | None = None
    live_at_s: float | None = None
    released_at_s: float | None = None
    late_s: float = 0.0
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
    # the starts and ends of many windows as arrays, for the search; None once a window has moved
    _edges: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None

    def insert(self, window: Window) -> None:
        """Keep `window` in time order."""
        at = bisect_right(self.windows, window.start_s, key=_START)
        self.windows.insert(at, window)
        if self._edges is not None:
            starts, ends = self._edges
            self._edges = (
                np.concatenate((starts[:at], (window.start_s,), starts[at:])),
                np.concatenate((ends[:at], (window.end_s,), ends[at:])),
            )

    def remove(self, window: Window) -> None:
        """Take `window` off; raises ValueError where it is not on."""
        at = self.index(window)
        del self.windows[at]
        if self._edges is not None:
            starts, ends = self._edges
            self._edges = np.concatenate((starts[:at], starts[at + 1 :])), np.concatenate((ends[:at], ends[at + 1 :]))

    def moved(self) -> None:
        """A window's start or end has changed: the search must look again."""
        self._edges = None

    def index(self, window: Window) -> int:
        """Where `window` stands; raises ValueError where it is not on this calendar."""
        if self.windows and self.windows[0] is window:
            return 0
        at = bisect_left(self.windows, window.start_s, key=_START)
        # while windows are being pushed, one may be out of order for a moment
        if at < len(self.windows) and self.windows[at] is window:
            return at
        return self.windows.index(window)

    def before_window(self, window: Window) -> Window | None:
        """The window just before `window`; None for the first one."""
        return self.before(self.index(window))

    def after_window(self, window: Window) -> Window | None:
        """The window just after `window`; None for the last one."""
        return self.at(self.index(window) + 1)

    def before(self, at: int) -> Window | None:
        """The window before position `at`."""
        return self.windows[at - 1] if at else None

    def at(self, at: int) -> Window | None:
        """The window at position `at`; None behind the last one."""
        return self.windows[at] if at < len(self.windows) else None

    def gaps(self, ask: Ask) -> list[int]:
        """Positions before which `ask` might fit by its length alone, in time order; the last is the open end."""
        windows = self.windows
        if len(windows) > FEW_WINDOWS:
            return self._gaps_at_once(ask)
        now_s, enough_s = ask.now_s, ask.data_s - SAME_INSTANT_S
        first = bisect_left(windows, max(ask.live_min_s, now_s) + ask.data_s - SAME_INSTANT_S, key=_START)
        free_s = windows[first - 1].end_s if first else -math.inf
        fitting = []
        for at in range(first, len(windows)):
            window = windows[at]
            if window.start_s - (free_s if free_s > now_s else now_s) >= enough_s:
                fitting.append(at)
            free_s = window.end_s
        fitting.append(len(windows))
        return fitting

    def _gaps_at_once(self, ask: Ask) -> list[int]:
        """`gaps` over whole arrays: a booking behind ten thousand windows must not look at each of them in turn."""
        if self._edges is None:
            self._edges = (
                np.fromiter((window.start_s for window in self.windows), np.float64, len(self.windows)),
                np.fromiter((window.end_s for window in self.windows), np.float64, len(self.windows)),
            )
        starts, ends = self._edges
        first = int(np.searchsorted(starts, max(ask.live_min_s, ask.now_s) + ask.data_s - SAME_INSTANT_S))
        if first == len(starts):
            return [first]
        free_s = np.concatenate(((ends[first - 1] if first else -math.inf,), ends[first:-1]))
        room_s = starts[first:] - np.maximum(free_s, ask.now_s)
        fitting: list[int] = (np.flatnonzero(room_s >= ask.data_s - SAME_INSTANT_S) + first).tolist()
        return [*fitting, len(starts)]


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
    on_prefill, on_decode = prefill.gaps(ask), decode.gaps(ask)
    i = j = 0
    while True:
        gap = _fit(prefill, on_prefill[i], decode, on_decode[j], ask, dark_s=dark_s, reuse=reuse)
        if gap is not None:
            return gap
        # of the two gaps, the one that ends first cannot meet a later one
        upcoming = prefill.at(on_prefill[i]), decode.at(on_decode[j])
        ends_s = [math.inf if window is None else window.start_s for window in upcoming]
        if ends_s[0] <= ends_s[1]:
            i += 1
        else:
            j += 1


def gap_behind(prefill: Calendar, decode: Calendar, ask: Ask, *, dark_s: float, reuse: bool) -> Gap:
    """The gap behind every window of both calendars: first come, first served."""
    gap = _fit(prefill, len(prefill.windows), decode, len(decode.windows), ask, dark_s=dark_s, reuse=reuse)
    assert gap is not None, "behind the last window nothing limits a booking"
    return gap


def _fit(prefill: Calendar, i: int, decode: Calendar, j: int, ask: Ask, *, dark_s: float, reuse: bool) -> Gap | None:
    """The booking before position `i` of one calendar and `j` of the other, if there is room."""
    before, across = prefill.before(i), decode.before(j)
    stands = _left_standing(before, prefill, decode, ask, reuse) and _left_standing(across, decode, prefill, ask, reuse)
    dark = 0.0 if stands else dark_s
    free_s = ask.now_s
    if before is not None and before.end_s > free_s:
        free_s = before.end_s
    if across is not None and across.end_s > free_s:
        free_s = across.end_s
    live_s = max(ask.live_min_s, free_s + dark)
    end_s = live_s + ask.data_s
    pair = (prefill.instance, decode.instance)
    for follower in (prefill.at(i), decode.at(j)):
        if follower is not None and end_s > _deadline(follower, pair, ask, dark_s, reuse) + SAME_INSTANT_S:
            return None
    return Gap(live_s - dark, live_s, end_s, stands)


def _left_standing(before: Window | None, calendar: Calendar, other: Calendar, ask: Ask, reuse: bool) -> bool:
    """Whether the ports of `calendar` point to `other`, for this request, once `before` has ended."""
    if before is None:
        return calendar.peer == other.instance and (reuse or calendar.owner == ask.request_id)
    peer = before.decode if calendar.instance == before.prefill else before.prefill
    return peer == other.instance and (reuse or before.request_id == ask.request_id)


def _deadline(follower: Window, pair: tuple[str, str], ask: Ask, dark_s: float, reuse: bool) -> float:
    """When a booking of `pair` before `follower` must have ended."""
    if follower.state != "booked":
        # it holds its ports already, whatever its plan says: a window live along with its request's first one
        return -math.inf
    if follower.needs_switch:
        return follower.start_s
    undisturbed = follower.joins(*pair) and (reuse or follower.request_id == ask.request_id)
    return follower.start_s if undisturbed else follower.live_s - dark_s
