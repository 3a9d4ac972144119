"""A run's own Open vSwitch: ovsdb-server and ovs-vswitchd in a namespace and a directory of the run.

An Open vSwitch that the machine already runs is never touched: other directory, other database, other sockets, other
namespace. Both processes die with the thread that started them (PR_SET_PDEATHSIG), so start them from the main thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulation.linux.children import spawn
from emulation.linux.ledger import RunLedger
from emulation.linux.liveness import SILENCE_S, ask_unixctl
from emulation.linux.processes import Stillness, end_processes, start_ticks

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
DATAPATHS = ("netdev", "system")
OPENFLOW_PORT = 6653
#: How often the daemons are looked at while a command waits for them.
ATTEND_S = 0.2


class OpenVSwitchError(RuntimeError):
    """Open vSwitch did not start or did not do as told: says which step, its output, and the remedy."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """A bridge to make: name, datapath id, and interface -> OpenFlow port."""

    name: str
    dpid: int
    ports: Mapping[str, int]


class OpenVSwitch:
    """One ovsdb-server and one ovs-vswitchd.

    name: of its directory in the run's ("ovs0"). namespace: where its ports are. datapath: "netdev" (user space) or
    "system" (the kernel module). `unixctl` is ovs-vswitchd's control socket, `database` the one of ovsdb-server.
    """

    def __init__(self, ledger: RunLedger, name: str, namespace: str, datapath: str) -> None:
        if datapath not in DATAPATHS:
            raise OpenVSwitchError(f"datapath {datapath!r}: give one of {', '.join(DATAPATHS)}")
        self._ledger, self._namespace, self._datapath = ledger, namespace, datapath
        self.directory = ledger.subdirectory(name)
        self.unixctl = self.directory / "ovs-vswitchd.ctl"
        self.database = self.directory / "db.sock"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._started: dict[int, int | None] = {}  # pid -> its start in ticks

    def start(self, bridges: Sequence[Bridge], controller: str | None, *, timeout_s: float = 10.0) -> None:
        """Start both processes with these bridges wired and `controller` ("tcp:ADDRESS:PORT") as target of each;
        None = later, by `connect`, which saves the second that Open vSwitch waits after a refused attempt.

        The bridges are in the database before ovs-vswitchd reads it: it configures itself once, and the controller
        is attached before any flow exists (attaching the first one flushes them). Raises OpenVSwitchError.
        """
        files = self.directory
        self._run("create the database", ["ovsdb-tool", "create", f"{files}/conf.db", str(SCHEMA)], timeout_s)
        self._spawn(
            "ovsdb-server", [f"{files}/conf.db", f"--remote=punix:{self.database}"], f"{files}/ovsdb-server.ctl"
        )
        self._wait_for("ovsdb-server", self.database, timeout_s)
        # userspace-tso-enable is read once, at start: without it TCP from a veth with checksum offload hangs on this
        # datapath.
        settings = (
            ["set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true"] if self._datapath == "netdev" else []
        )
        transaction = ["init", *(["--", *settings] if settings else [])]
        for bridge in bridges:
            transaction += ["--", *_bridge_arguments(bridge, self._datapath)]
            transaction += _controller_arguments(bridge, controller) if controller else []
        self.vsctl("--no-wait", *transaction, timeout_s=timeout_s)
        self._spawn("ovs-vswitchd", [f"unix:{self.database}"], str(self.unixctl))
        self._wait_for("ovs-vswitchd", self.unixctl, timeout_s)
        # Any change that waits returns once ovs-vswitchd has configured everything before it too.
        self.vsctl("set", "Open_vSwitch", ".", "external_ids:heliograph=ready", timeout_s=timeout_s)
        self._check_ports(bridges, timeout_s)

    def connect(self, bridges: Sequence[Bridge], controller: str) -> None:
        """Give every bridge its controller, in one transaction. Do it before any flow exists: it flushes them."""
        arguments = [argument for bridge in bridges for argument in _controller_arguments(bridge, controller)]
        self.vsctl(*arguments[1:])

    def vsctl(self, *arguments: str, timeout_s: float = 10.0) -> str:
        """Run ovs-vsctl on this database; returns its output. Raises OpenVSwitchError."""
        # What it says of a busy machine ("unreasonably long poll interval") is no failure: errors are said regardless.
        # --retry: the database's socket is there a moment before somebody listens to it.
        options = ["-vconsole:off", "--retry", f"--db=unix:{self.database}", f"--timeout={max(1, round(timeout_s))}"]
        return self._run("configure the bridges", ["ovs-vsctl", *options, *arguments], timeout_s + 1)

    def stop(self) -> None:
        """End both processes within a bounded time. May be called again."""
        # ovs-vswitchd first: it would report the loss of its database.
        for process in reversed(self._processes):
            if process.poll() is None:  # the pid of one that has ended may be somebody else's by now
                end_processes([(process.pid, self._started[process.pid])], record=self._ledger.setting)
                process.poll()
        self._processes.clear()

    def pids(self) -> dict[str, int]:
        """Program name -> process id of what runs."""
        return {
            Path(str(process.args[0])).name: process.pid
            for process in self._processes
            if isinstance(process.args, list) and process.poll() is None
        }

    def management(self, bridge: str) -> Path:
        """The socket where a bridge speaks OpenFlow to whoever administers it."""
        return self.directory / f"{bridge}.mgmt"

    @property
    def control(self) -> dict[str, Path]:
        """Program name -> its control socket, of what was started."""
        return {name: self.directory / f"{name}.ctl" for name in self.pids()}

    def check_alive(self) -> None:
        """Raises OpenVSwitchError when one of the processes has ended."""
        for process in self._processes:
            if process.poll() is not None:
                name = Path(str(process.args[0])).name if isinstance(process.args, list) else "a process"
                raise OpenVSwitchError(f"{name} ended with status {process.returncode}: {self._log_tail(name)}")

    def _environment(self) -> dict[str, str]:
        here = str(self.directory)
        return os.environ | {"OVS_RUNDIR": here, "OVS_LOGDIR": here, "OVS_DBDIR": here, "OVS_SYSCONFDIR": here}

    def _run(self, step: str, command: list[str], timeout_s: float) -> str:
        try:
            child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=self._environment(),
                start_new_session=True,  # as what `spawn` starts: Ctrl-C in the terminal reaches us alone
            )
        except FileNotFoundError as error:
            raise OpenVSwitchError(f"{command[0]} is not installed: apt-get install openvswitch-switch") from error
        try:
            output, errors = self._answer(child, step, timeout_s)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        if child.returncode or errors.strip():
            why = "; ".join(text for text in (self._blame(), errors.strip()) if text)
            raise OpenVSwitchError(f"could not {step} ({command[0]}, status {child.returncode}): {why}")
        return output

    def _answer(self, child: subprocess.Popen[str], step: str, timeout_s: float) -> tuple[str, str]:
        """What a command printed. Raises OpenVSwitchError at once where a daemon is the reason that it cannot end."""
        deadline_s = time.monotonic() + timeout_s
        still = {process.pid: Stillness(lambda pid=process.pid: [pid]) for process in self._processes}  # type: ignore[misc]
        while True:
            try:
                return child.communicate(timeout=ATTEND_S)
            except subprocess.TimeoutExpired:
                pass
            stuck = any([watched.seconds() > SILENCE_S for watched in still.values()])  # all of them, each time
            dead = any(process.poll() is not None for process in self._processes)
            if (stuck or dead) and (blame := self._blame()):
                raise OpenVSwitchError(f"could not {step}: {blame}")
            if time.monotonic() > deadline_s:
                why = self._blame() or self._log_tail("ovs-vswitchd")
                raise OpenVSwitchError(f"could not {step} in {timeout_s} s: {why}")

    def _blame(self) -> str:
        """Which daemon is the reason that a command got no answer: ended, or there and silent. Empty where none is."""
        found = []
        for process in self._processes:
            name = Path(str(process.args[0])).name if isinstance(process.args, list) else "a process"
            if process.poll() is not None:
                found.append(f"{name} ended with status {process.returncode}")
                continue
            try:
                ask_unixctl(self.directory / f"{name}.ctl", timeout_s=1.0)
            except TimeoutError:
                found.append(f"{name} does not answer: it is frozen or starved of CPU")
            except (OSError, ValueError) as error:
                found.append(f"{name} cannot be asked ({error})")
        return ", ".join(found)

    def _spawn(self, program: str, arguments: list[str], unixctl: str) -> None:
        log = f"--log-file={self.directory}/{program}.log"
        command = [program, *arguments, f"--unixctl={unixctl}", log, "-vconsole:off", "-vfile:info", "-vsyslog:off"]
        try:
            process = spawn(
                command,
                ledger=self._ledger,
                log=self.directory / f"{program}.out",
                namespace=self._namespace,
                environment=self._environment(),
            )
        except FileNotFoundError as error:
            raise OpenVSwitchError(f"{program} is not installed: apt-get install openvswitch-switch") from error
        self._started[process.pid] = start_ticks(process.pid)
        self._processes.append(process)

    def _wait_for(self, program: str, socket: Path, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        stillness = Stillness(lambda: [self._processes[-1].pid])  # the one that starts: the other moves all the same
        while not socket.exists():
            self.check_alive()
            if (still_s := stillness.seconds()) > SILENCE_S:
                raise OpenVSwitchError(f"{program} has not moved for {still_s:.1f} s of its start: it is frozen")
            if time.monotonic() > deadline_s:
                raise OpenVSwitchError(f"{program} did not open {socket} in {timeout_s} s: {self._log_tail(program)}")
            time.sleep(0.002)

    def _log_tail(self, program: str) -> str:
        log = self.directory / f"{program}.log"
        lines = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
        return " / ".join(lines) or "no log"

    def _check_ports(self, bridges: Sequence[Bridge], timeout_s: float) -> None:
        table = self.vsctl("-f", "json", "--columns=name,ofport,error", "list", "Interface", timeout_s=timeout_s)
        found = {name: (ofport, error) for name, ofport, error in json.loads(table)["data"]}
        for bridge in bridges:
            for interface, wanted in bridge.ports.items():
                ofport, error = found.get(interface, (None, "absent"))
                if ofport != wanted:
                    raise OpenVSwitchError(
                        f"{bridge.name}: {interface} has OpenFlow port {ofport}, not {wanted} ({error}): "
                        f"{self._log_tail('ovs-vswitchd')}"
                    )


def _bridge_arguments(bridge: Bridge, datapath: str) -> list[str]:
    """ovs-vsctl commands for one bridge and its ports."""
    arguments = ["add-br", bridge.name, "--", "set", "Bridge", bridge.name]
    arguments += [f"datapath_type={datapath}", "fail_mode=secure", "protocols=OpenFlow13"]
    arguments += [f"other_config:datapath-id={bridge.dpid:016x}", "other_config:disable-in-band=true"]
    for interface, ofport in bridge.ports.items():
        arguments += ["--", "add-port", bridge.name, interface]
        arguments += ["--", "set", "Interface", interface, f"ofport_request={ofport}"]
    return arguments


def _controller_arguments(bridge: Bridge, controller: str) -> list[str]:
    """ovs-vsctl commands for one bridge's controller. An hour of inactivity probe: the run itself watches its
    controller. A second is the shortest pause between attempts that Open vSwitch accepts."""
    arguments = ["--", "set-controller", bridge.name, controller]
    return [*arguments, "--", "set", "Controller", bridge.name, "inactivity_probe=3600000", "max_backoff=1000"]
