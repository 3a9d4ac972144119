"""Open vSwitch's daemons at their end: only those that the run has started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emulation.linux.ledger import RunLedger
from emulation.linux.processes import start_ticks
from emulation.network import ovs


def test_the_pid_of_a_daemon_that_has_ended_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be somebody else's by now; one that runs is told by when it was started."""
    asked: list[Any] = []
    monkeypatch.setattr(ovs, "end_processes", lambda processes, record: asked.extend(processes))
    ledger = RunLedger.open("stops", base=tmp_path)
    switch = ovs.OpenVSwitch(ledger, "ovs0", "nowhere", "netdev")
    gone, alive = (subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({s})"]) for s in (0, 60))
    try:
        for process in (gone, alive):
            switch._started[process.pid] = start_ticks(process.pid)
            switch._processes.append(process)
        gone.wait()
        switch.stop()
        assert asked == [(alive.pid, start_ticks(alive.pid))]
    finally:
        alive.kill()
        alive.wait()
        ledger.close()
