"""An Open vSwitch of its own with bridges that carry nothing: no root, no namespace, no kernel module."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emulation.monitor.circuit_rules import Socket

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")


class DummySwitch:
    """Bridges by name, told as `ovs-ofctl` tells them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def socket(self, bridge: str) -> Socket:
        return Socket(self.directory / f"{bridge}.mgmt", self.directory / "vswitchd.ctl")

    def connect(self, controller: str, ports: int, *bridges: str) -> None:
        """Give each bridge these ports, and its controller ("tcp:ADDRESS:PORT")."""
        words = []
        for number, bridge in enumerate(bridges, 1):
            words += ["--", "set", "Bridge", bridge, f"other_config:datapath-id={number:016x}"]
            for port in range(1, ports + 1):
                words += ["--", "add-port", bridge, f"{bridge}-{port}", "--", "set", "Interface", f"{bridge}-{port}"]
                words += [f"ofport_request={port}", "type=dummy"]
            words += ["--", "set-controller", bridge, controller]
        database = f"--db=unix:{self.directory}/db.sock"
        subprocess.run(["ovs-vsctl", "--retry", "--timeout=30", database, *words[1:]], check=True)

    def ofctl(self, command: str, bridge: str, *words: str) -> None:
        target = f"unix:{self.directory}/{bridge}.mgmt"
        subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", command, target, *words], check=True)


@contextmanager
def dummy_switch(directory: Path, *bridges: str) -> Iterator[DummySwitch]:
    if not (shutil.which("ovs-vswitchd") and SCHEMA.exists()):
        pytest.skip("Open vSwitch is not installed")
    here = str(directory)
    environment = os.environ | {"OVS_RUNDIR": here, "OVS_LOGDIR": here, "OVS_DBDIR": here, "OVS_SYSCONFDIR": here}
    database = f"unix:{here}/db.sock"
    quiet = ["-vconsole:off", "-vsyslog:off"]
    subprocess.run(["ovsdb-tool", "create", f"{here}/conf.db", str(SCHEMA)], check=True, env=environment)
    servers = [
        ["ovsdb-server", f"{here}/conf.db", f"--remote=p{database}", f"--unixctl={here}/db.ctl", *quiet],
        ["ovs-vswitchd", "--enable-dummy=override", database, f"--unixctl={here}/vswitchd.ctl", *quiet],
    ]
    processes = []
    try:
        for server in servers:
            processes.append(subprocess.Popen(server, env=environment))
            deadline_s = time.monotonic() + 30
            while not (directory / ("db.sock" if len(processes) == 1 else "vswitchd.ctl")).exists():
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
        made = [
            f"add-br {b} -- set bridge {b} datapath_type=dummy fail_mode=secure protocols=OpenFlow13" for b in bridges
        ]
        words = " -- ".join(made).split()
        subprocess.run(
            ["ovs-vsctl", "--retry", f"--db={database}", "--timeout=30", *words], check=True, env=environment
        )
        yield DummySwitch(directory)
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()
