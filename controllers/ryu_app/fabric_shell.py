"""The thin shell around the core that decides: the run's phases, the events, and whether all is well.

Nothing here waits but `set_circuits`: an event is answered from the core's answer, circuits follow in greenlets of
their own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from controllers.config import ControllerConfig
from controllers.core.demand import Demand, EventError, FabricController, Placement
from controllers.core.reservations import Reservations
from controllers.ryu_app.circuit_keeper import CircuitKeeper, grant, record
from controllers.ryu_app.datapaths import DatapathFault
from controllers.ryu_app.deadline import decided
from controllers.ryu_app.event_log import EventLog
from controllers.ryu_app.grants import GrantListener, GrantStreams
from controllers.ryu_app.metrics import Metrics
from controllers.ryu_app.purge import UnixctlError
from controllers.ryu_app.reconfiguration import Switches
from controllers.ryu_app.timing import RunClock
from inputs.plugin_deadline import LIMIT_S
from inputs.plugin_fault import PluginFault

LOG = logging.getLogger(__name__)

# How far an event's own time may be from ours, wall seconds. A late event is served (the verdict judges lateness); one
# off by more than this comes from another clock.
PAST_TOLERANCE_S = 10.0
FUTURE_TOLERANCE_S = 0.1
# How far ahead of now a prefill may be predicted to end: longer is no prediction but a wrong unit.
LONGEST_PREFILL_S = 86_400.0
# How far ahead run-clock zero may lie.
_LONGEST_COUNTDOWN_S = 3600.0

Answer = TypeVar("Answer")


class Conflict(EventError):
    """A call that does not fit the run's phase."""

    status = 409


class Faulted(EventError):
    """A plug-in has failed: nothing is decided any more."""

    status = 503


class FabricShell:
    """One fabric's controller, before and while the run clock runs."""

    def __init__(
        self,
        config: ControllerConfig,
        core: FabricController,
        switches: Switches | None,
        log: EventLog,
        metrics: Metrics,
    ) -> None:
        """`core` is a Reservations where there are `switches`; on a packet fabric there are none."""
        self.config = config
        self.metrics = metrics
        self.fault: str | None = None
        self._plugin_fault: PluginFault | None = None
        self.clock: RunClock | None = None
        self.grants = GrantStreams(self.now_s, deserted=self._sender_lost)
        self._core = core
        self._log = log
        self._cleared: set[int] = set()
        self._laying = False
        self._keeper: CircuitKeeper | None = None
        if switches is not None:
            assert isinstance(core, Reservations)
            assert config.fabric.reconfiguration_s is not None
            self._keeper = CircuitKeeper(
                core,
                switches,
                reconfiguration_s=config.fabric.reconfiguration_s,
                grants=self.grants,
                log=log,
                metrics=metrics,
                fail=self.fail,
            )

    # -- the state of things -----------------------------------------------------------------------------------------

    def now_s(self) -> float | None:
        """Run-clock seconds; None before the clock starts."""
        return self.clock.now_s() if self.clock else None

    @property
    def ready(self) -> bool:
        """Every plane is connected and cleared, and nothing has gone wrong."""
        return self._trouble is None and len(self._cleared) == len(self.config.planes)

    def health(self) -> dict[str, Any]:
        """`ready`, the number of planes that are connected and cleared, and the first fault."""
        return {"ready": self.ready, "datapaths": len(self._cleared), "fault": self._trouble}

    @property
    def _trouble(self) -> str | None:
        return self.fault or self._log.trouble

    def circuits(self) -> dict[str, Any]:
        """Circuits that stand, and instances whose ports are dark, with the window they wait for."""
        return self._keeper.circuits() if self._keeper else {"standing": {}, "dark": {}}

    def reservations(self) -> list[dict[str, Any]]:
        """Every window that is booked, dark or live."""
        return [record(window) for window in self._keeper.open_windows()] if self._keeper else []

    def listen(self, instance: str) -> GrantListener:
        """The grant stream of a prefill instance; it begins with what is live already. Close it when the listener has
        gone: with the last one, what is reserved for the instance is free again."""
        windows = self._keeper.open_windows() if self._keeper else ()
        return self.grants.listen(instance, [grant(w) for w in windows if w.prefill == instance and w.state == "live"])

    def fail(self, reason: str) -> None:
        """Something makes this run invalid; the first reason stays."""
        self.metrics.faults.inc()
        self._log.write("fault", t_s=self.now_s(), reason=reason)
        self.fault = self.fault or reason

    # -- before the clock --------------------------------------------------------------------------------------------

    def set_circuits(self, pairs: Mapping[str, str]) -> None:
        """Exactly these circuits stand when this returns. Raises EventError, Conflict once the clock runs."""
        reachable = self.config.decodes_of()
        for prefill, decode in pairs.items():
            if decode not in reachable.get(prefill, ()):
                known = ", ".join(reachable.get(prefill, ())) or "nothing: it is no prefill instance"
                raise EventError(f"pairs: {prefill!r} cannot reach {decode!r}; it reaches {known}")
        if len(set(pairs.values())) != len(pairs):
            raise EventError(f"pairs: {dict(pairs)} names a decode instance twice; a port is in at most one circuit")
        if self._keeper is None:
            raise Conflict(f"a fabric of kind {self.config.fabric.kind!r} has no circuits")
        self._require_setup_phase("circuits can be laid by hand")
        self._laying = True
        try:
            self._keeper.lay(pairs)
        except (DatapathFault, UnixctlError) as error:
            self._keeper.fail(f"circuits before the clock: {error}")
            raise Conflict(f"circuits not laid: {error}") from error
        finally:
            self._laying = False

    def start_clock(self, t0_monotonic_s: float, excess_s: float | None) -> None:
        """Run-clock zero is (or will be) at this CLOCK_MONOTONIC time; raises EventError or Conflict."""
        self._require_setup_phase("the clock can be started")
        if not -PAST_TOLERANCE_S <= t0_monotonic_s - time.monotonic() <= _LONGEST_COUNTDOWN_S:
            raise EventError(
                f"t0_monotonic_s is {t0_monotonic_s}; expected a CLOCK_MONOTONIC time near {time.monotonic():.3f}"
            )
        excess_s = self.config.excess_s if excess_s is None else excess_s
        self.clock = RunClock(t0_monotonic_s, self.config.time_dilation)
        if self._keeper is not None:
            assert isinstance(self._core, Reservations)
            assert self.config.fabric.reconfiguration_s is not None
            self._core.calibrate(self.config.fabric.reconfiguration_s, excess_s)
            self._keeper.start(self.clock)
        self._log.write("clock", t0_monotonic_s=t0_monotonic_s, excess_s=excess_s)

    def plane_connected(self, dpid: int) -> None:
        """A plane connected (again): its table is cleared in a greenlet of its own, then it counts as ready."""
        assert self._keeper is not None
        self._cleared.discard(dpid)
        if self.clock is not None:  # its connection broke unseen; clearing it now would tear circuits that are in use
            self._keeper.fail(f"datapath {dpid}: connected anew while the clock ran")
            return
        self._keeper.spawn(self._clear, dpid)

    def plane_lost(self, dpid: int, bridge: str) -> None:
        """A plane's connection ended. Once the clock runs that is a fault; before, the plane may come back."""
        assert self._keeper is not None
        self._cleared.discard(dpid)
        self.metrics.datapaths.set(len(self._cleared))
        if self.clock is not None:
            self._keeper.fail(f"{bridge}: connection lost")

    def _clear(self, dpid: int) -> None:
        assert self._keeper is not None
        try:
            self._keeper.clear(dpid)
        except (DatapathFault, UnixctlError) as error:
            # before the clock a lost connection may come back; whatever else went wrong will not mend itself
            if self.clock is not None or isinstance(error, UnixctlError):
                self._keeper.fail(f"clearing the table of datapath {dpid}: {error}")
            return
        self._cleared.add(dpid)
        self.metrics.datapaths.set(len(self._cleared))

    def _require_setup_phase(self, what: str) -> None:
        if self.clock is not None:
            raise Conflict(f"{what} only before the clock runs")
        if self._laying:
            raise Conflict(f"{what} after the circuits asked for before are live")
        if not self.ready:
            raise Conflict(
                f"{what} when every plane is ready; {len(self._cleared)} of {len(self.config.planes)} are"
                f" (fault: {self.fault})"
            )

    # -- events ------------------------------------------------------------------------------------------------------

    def admitted(self, demand: Demand, at_s: float) -> Placement | None:
        """See `FabricController.admitted`; like every event, raises EventError."""
        return self._event(at_s, lambda now_s: self._core.admitted(demand, now_s))

    def prefill_started(self, request_id: str, predicted_end_s: float, at_s: float) -> Placement | None:
        """See `FabricController.prefill_started`."""
        _check_prediction(predicted_end_s, at_s)
        return self._event(at_s, lambda now_s: self._core.prefill_started(request_id, predicted_end_s, now_s))

    def last_chunk_started(self, request_id: str, predicted_end_s: float, at_s: float) -> Placement | None:
        """See `FabricController.last_chunk_started`."""
        _check_prediction(predicted_end_s, at_s)
        return self._event(at_s, lambda now_s: self._core.last_chunk_started(request_id, predicted_end_s, now_s))

    def transfer_done(self, request_id: str, part: str, at_s: float, failed: bool) -> None:
        """See `FabricController.transfer_done`; a failed transfer ends its request."""
        if failed:
            self._event(at_s, lambda now_s: self._core.expire(request_id, f"transfer of {part} failed", now_s))
        else:
            self._event(at_s, lambda now_s: self._core.transfer_done(request_id, part, now_s))

    def _sender_lost(self, instance: str) -> None:
        """Nobody listens for this prefill instance any more: it is dead, or (its stream alone being lost) has given
        up whatever it had asked for. Nothing that is reserved for it will be used."""
        if self.clock is None or self._keeper is None:
            return
        core, now_s = self._core, self.clock.now_s()
        assert isinstance(core, Reservations)
        reason = f"{instance} is gone: its grant stream has ended"
        # at once: an instance that listens again may ask anew, and what it asks for then is none of this
        try:
            lost = self._checked(lambda at_s: core.sender_lost(instance, reason, at_s), now_s)
        except Exception as error:
            LOG.exception("freeing what was reserved for %s", instance)
            self.fail(f"controller: {reason}: {type(error).__name__}: {error}")
            return
        if lost:
            self._log.write("sender-lost", t_s=now_s, prefill=instance, requests=lost)
            self._keeper.advance()

    def _event(self, at_s: float, decide: Callable[[float], Answer]) -> Answer:
        if self.clock is None:
            raise Conflict("the run clock has not started: POST /v1/clock comes first")
        now_s = self.clock.now_s()
        late_s = (now_s - at_s) * self.clock.time_dilation
        if not -FUTURE_TOLERANCE_S <= late_s <= PAST_TOLERANCE_S:
            raise EventError(f"at_s is {at_s} and the run clock at {now_s:.6f}; is the sender on another clock?")
        self.metrics.transit_s.observe(max(0.0, late_s))
        try:
            return self._checked(decide, now_s)
        finally:
            if self._keeper is not None:
                self._keeper.advance()

    def _checked(self, decide: Callable[[float], Answer], now_s: float) -> Answer:
        """A decision; raises PluginFault where a plug-in fails, takes too long or names no decode instance, and Faulted
        once one has."""
        # asked again, a plug-in that never returns would keep the controller from telling anybody
        if self._plugin_fault is not None:
            raise Faulted(f"nothing is decided any more: {self._plugin_fault}")
        fabric = self.config.fabric
        try:
            return decided(decide, now_s, fabric.commit, fabric.decode_choice, self.config.decodes, limit_s=LIMIT_S)
        except PluginFault as error:
            self._plugin_fault = error
            raise


def _check_prediction(predicted_end_s: float, at_s: float) -> None:
    if not at_s - PAST_TOLERANCE_S <= predicted_end_s <= at_s + LONGEST_PREFILL_S:
        raise EventError(
            f"predicted_end_s is {predicted_end_s} at {at_s}; a prefill that has started ends between "
            f"{PAST_TOLERANCE_S:g} s before that (it runs over) and {LONGEST_PREFILL_S:g} s after"
        )
