"""One fabric and one seed with real packets: build, connect, probe, run, drain, collect, tear down.

1. build      namespaces, links and circuit switches; the controller and the agents start while they are made
2. connect    KV connections that are kept are opened, over circuits in rounds of permutations
3. probe      every kind of path carries its rate, or the run ends here; delays are calibrated
4. run        the clock starts; the gateway replays the arrivals until all are accounted for, or the drain is over
5. collect    records, the controller's log, counters; qdiscs are read back (`emulation/run/conclusion.py`)
6. tear down  everything the run made is removed, whatever happened before (`emulation/run/components.py`)

While 2 to 4 go on, every part is watched: a process that has ended, and one that is there but does not answer, end the
run. However it ended, every offered request is accounted for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from emulation.linux.ledger import RunLedger
from emulation.linux.netns import NamespaceError
from emulation.monitor.capture import CaptureError, Captures
from emulation.network.ecmp import EcmpError
from emulation.network.ovs import OpenVSwitchError
from emulation.network.testbed import TestbedError
from emulation.plan.fabric_plan import FabricPlan, rounds
from emulation.probe.link import ProbeError
from emulation.probe.paths import PathProbe
from emulation.run.calibration import calibrate
from emulation.run.components import Parts, PartsFailed
from emulation.run.conclusion import FabricResult, Seen, collect
from emulation.run.controller_process import ControllerError
from emulation.run.fleet import FleetError, Message
from emulation.run.observation import Observation
from outputs.files import make_directory
from process.interrupts import Interrupted, shielded

__all__ = ["FabricResult", "FabricRun", "RunFailed"]

CONNECT_TIMEOUT_S = 10.0
#: From the last word before the clock to its zero: every agent has armed its first timer by then.
COUNTDOWN_S = 0.3


class RunFailed(RuntimeError):
    """A run that could not go on: says at which step, and why."""


#: What ends a run in an orderly way; anything else is a fault of ours and shows its traceback.
STOPPERS = (
    CaptureError,
    PartsFailed,
    FleetError,
    ControllerError,
    TestbedError,
    OpenVSwitchError,
    NamespaceError,
    ProbeError,
    EcmpError,
    OSError,
)


@dataclass
class FabricRun:
    """Runs a plan on this machine.

    `report(message)` says which step begins; `progress` is called twice a second while the clock runs with sent, done,
    failed, transfers in flight, circuits in flight, elapsed and total run-clock seconds. `pcap`: capture the KV packets
    under `keep_logs` and audit them. `observe`: sample the machine, the queues and the rules while the clock runs; the
    verdict knows less without (it is there to measure what observing costs).
    """

    plan: FabricPlan
    ledger: RunLedger
    datapath: str
    report: Callable[[str], None]
    progress: Callable[[int, int, int, int, int, float, float], None]
    keep_logs: Path
    pcap: bool = False
    observe: bool = True

    def run(self, shield: ExitStack | None = None) -> FabricResult:
        """Run it, and say what came out however it ended. From the moment it has, signals wait until `shield` (none:
        this call) is closed: close it when the artifacts are written."""
        with ExitStack() as own:
            return self._run_all(own if shield is None else shield)

    def _run_all(self, shield: ExitStack) -> FabricResult:
        self._timings: dict[str, float] = {}
        self._parts = Parts(self.plan, self.ledger, self.datapath)
        self._seen = Seen()
        failure: str | None = None
        interrupted: Interrupted | None = None
        try:
            try:
                self._step("build", self._parts.start)
                self._step("connect", self._connect)
                self._step("calibrate", self._calibrate)
                self._step("run", self._run)
            except STOPPERS as error:
                shield.enter_context(shielded())  # explaining takes a moment, in which a signal would cost the records
                failure = self._parts.explained(error)
            except Interrupted as error:
                shield.enter_context(shielded())
                failure, interrupted = str(error), error
            else:
                shield.enter_context(shielded())
            result = collect(self.plan, self._parts, self._seen, failure, self.datapath)
            result.interrupted, result.timings_s = interrupted, self._timings
            return result
        finally:
            with shielded():
                began_s = time.monotonic()
                self._parts.end(self.keep_logs)
                self._timings["teardown"] = time.monotonic() - began_s

    # -- 2 and 3: connect and probe ---------------------------------------------------------------------------------

    def _connect(self) -> None:
        parts = self._parts
        self._seen.probe = probe = PathProbe(self.plan, parts.cluster, parts.testbed)
        if self.plan.fabric.kind == "none":
            return
        for pairs in rounds(self.plan.experiment.reachable()):
            if self.plan.fabric.kind == "ocs":
                parts.controller.lay_circuits(pairs)
            if self.plan.keeps_connections:
                self._open(pairs)
            if self.plan.fabric.kind == "ocs":
                probe.pairs(pairs)
        if self.plan.fabric.kind == "eps":
            probe.packet_paths()
        if wrong := probe.wrong():
            raise TestbedError("; ".join(wrong))

    def _open(self, pairs: dict[str, str]) -> None:
        """Have the agents open their kept KV connections for one round."""
        fleet = self._parts.fleet
        for prefill, decode in pairs.items():
            fleet.send(prefill, {"type": "connect", "decode": decode})
        answers = fleet.wait_each("connected", list(pairs), timeout_s=CONNECT_TIMEOUT_S, what="KV connections")
        for answer in answers:
            if not answer["ok"]:
                raise FleetError(f"{answer['agent']} could not connect to {answer['decode']}: {answer['error']}")

    def _calibrate(self) -> None:
        """The last step before the clock: constants are read, and the network is still the one that was built."""
        assert self._seen.probe is not None
        calibration = calibrate(self._parts, self._seen.probe)
        self._seen.calibration = calibration.described(self.plan.scale)
        self._seen.excess_s = calibration.excess_s
        self._parts.changes.sample(time.monotonic())
        if changes := self._parts.changes.changes():
            said = "; ".join(f"{change.where}: {change.what}" for change in changes[:3])
            raise TestbedError(f"the network was changed between its build and the start of the clock: {said}")

    # -- 4: run -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        parts, scale = self._parts, self.plan.scale
        fleet, controller = parts.fleet, parts.controller
        if self.pcap:
            directory = self.keep_logs / "pcap"
            make_directory(directory, exist_ok=True)
            parts.captures = Captures(directory)
            parts.captures.start(parts.testbed, parts.cluster, self.plan.fabric.kind, self.ledger)
        t0_s = time.monotonic() + COUNTDOWN_S
        controller.start_clock(t0_s, scale.real_s(self._seen.excess_s or 0.0))
        fleet.broadcast({"type": "start", "t0_monotonic_s": t0_s})
        self._seen.t0_s = t0_s
        workload = self.plan.experiment.workload
        total_s = workload.warmup_s + workload.window_s
        last_s = max((request.arrival_s for request in self.plan.requests), default=0.0)
        limit_s = scale.wall_s(last_s + self.plan.agents_drain_s) + 10.0
        observation = Observation(parts) if self.observe else None
        try:
            with observation or nullcontext():
                fleet.wait(
                    lambda message: message.get("type") == "bye" and message.get("agent") == "gw",
                    timeout_s=limit_s,
                    what="replay",
                    tick=lambda: self._tick(max(0.0, scale.real_s(time.monotonic() - t0_s)), total_s),
                    tick_s=0.5,
                )
        finally:
            self._seen.errors = list(fleet.errors)
            if observation is not None:
                self._seen.observed = observation.observed()

    def _tick(self, elapsed_s: float, total_s: float) -> None:
        fleet = self._parts.fleet
        self._parts.attend()
        last: Message = fleet.progress.get("gw", {})
        moving = sum(m.get("transfers", 0) for name, m in fleet.progress.items() if name != "gw")
        circuits = sum(m.get("circuits", 0) for name, m in fleet.progress.items() if name != "gw")
        self.progress(
            last.get("sent", 0), last.get("done", 0), last.get("failed", 0), moving, circuits, elapsed_s, total_s
        )

    def _step(self, name: str, work: Callable[[], None]) -> None:
        self.report(name)
        began_s = time.monotonic()
        try:
            work()
        finally:
            self._timings[name] = time.monotonic() - began_s
