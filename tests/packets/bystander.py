"""What stands beside the runs and is not theirs: namespaces, a bridge, another Open vSwitch."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from namespaces import inside

from emulation.linux.processes import start_ticks

SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


@dataclass
class Bystander:
    """A namespace named like a run's with a bridge called like a circuit switch in it; one with an Open vSwitch."""

    names: tuple[str, str]
    directory: Path
    daemons: dict[int, int | None]

    def check(self) -> None:
        """Everything is still there."""
        for name in self.names:
            assert Path("/run/netns", name).exists(), f"namespace {name} is gone"
        assert {pid: start_ticks(pid) for pid in self.daemons} == self.daemons, "the other Open vSwitch has died"
        assert self.vsctl("list-br") == "foreign0\n"
        assert self.vsctl("list-ports", "foreign0") == "foreign-port\n"
        bridge = [*inside(self.names[0]), "ip", "link", "show", "plane0"]
        assert not subprocess.run(bridge, capture_output=True, check=False).returncode, "the foreign bridge is gone"

    def vsctl(self, *words: str) -> str:
        command = ["ovs-vsctl", f"--db=unix:{self.directory}/db.sock", "--timeout=20", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def standing_beside() -> Iterator[Bystander]:
    """Set it up, and take it down again."""
    names = (f"hgffff-{os.getpid()}", f"other-{os.getpid()}")
    directory = Path(tempfile.mkdtemp(prefix="ovs-", dir="/run"))
    environment = os.environ | dict.fromkeys(("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"), str(directory))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        subprocess.run([*inside(names[0]), "ip", "link", "add", "plane0", "type", "bridge"], check=True)
        subprocess.run([*inside(names[1]), "ip", "link", "add", "foreign-port", "type", "veth"], check=True)
        subprocess.run(["ovsdb-tool", "create", f"{directory}/conf.db", SCHEMA], check=True, env=environment)
        for socket, command in (
            (
                "db.sock",
                ["ovsdb-server", f"{directory}/conf.db", f"--remote=punix:{directory}/db.sock", "--unixctl=none"],
            ),
            ("vswitchd.ctl", ["ovs-vswitchd", f"unix:{directory}/db.sock", f"--unixctl={directory}/vswitchd.ctl"]),
        ):
            words = [*inside(names[1]), *command, "-vconsole:off", "-vsyslog:off", "-vfile:off"]
            processes.append(subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL))
            deadline_s = time.monotonic() + 30
            while not (directory / socket).exists():
                assert processes[-1].poll() is None
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
        found = Bystander(names, directory, {process.pid: start_ticks(process.pid) for process in processes})
        bridge = ["add-br", "foreign0", "--", "set", "Bridge", "foreign0", "datapath_type=netdev"]
        found.vsctl("--", "init", "--", *bridge, "--", "add-port", "foreign0", "foreign-port")
        yield found
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)
        shutil.rmtree(directory, ignore_errors=True)
