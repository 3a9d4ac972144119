"""One fabric and one seed with real packets: build, connect, probe, run, drain, collect, tear down.

1. build      namespaces, links and circuit switches; the controller and the agents start while they are made
2. connect    KV connections that are kept are opened, over circuits in rounds of permutations
3. probe      every kind of path carries its rate, or the run ends here
4. run        the clock starts; the gateway replays the arrivals until all are accounted for, or the drain is over
5. collect    records, the controller's log, counters; qdiscs are read back
6. tear down  everything the run made is removed, whatever happened before

While 2 to 4 go on, every part is watched: a process that has ended, and one that is there but does not answer, end the
run. However it ended, every offered request is accounted for.
"""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from emulation.capture import CaptureError, Captures
from emulation.controller_process import NORTHBOUND_PORT, ControllerError, ControllerProcess
from emulation.ecmp import EcmpError
from emulation.evidence import gather
from emulation.fabric_plan import FabricPlan, rounds
from emulation.fidelity import Evidence, judge
from emulation.fleet import Fleet, FleetError, Message
from emulation.interrupts import Interrupted, shielded
from emulation.ledger import RunLedger
from emulation.machine import MachineUse, MachineWatch
from emulation.netns import NamespaceError
from emulation.ovs import OpenVSwitchError
from emulation.packet_audit import audit_run, described
from emulation.paths import PathProbe, ecmp_ports
from emulation.probe import ProbeError
from emulation.testbed import Testbed, TestbedError
from emulation.watch import Watch, ask_unixctl
from results.artifacts import write_bytes
from results.merge import Frames, merge
from results.schema import LINKS

READY_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 10.0
#: From the last word before the clock to its zero: every agent has armed its first timer by then.
COUNTDOWN_S = 0.3
#: Steps of a switch that are not tau itself.
EXCESS_STEPS = ("remove", "barrier", "purge", "install", "barrier2", "purge2")


class RunFailed(RuntimeError):
    """A run that could not go on: says at which step, and why."""


class PartsFailed(RuntimeError):
    """A part of the run has ended, does not answer, or reports a fault: says which."""


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
NEVER_SENT = "never sent: the run ended before its clock started"


@dataclass
class FabricResult:
    """What came out; `failure` tells why a run ended early (its tables then hold what was reached), `interrupted` that
    a signal did it."""

    frames: Frames
    links: pd.DataFrame
    fidelity: dict[str, Any]
    failure: str | None
    interrupted: Interrupted | None = None
    timings_s: dict[str, float] = field(default_factory=dict)


@dataclass
class FabricRun:
    """Runs a plan on this machine.

    `report(message)` says which step begins; `progress` is called twice a second while the clock runs with sent, done,
    failed, transfers in flight, circuits in flight, elapsed and total run-clock seconds. `pcap`: capture the KV packets
    under `keep_logs` and audit them.
    """

    plan: FabricPlan
    ledger: RunLedger
    datapath: str
    report: Callable[[str], None]
    progress: Callable[[int, int, int, int, int, float, float], None]
    keep_logs: Path
    pcap: bool = False

    def run(self, shield: ExitStack | None = None) -> FabricResult:
        """Run it, and say what came out however it ended. From the moment it has, signals wait until `shield` (none:
        this call) is closed: close it when the artifacts are written."""
        with ExitStack() as own:
            return self._run_all(own if shield is None else shield)

    def _run_all(self, shield: ExitStack) -> FabricResult:
        self._scratch = self.ledger.subdirectory(f"{self.plan.fabric.name}-{self.plan.seed}"[:40])
        self._timings: dict[str, float] = {}
        self._cluster = self.plan.cluster()
        self._testbed = Testbed(self._cluster, self.ledger, self.datapath)
        self._fleet: Fleet | None = None
        self._controller: ControllerProcess | None = None
        self._watch: Watch | None = None
        self._probe: PathProbe | None = None
        self._captures: Captures | None = None
        self._built = self._started = False
        failure: str | None = None
        interrupted: Interrupted | None = None
        try:
            try:
                self._step("build", self._build)
                self._step("connect", self._connect)
                self._step("run", self._run)
            except STOPPERS as error:
                failure = self._explained(error)
            except Interrupted as error:
                failure, interrupted = str(error), error
            shield.enter_context(shielded())
            result = self._collect(failure)
            result.interrupted = interrupted
            return result
        finally:
            with shielded():
                self._tear_down()

    # -- 1: build -------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._testbed.build(controller_listens=False)
        self._start_processes()
        assert self._controller is not None
        assert self._fleet is not None
        self._controller.wait_listening()
        self._testbed.connect_controller()
        self._controller.wait_ready()
        self._fleet.wait_each("ready", self._fleet.names, timeout_s=READY_TIMEOUT_S, what="agents start")
        self._built = True
        parts: dict[str, Callable[[], object]] = {"the controller": self._controller.ping}
        if self._testbed.ovs is not None:
            parts |= {
                name: functools.partial(ask_unixctl, socket) for name, socket in self._testbed.ovs.control.items()
            }
        self._watch = Watch(parts)

    def _start_processes(self) -> None:
        """The controller and the agents; the slow starts overlap."""
        testbed, cluster = self._testbed, self._cluster
        log = self._scratch / "controller.jsonl"
        unixctl = testbed.unixctl if self.plan.fabric.kind == "ocs" else None
        self._controller = ControllerProcess(
            self.plan.controller(cluster, unixctl=unixctl, log=log),
            namespace=testbed.namespace("ctl"),
            host=cluster.controller_ip,
            directory=self._scratch,
        )
        openflow_host = testbed.openflow_address if self.plan.fabric.kind == "ocs" else "127.0.0.1"
        self._controller.start(self.ledger, openflow_host)
        requests_file = self._scratch / "requests.jsonl"
        requests_file.write_text("".join(json.dumps(asdict(request)) + "\n" for request in self.plan.requests))
        names = [instance.name for instance in cluster.instances]
        self._fleet = Fleet(
            self.plan.agents(
                cluster,
                namespaces={name: testbed.namespace(name) for name in [*names, "gw"]},
                controller=(cluster.controller_ip, NORTHBOUND_PORT),
                ecmp_ports=ecmp_ports(self.plan, cluster, testbed),
                requests_file=requests_file,
            ),
            log=self._scratch / "agents.out",
        )
        self._fleet.start(self.ledger)

    # -- 2 and 3: connect and probe ---------------------------------------------------------------------------------

    def _connect(self) -> None:
        assert self._controller is not None
        assert self._fleet is not None
        self._probe = PathProbe(self.plan, self._cluster, self._testbed)
        if self.plan.fabric.kind == "none":
            return
        for pairs in rounds(self.plan.reachable(self._cluster)):
            if self.plan.fabric.kind == "ocs":
                self._controller.lay_circuits(pairs)
            if self.plan.keeps_connections:
                self._open(pairs)
            if self.plan.fabric.kind == "ocs":
                self._probe.pairs(pairs)
        if self.plan.fabric.kind == "eps":
            self._probe.packet_paths()
        if wrong := self._probe.wrong():
            raise TestbedError("; ".join(wrong))

    def _open(self, pairs: dict[str, str]) -> None:
        """Have the agents open their kept KV connections for one round."""
        assert self._fleet is not None
        for prefill, decode in pairs.items():
            self._fleet.send(prefill, {"type": "connect", "decode": decode})
        answers = self._fleet.wait_each("connected", list(pairs), timeout_s=CONNECT_TIMEOUT_S, what="KV connections")
        for answer in answers:
            if not answer["ok"]:
                raise FleetError(f"{answer['agent']} could not connect to {answer['decode']}: {answer['error']}")

    def _calibrated_excess_s(self) -> float:
        """Wall seconds that a switch takes beyond tau: the median over the circuits laid while connecting."""
        assert self._controller is not None
        steps = [event["steps_s"] for event in self._controller.events() if event.get("event") == "setup"]
        if not steps:
            return 0.0
        return statistics.median(sum(step.get(name, 0.0) for name in EXCESS_STEPS) for step in steps)

    # -- 4: run -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._controller is not None
        assert self._fleet is not None
        fleet, scale = self._fleet, self.plan.scale
        self._excess_s = self._calibrated_excess_s()
        if self.pcap:
            directory = self.keep_logs / "pcap"
            directory.mkdir(exist_ok=True)
            self._captures = Captures(directory)
            self._captures.start(self._testbed, self._cluster, self.plan.fabric.kind, self.ledger)
        self._t0_s = t0_s = time.monotonic() + COUNTDOWN_S
        self._controller.start_clock(t0_s, scale.real_s(self._excess_s))
        fleet.broadcast({"type": "start", "t0_monotonic_s": t0_s})
        self._started = True
        workload = self.plan.experiment.workload
        total_s = workload.warmup_s + workload.window_s
        last_s = max((request.arrival_s for request in self.plan.requests), default=0.0)
        limit_s = scale.wall_s(last_s + self.plan.agents_drain_s) + 10.0
        with MachineWatch(self._watched()) as watch:
            try:
                fleet.wait(
                    lambda message: message.get("type") == "bye" and message.get("agent") == "gw",
                    timeout_s=limit_s,
                    what="replay",
                    tick=lambda: self._tick(max(0.0, scale.real_s(time.monotonic() - t0_s)), total_s),
                    tick_s=0.5,
                )
            finally:
                self._errors = list(fleet.errors)  # later ones only tell that the others have gone
        self._machine: MachineUse | None = watch.use()

    def _watched(self) -> dict[str, int]:
        pids = {} if self._testbed.ovs is None else dict(self._testbed.ovs.pids())
        assert self._controller is not None
        return pids | ({"controller": self._controller.pid} if self._controller.pid else {})

    def _tick(self, elapsed_s: float, total_s: float) -> None:
        assert self._controller is not None
        assert self._fleet is not None
        if troubles := self._troubles():
            raise PartsFailed("; ".join(troubles))
        last: Message = self._fleet.progress.get("gw", {})
        moving = sum(m.get("transfers", 0) for name, m in self._fleet.progress.items() if name != "gw")
        circuits = sum(m.get("circuits", 0) for name, m in self._fleet.progress.items() if name != "gw")
        self.progress(
            last.get("sent", 0), last.get("done", 0), last.get("failed", 0), moving, circuits, elapsed_s, total_s
        )

    def _troubles(self) -> list[str]:
        """What is wrong with the parts of this run, a sentence each: ended, silent, or at fault by its own word."""
        found = []
        if self._controller is not None and not self._controller.alive():
            found.append("the controller died")
        elif self._controller is not None and self._controller.fault:
            found.append(f"the controller reported: {self._controller.fault}")
        if self._testbed.ovs is not None:
            try:
                self._testbed.ovs.check_alive()
            except OpenVSwitchError as error:
                found.append(str(error))
        if self._watch is not None and not found:
            found += self._watch.troubles()
        if self._fleet is not None:
            found += self._fleet.silent()
        return found

    def _explained(self, error: Exception) -> str:
        """An error with what is known to be wrong: a call that failed seldom says that a frozen part is why."""
        text = str(error) or type(error).__name__
        return "; ".join([text, *(trouble for trouble in self._troubles() if trouble not in text)])

    # -- 5 and 6: collect and tear down -------------------------------------------------------------------------------

    def _collect(self, failure: str | None) -> FabricResult:
        if self._watch is not None:
            self._watch.stop()
        rows: list[dict[str, Any]] = []
        faults = [] if failure is None else [failure]
        errors = getattr(self, "_errors", None)
        if self._fleet is not None:
            errors = list(self._fleet.errors) if errors is None else errors
            self._fleet.stop()
        lost = self._captures.stop() if self._captures is not None else {}
        if self._built:
            try:
                rows = self._testbed.counters()
                self._testbed.verify()
            except Exception as error:  # whatever broke the network must not cost the records
                faults.append(f"after the run: {error}")
        if self._controller is not None:
            self._controller.stop()
        events = [] if self._controller is None else list(self._controller.events())
        records = self._fleet.records if self._fleet is not None and self._started else self._never_sent()
        frames = merge(
            records,
            events,
            [asdict(request) for request in self.plan.requests],
            kind=self.plan.fabric.kind,
            rate_scale=self.plan.scale.rate_scale,
            ranks=None if self.plan.fabric.kind == "none" else self.plan.experiment.cluster.gpus_per_instance,
        )
        audit: dict[str, Any] = {}
        if self._captures is not None and self._started and self._captures.files:
            found = audit_run(self.plan, self._cluster, self._captures, frames, events, t0_monotonic_s=self._t0_s)
            audit = {"audit": described(found, lost)}
            faults += [f"packet audit: {violation}" for violation in found.violations[:3]]
            if len(found.violations) > 3:
                faults.append(f"packet audit: and {len(found.violations) - 3} more")
        evidence: Evidence = gather(
            self.plan,
            datapath=self.datapath if self.plan.fabric.kind == "ocs" else "none",
            frames=frames,
            records=records,
            errors=errors or (),
            controller_events=events,
            links=rows,
            probe=self._probe,
            excess_s=getattr(self, "_excess_s", None),
            machine=getattr(self, "_machine", None),
            faults=faults,
        )
        fidelity = judge(evidence) | audit
        return FabricResult(frames, LINKS.frame(rows), fidelity, failure, timings_s=self._timings)

    def _never_sent(self) -> list[dict[str, Any]]:
        """What the gateway would have said of each request, had its clock started."""
        return [
            {"of": "request", "id": request.id, "arrival_s": request.arrival_s, "status": "unfinished"}
            | {"reason": NEVER_SENT, "sent_s": None, "first_token_s": None, "prefill": None}
            for request in self.plan.requests
        ]

    def _tear_down(self) -> None:
        """End and remove everything; what one step raises costs none of the others."""
        began_s = time.monotonic()
        with ExitStack() as steps:  # last in, first out
            steps.callback(self.ledger.remove)
            steps.callback(self._keep_logs)
            steps.callback(self._testbed.close)
            if self._captures is not None:
                steps.callback(self._captures.stop)
            if self._controller is not None:
                steps.callback(self._controller.stop)
            if self._fleet is not None:
                steps.callback(self._fleet.kill)
            if self._watch is not None:
                steps.callback(self._watch.stop)
        self._timings["teardown"] = time.monotonic() - began_s

    def _keep_logs(self) -> None:
        """The controller's log is an artifact; what processes printed is kept where they printed anything."""
        for name in ("controller.jsonl", "controller.out", "agents.out"):
            source = self._scratch / name
            if source.is_file() and source.stat().st_size:
                write_bytes(self.keep_logs / name, source.read_bytes())

    def _step(self, name: str, work: Callable[[], None]) -> None:
        self.report(name)
        began_s = time.monotonic()
        try:
            work()
        finally:
            self._timings[name] = time.monotonic() - began_s
