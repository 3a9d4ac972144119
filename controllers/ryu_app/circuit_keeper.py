"""Carries out what the reservations decide: starts windows when they are due, reconfigures, grants, guards and logs.

`advance` never waits: each reconfiguration runs in a greenlet of its own, so that any number of circuits can be dark at
once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ryu.lib import hub

from controllers.core.calendar import Window
from controllers.core.switching import Crossbar, PortInUse
from controllers.ryu_app.datapaths import DatapathFault
from controllers.ryu_app.event_log import EventLog
from controllers.ryu_app.grants import GrantStreams
from controllers.ryu_app.metrics import Metrics
from controllers.ryu_app.purge import UnixctlError
from controllers.ryu_app.reconfiguration import Stopwatch, Switches
from controllers.ryu_app.timing import Alarm, RunClock

LOG = logging.getLogger(__name__)

# A due time that has passed but that the core cannot start yet is asked for again after this long.
_RETRY_S = 0.001
_ENDED = ("released", "refused", "expired")


class CircuitCore(Protocol):
    """What the keeper asks of `Reservations`."""

    @property
    def windows(self) -> Mapping[int, Window]:
        """Every window ever booked; ids count from 0."""

    def due(self, now_s: float) -> list[Window]:
        """Windows that start now, dark or live."""

    def next_due_s(self) -> float | None:
        """When `due` next has something."""

    def live(self, window_id: int, now_s: float) -> Window:
        """A circuit is up."""

    def refuse(self, window_id: int, reason: str, now_s: float) -> Window:
        """A circuit could not be set up."""

    def stand(self, pairs: Mapping[str, str]) -> None:
        """Circuits laid by hand."""


class CircuitKeeper:
    """The circuits of one run, from the decision to the rule."""

    def __init__(
        self,
        core: CircuitCore,
        switches: Switches,
        *,
        reconfiguration_s: float,
        grants: GrantStreams,
        log: EventLog,
        metrics: Metrics,
        fail: Callable[[str], None],
    ) -> None:
        """`reconfiguration_s`: tau, real seconds. `fail(reason)` is called once for each thing that makes the run
        invalid."""
        self._core = core
        self._switches = switches
        self._reconfiguration_s = reconfiguration_s
        self._grants = grants
        self._log = log
        self._metrics = metrics
        self._fail = fail
        self._failed: str | None = None
        self._clock: RunClock | None = None
        self._crossbar = Crossbar()
        self._states: dict[int, str] = {}
        self._windows_seen = 0
        self._alarm = Alarm(self._on_alarm, switches.wake)

    # -- before the clock --------------------------------------------------------------------------------------------

    def lay(self, pairs: Mapping[str, str]) -> None:
        """Exactly these circuits stand when this returns; blocks its greenlet. Raises DatapathFault or UnixctlError."""
        self._stand({})
        watch = self._switches.replace(pairs)
        self._stand(pairs)
        self._log.write("setup", pairs=dict(pairs), steps_s=dict(watch.steps_s), total_s=watch.total_s)

    def clear(self, dpid: int) -> None:
        """Empty the table of a plane that has connected; blocks its greenlet. Raises DatapathFault or UnixctlError."""
        if self._clock is None:
            self._stand({})
        self._switches.clear(dpid)

    def start(self, clock: RunClock) -> None:
        """Windows are kept from now on."""
        self._clock = clock
        self.spawn(self._alarm.run)

    def _stand(self, pairs: Mapping[str, str]) -> None:
        self._crossbar.replace(pairs)
        self._core.stand(pairs)
        self._metrics.circuits.set(len(pairs))

    # -- the state of things -----------------------------------------------------------------------------------------

    def circuits(self) -> dict[str, Any]:
        """Circuits that stand, and instances whose ports are dark, with the window they wait for."""
        return {"standing": self._crossbar.standing(), "dark": self._crossbar.dark()}

    def open_windows(self) -> Iterator[Window]:
        """Every window that is booked, dark or live."""
        return (self._core.windows[window_id] for window_id in self._states)

    # -- while the clock runs ----------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Follow every change of the core, start what is due, and set the alarm for what is due next. Call it after
        each event."""
        assert self._clock is not None
        while True:
            now_s = self._clock.now_s()
            self._follow(now_s)
            dark = [window for window in self._core.due(now_s) if window.state == "dark"]
            self._follow(now_s)
            if not dark:
                break
            if self._failed is None:
                self.spawn(self._reconfigure, dark)
                break
            self._refuse(dark, f"the fabric has failed: {self._failed}")
        next_s = self._core.next_due_s()
        if next_s is None:
            self._alarm.set(None)
        else:
            not_before_s = time.monotonic() + _RETRY_S if next_s <= now_s else -math.inf
            self._alarm.set(max(self._clock.monotonic_s(next_s), not_before_s))

    def fail(self, reason: str) -> None:
        """No circuit can be switched any more; windows that need one are refused from now on."""
        self._failed = self._failed or reason
        self._fail(reason)

    def spawn(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run in a greenlet of its own; an exception there is a fault of the run, never lost."""

        def guarded() -> None:
            try:
                function(*arguments)
            except hub.TaskExit:
                raise
            except BaseException as error:  # a user's commit rule, which is asked what is due, may exit
                LOG.exception("%s failed", function.__name__)
                self.fail(f"controller: {function.__name__}: {type(error).__name__}: {error}")

        hub.spawn(guarded)

    def _on_alarm(self) -> None:
        self.advance()

    def _reconfigure(self, windows: Sequence[Window]) -> None:
        assert self._clock is not None
        pairs = [(window.prefill, window.decode) for window in windows]
        try:
            watch = self._switches.reconfigure(pairs, self._reconfiguration_s * self._clock.time_dilation)
        except (DatapathFault, UnixctlError) as error:
            self.fail(str(error))
            self._refuse(windows, str(error))
        else:
            now_s = self._clock.now_s()
            for window in windows:
                self._core.live(window.id, now_s)
            self._follow(now_s)
            self._log_switch(windows, watch, now_s)
        self.advance()

    def _refuse(self, windows: Sequence[Window], reason: str) -> None:
        assert self._clock is not None
        for window in windows:
            self._crossbar.abandon(window.id)
            self._core.refuse(window.id, reason, self._clock.now_s())

    def _follow(self, now_s: float) -> None:
        """Log, guard and grant what changed in the core since last time; ports are given back before others take
        them."""
        windows = self._core.windows
        for window_id in range(self._windows_seen, len(windows)):
            self._states[window_id] = ""
        self._windows_seen = len(windows)
        changed = [windows[window_id] for window_id, state in self._states.items() if windows[window_id].state != state]
        for window in sorted(changed, key=lambda window: window.state not in _ENDED):
            before, self._states[window.id] = self._states[window.id], window.state
            late = {"late_s": window.late_s} if before == "booked" and window.state in ("dark", "live") else {}
            self._log.write("window", t_s=now_s, **record(window), **late)
            self._metrics.window_states.labels(window.state).inc()
            try:
                self._guard(window, before)
            except PortInUse as error:
                self.fail(str(error))
            if window.state in _ENDED:
                del self._states[window.id]
            elif window.state == "live":
                self._grants.push(window.prefill, grant(window))
        if changed:
            self._metrics.circuits.set(len(self._crossbar.standing()))

    def _guard(self, window: Window, before: str) -> None:
        pair = (window.prefill, window.decode)
        if window.state == "dark":
            self._crossbar.begin(window.id, pair)
        # a window whose request died in the dark ends with its switch: the circuit stands, unused
        if before == "dark" and self._crossbar.is_dark_for(window.id, pair):
            self._crossbar.finish(window.id, pair)
        if window.state == "live":
            self._crossbar.use(window.id, pair)
        elif window.state in _ENDED:
            self._crossbar.release(window.id, pair)

    def _log_switch(self, windows: Sequence[Window], watch: Stopwatch, now_s: float) -> None:
        assert self._clock is not None
        dilation = self._clock.time_dilation
        steps_s = {step: wall_s / dilation for step, wall_s in watch.steps_s.items()}
        for window in windows:
            self._log.write("switch", window=window.id, t_s=now_s, steps_s=steps_s, dark_s=watch.total_s / dilation)
        for step, wall_s in watch.steps_s.items():
            self._metrics.step_s.labels(step).observe(wall_s)


def record(window: Window) -> dict[str, Any]:
    """A window as the log and the northbound API show it."""
    return {
        "window": window.id,
        "request": window.request_id,
        "part": window.part,
        "prefill": window.prefill,
        "decode": window.decode,
        "state": window.state,
        "start_s": window.start_s,
        "live_s": window.live_s,
        "end_s": window.end_s,
        "needs_switch": window.needs_switch,
        "reason": window.reason,
    }


def grant(window: Window) -> dict[str, Any]:
    """A live window as its prefill instance is told."""
    return {
        "request": window.request_id,
        "window": window.id,
        "part": window.part,
        "decode": window.decode,
        "live_s": window.live_at_s,
    }
