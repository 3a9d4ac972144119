"""The parts of one run that have a lifetime: network, switches, controller, agents. Started together, watched while
they work, ended together.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from emulation.linux.ledger import RunLedger
from emulation.linux.liveness import LivenessWatch, ask_unixctl
from emulation.monitor.capture import Captures
from emulation.monitor.changes import ChangeWatch
from emulation.network.ovs import OpenVSwitchError
from emulation.network.testbed import Testbed
from emulation.plan.fabric_plan import FabricPlan
from emulation.probe.paths import ecmp_ports
from emulation.run.controller_process import NORTHBOUND_PORT, ControllerProcess
from emulation.run.fleet import Fleet
from outputs.terminal import printable_lines
from process.rights import unprivileged
from results.records.artifacts import write_bytes
from topologies.cluster import Cluster

READY_TIMEOUT_S = 20.0


class PartsFailed(RuntimeError):
    """A part of the run has ended, does not answer, or reports a fault: says which."""


def testbed_of(plan: FabricPlan, cluster: Cluster, ledger: RunLedger, datapath: str) -> Testbed:
    """The network of a plan, not yet built: what a run uses, and whoever foretells one. datapath: "netdev" or "system".
    Raises ShapingError on a rate or delay that cannot be made."""
    daemons = plan.switch_daemons if datapath == "netdev" else 1
    return Testbed(cluster, ledger, datapath, switch_daemons=daemons, link_delay_s=plan.link_delay_s)


class Parts:
    """Everything that a run of `plan` starts. Make it, `start` it, and `end` it whatever happened in between."""

    def __init__(self, plan: FabricPlan, ledger: RunLedger, datapath: str) -> None:
        """datapath: of the circuit switches, "netdev" or "system". Raises ValueError where the topology cannot be
        wired."""
        self.plan, self.ledger = plan, ledger
        self.scratch = ledger.subdirectory(f"{plan.fabric.name}-{plan.seed}"[:40])
        self.cluster = plan.cluster()
        self.testbed = testbed_of(plan, self.cluster, ledger, datapath)
        self.captures: Captures | None = None
        self.built = False
        self._controller: ControllerProcess | None = None
        self._fleet: Fleet | None = None
        self._watch: LivenessWatch | None = None
        self._changes: ChangeWatch | None = None

    @property
    def controller(self) -> ControllerProcess:
        """The controller's process; only once it was started."""
        assert self._controller is not None
        return self._controller

    @property
    def has_agents(self) -> bool:
        """Whether the agents were started."""
        return self._fleet is not None

    @property
    def fleet(self) -> Fleet:
        """The agents; only once they were started."""
        assert self._fleet is not None
        return self._fleet

    @property
    def changes(self) -> ChangeWatch:
        """Sees what is changed in the network from its build on; only once everything was started."""
        assert self._changes is not None
        return self._changes

    # -- start ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Build the network and start everybody; raises what the part that failed raises."""
        self.testbed.build(controller_listens=False)
        asked: dict[str, Callable[[], object]] = {}
        if self.testbed.ovs is not None:
            asked = {name: functools.partial(ask_unixctl, path) for name, path in self.testbed.ovs.control.items()}
        self._watch = LivenessWatch(asked)
        self._start_processes()
        self.controller.attend = self.attend
        self.controller.wait_listening()
        self.testbed.connect_controller()
        self.controller.wait_ready()
        self.fleet.wait_ready(timeout_s=READY_TIMEOUT_S, attend=self.attend)
        self.built = True
        self._watch.add("the controller", self.controller.ping)
        self._changes = ChangeWatch(self.testbed.nodes())

    def _start_processes(self) -> None:
        """The controller and the agents; the slow starts overlap."""
        testbed, cluster, circuits = self.testbed, self.cluster, self.plan.fabric.kind == "ocs"
        identity = unprivileged()
        run_as = {"run_as": None if identity is None else asdict(identity)}
        log = self.scratch / "controller.jsonl"
        self._controller = ControllerProcess(
            self.plan.controller(cluster, unixctls=testbed.unixctls, log=log) | run_as,
            namespace=testbed.namespace("ctl"),
            host=cluster.controller_ip,
            directory=self.scratch,
        )
        self._controller.start(self.ledger, testbed.openflow_address if circuits else "127.0.0.1")
        requests_file = self.scratch / "requests.jsonl"
        requests_file.write_text("".join(json.dumps(asdict(request)) + "\n" for request in self.plan.requests))
        names = [instance.name for instance in cluster.instances]
        self._fleet = Fleet(
            self.plan.agents(
                cluster,
                namespaces={name: testbed.namespace(name) for name in [*names, "gw"]},
                controller=(cluster.controller_ip, NORTHBOUND_PORT),
                ecmp_ports=ecmp_ports(self.plan, cluster, testbed),
                requests_file=requests_file,
            )
            | run_as,
            log=self.scratch / "agents.out",
        )
        self._fleet.start(self.ledger)

    # -- watch ------------------------------------------------------------------------------------------------------

    def pids(self) -> dict[str, int]:
        """Name -> process id of what runs beside the agents."""
        pids = {} if self.testbed.ovs is None else dict(self.testbed.ovs.pids())
        return pids | ({"controller": self.controller.pid} if self.controller.pid else {})

    def troubles(self) -> list[str]:
        """What is wrong with the parts of this run, a sentence each: ended, silent, or at fault by its own word."""
        found = []
        if self._controller is not None and not self._controller.alive():
            found.append("the controller died")
        elif self._controller is not None and self._controller.fault:
            found.append(f"the controller reported: {self._controller.fault}")
        if self.testbed.ovs is not None:
            try:
                self.testbed.ovs.check_alive()
            except OpenVSwitchError as error:
                found.append(str(error))
        if self._watch is not None and not found:
            found += self._watch.troubles()
        if self._fleet is not None:
            found += self._fleet.silent()
        return found

    def attend(self) -> None:
        """Raises PartsFailed where something is wrong with a part."""
        if troubles := self.troubles():
            raise PartsFailed("; ".join(troubles))

    def explained(self, error: Exception) -> str:
        """An error with what is known to be wrong: a call that failed seldom says that a frozen part is why."""
        text = str(error) or type(error).__name__
        return "; ".join([text, *(trouble for trouble in self.troubles() if trouble not in text)])

    # -- end --------------------------------------------------------------------------------------------------------

    def stop_agents(self) -> dict[str, int]:
        """Ask no more, have the agents say their last words, and end the captures; packets that those lost."""
        if self._watch is not None:
            self._watch.stop()
        if self._fleet is not None:
            self._fleet.stop()
        return self.captures.stop() if self.captures is not None else {}

    def stop_controller(self) -> list[dict[str, Any]]:
        """End the controller; what it logged."""
        if self._controller is None:
            return []
        self._controller.stop()
        return list(self._controller.events())

    def end(self, keep_logs: Path) -> None:
        """End and remove everything, logs kept under `keep_logs`; what one step raises costs none of the others."""
        with ExitStack() as steps:  # last in, first out
            steps.callback(self.ledger.remove)
            steps.callback(self._keep_logs, keep_logs)
            steps.callback(self.testbed.close)
            if self.captures is not None:
                steps.callback(self.captures.stop)
            if self._controller is not None:
                steps.callback(self._controller.stop)
            if self._fleet is not None:
                steps.callback(self._fleet.kill)
            if self._watch is not None:
                steps.callback(self._watch.stop)
            if self._changes is not None:
                steps.callback(self._changes.close)

    def _keep_logs(self, directory: Path) -> None:
        """The controller's log is an artifact; what processes printed is kept where they printed anything."""
        for name in ("controller.jsonl", "controller.out", "agents.out"):
            source = self.scratch / name
            if source.is_file() and source.stat().st_size:
                content = source.read_bytes()
                if source.suffix == ".out":  # a plug-in may print anything, and a log is read on a terminal
                    content = printable_lines(content.decode("utf-8", "surrogateescape")).encode()
                write_bytes(directory / name, content)
