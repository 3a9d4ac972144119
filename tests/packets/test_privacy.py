"""Nobody else on the machine reaches what a run listens on: TCP only inside its namespaces, sockets of Open vSwitch
only for root."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from test_fidelity_drills import disturbed

from emulation.linux.ledger import RunLedger
from emulation.run.fabric_run import FabricRun

CONNECT = """
import socket, sys
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
    except OSError as error:
        print(error.errno)
    else:
        print("connected to", path)
"""


def listeners(pid: int) -> set[str]:
    """Inodes of the sockets that listen in a process's network namespace."""
    found = set()
    for name in ("tcp", "tcp6"):
        table = Path(f"/proc/{pid}/net/{name}")
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == "0A":
                found.add(fields[9])
    return found


def sockets(pid: int) -> set[str]:
    """Inodes of the sockets that a process has open."""
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}


def test_what_a_run_listens_on_is_its_own(ledger: RunLedger, tmp_path: Path) -> None:
    outside = os.readlink("/proc/self/ns/net")
    seen: dict[str, bool] = {}

    def look(run: FabricRun) -> None:
        parts = run._parts
        for name, pid in {**parts.pids(), **parts.fleet.pids()}.items():
            own = sockets(pid)
            assert not own & listeners(os.getpid()), f"{name} listens outside of the run's namespaces"
            inside = os.readlink(f"/proc/{pid}/ns/net") != outside
            seen[name] = inside and bool(own & listeners(pid))
        ovs = parts.testbed.ovs
        assert ovs is not None
        found = [str(path) for path in ovs.of("plane0").directory.iterdir() if path.is_socket()]
        assert len(found) > 3, found
        line = [sys.executable, "-I", "-c", CONNECT, *found]
        said = subprocess.run(line, check=True, capture_output=True, text=True, user="nobody", group="nogroup", cwd="/")
        assert said.stdout.split() == ["13"] * len(found), said.stdout

    disturbed(ledger, tmp_path, [(0.6, look)])
    assert seen["controller"]
    assert seen["p0"] or seen["d0"], seen
