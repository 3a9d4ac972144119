"""A circuit switch for tests with real packets: an Open vSwitch bridge, its controller, a namespace per instance.

Plain `ip` and `ovs-vsctl`, so that the controller is tested without the testbed that normally builds all this.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from namespaces import inside

from emulation.linux import netns

ROOT = Path(__file__).resolve().parents[2]
_HTTP_PORT = 8080
_OPENFLOW_PORT = 6653
_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


class Api:
    """A kept HTTP connection to the controller, whose socket lives in the switch's namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._connection = http.client.HTTPConnection("127.0.0.1", _HTTP_PORT, timeout=10)

    def connect(self) -> None:
        """Open the connection; raises OSError while nobody listens."""
        kept = netns.socket_in(self._namespace)
        kept.settimeout(10)
        try:
            kept.connect(("127.0.0.1", _HTTP_PORT))
        except OSError:
            kept.close()
            raise
        kept.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.sock = kept

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a call."""
        self._connection.request(method, path, None if body is None else json.dumps(body))
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """The answer of a call that has to succeed."""
        status, answer = self.call("POST", path, body)
        assert status == 200, (path, body, status, answer)
        return answer

    def lines(self, path: str) -> Iterator[dict[str, Any]]:
        """The lines of a stream as they come; uses the connection up."""
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        assert response.status == 200, response.status
        while line := response.readline():
            yield json.loads(line)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class CircuitSwitch:
    """Builds everything on `start` and removes all of it on `stop`."""

    def __init__(
        self,
        directory: Path,
        prefills: Sequence[str],
        decodes: Sequence[str],
        fabric: dict[str, Any],
        datapath: str = "netdev",
    ) -> None:
        self.directory = directory
        self.log = directory / "controller.jsonl"
        self._datapath = datapath
        self._prefix = f"hg{secrets.token_hex(2)}-"
        self._names = [*prefills, *decodes]
        self.namespace = self._prefix + "ovs"
        self._namespaces: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._config = {
            "fabric": {"kind": "ocs", "commit": "last-chunk", "reuse": True, **fabric},
            "transfer": "pull",
            "rate_bytes_per_s": 1e9,
            "prefills": list(prefills),
            "decodes": list(decodes),
            "planes": [
                {
                    "bridge": "plane0",
                    "dpid": 1,
                    "unixctl": str(directory / "vswitchd.ctl"),
                    "ports": {name: port for port, name in enumerate(self._names, start=1)},
                }
            ],
            "log": str(self.log),
        }

    def place(self, name: str) -> str:
        """`namespace:interface` of an instance's GPU NIC."""
        return f"{self._prefix}{name}:gpu0"

    def start(self) -> None:
        """Namespaces, veth pairs, Open vSwitch, the controller; returns when the plane is ready."""
        for name in ("ovs", *self._names):
            self._run("ip", "netns", "add", self._prefix + name)
            self._namespaces.append(self._prefix + name)
        self._run(*inside(self.namespace), "ip", "link", "set", "lo", "up")
        for name in self._names:
            end = self._prefix + name
            self._run(*inside(end), "ip", "link", "add", "gpu0", "type", "veth", "peer", name, "netns", self.namespace)
            self._run(*inside(end), "ip", "link", "set", "gpu0", "up")
            self._run(*inside(self.namespace), "ip", "link", "set", name, "up")
        self._start_controller()
        self._start_switch()
        self._until_ready()

    def stop(self) -> None:
        """End our processes, newest first, and remove our namespaces; a second call does nothing."""
        processes, self._processes = self._processes, []
        namespaces, self._namespaces = self._namespaces, []
        for process in reversed(processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for namespace in namespaces:
            self._run("ip", "netns", "del", namespace)

    def connect(self) -> Api:
        """A new connection to the controller."""
        api = Api(self.namespace)
        api.connect()
        return api

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The controller's log, one kind of line."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == kind]

    def spawn(self, *command: str, enter: bool = True, **options: Any) -> subprocess.Popen[bytes]:
        """Start a process that `stop` will end; inside the switch's namespace unless told otherwise."""
        where = inside(self.namespace) if enter else ()
        process = subprocess.Popen([*where, *command], cwd=ROOT, **options)
        self._processes.append(process)
        return process

    @property
    def controller(self) -> subprocess.Popen[bytes]:
        """The controller's process."""
        return self._processes[0]

    def vsctl(self, *arguments: str) -> str:
        """Run ovs-vsctl on our database."""
        return self._run("ovs-vsctl", f"--db=unix:{self.directory}/db.sock", "--timeout=10", *arguments)

    def _start_controller(self) -> None:
        path = self.directory / "controller.json"
        path.write_text(json.dumps(self._config))
        output = (self.directory / "controller.out").open("wb")
        addresses = ("--ofp-listen-host", "127.0.0.1", "--ofp-tcp-listen-port", str(_OPENFLOW_PORT))
        addresses += ("--wsapi-host", "127.0.0.1", "--wsapi-port", str(_HTTP_PORT))
        environment = {**os.environ, "HELIOGRAPH_CONTROLLER": str(path)}
        self.spawn(
            *(sys.executable, "controllers/ryu_app/manager.py", *addresses, "controllers/ryu_app/circuit_app.py"),
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        output.close()

    def _start_switch(self) -> None:
        directory = self.directory
        self._run("ovsdb-tool", "create", str(directory / "conf.db"), _SCHEMA)
        quiet = {
            "env": {**os.environ, "OVS_RUNDIR": str(directory)},
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        socket_path = directory / "db.sock"
        self.spawn(
            "ovsdb-server",
            f"{directory}/conf.db",
            f"--remote=punix:{socket_path}",
            f"--unixctl={directory}/db.ctl",
            **quiet,
        )
        _until(lambda: _listens(socket_path), "ovsdb-server's socket")
        self.vsctl("--no-wait", "init", "--", "set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true")
        self.spawn("ovs-vswitchd", f"unix:{socket_path}", f"--unixctl={directory}/vswitchd.ctl", **quiet)
        bridge = ["add-br", "plane0", "--", "set", "bridge", "plane0", f"datapath_type={self._datapath}"]
        bridge += ["fail_mode=secure", "protocols=OpenFlow13", "other-config:datapath-id=0000000000000001"]
        for port, name in enumerate(self._names, start=1):
            bridge += ["--", "add-port", "plane0", name, "--", "set", "interface", name, f"ofport_request={port}"]
        bridge += ["--", "set-controller", "plane0", f"tcp:127.0.0.1:{_OPENFLOW_PORT}"]
        self.vsctl(*bridge, "--", "set", "controller", "plane0", "max_backoff=1000")

    def _until_ready(self) -> None:
        deadline_s = time.monotonic() + 20
        health: dict[str, Any] = {}
        while time.monotonic() < deadline_s:
            assert self.controller.poll() is None, (self.directory / "controller.out").read_text()
            try:
                api = self.connect()
            except OSError:
                time.sleep(0.05)
                continue
            _, health = api.call("GET", "/v1/health")
            api.close()
            if health["ready"]:
                return
            time.sleep(0.05)
        raise TimeoutError(
            f"the plane was not ready in 20 s: {health}\n{(self.directory / 'controller.out').read_text()}"
        )

    @staticmethod
    def _run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout


def _until(condition: Any, what: str, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not appear in {timeout_s} s"
        time.sleep(0.01)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def missing() -> str | None:
    """The first program that these tests need and that is not installed."""
    return next(
        (name for name in ("ip", "ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl") if not shutil.which(name)),
        None,
    )
