"""Runs that are drilled: started, watched, hit, and looked at once they are over."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Words of a run whose own probes refused it: that says nothing of how runs end.
LINK_OFF = "of its rate; 3 % is allowed"
#: Seconds within which a run is over, once it can have noticed what happened.
ENDED_S = 10.0
#: Seconds to wait for what is sure to come; on a machine that is busy with other things it comes late.
PATIENCE_S = 60.0
#: A run that is late is not to blame where the cores had less time to spare than this share of the wait.
IDLE_SHARE = 0.1
TABLES = {"requests.csv", "transfers.csv", "circuits.csv", "links.csv", "fidelity.json"}


class MachineBusy(Exception):
    """The run's own probes refused the machine: to be tried again."""


class RunServer:
    """`run_server.py`, and one run at a time in a child of it."""

    def __init__(self) -> None:
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a fork copies no threads
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "run_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
        )
        self._unread = b""
        self.read("ready", PATIENCE_S)

    def order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def read(self, key: str, timeout_s: float) -> int | None:
        """What the server says next under `key`; None where it says nothing for that long."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                return None
            if not (received := os.read(self._process.stdout.fileno(), 65536)):
                raise AssertionError("the server of the runs has ended")
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return int(json.loads(line)[key])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise


@dataclass
class Lane:
    """A place where one run after the other is drilled, with ledgers of its own: two lanes do not meet each other."""

    folder: Path
    base: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="hg-", dir="/run")))
    server: RunServer = field(default_factory=RunServer)
    prefixes: set[str] = field(default_factory=set)
    _run: Run | None = None
    _count: int = 0

    def start(self, experiment: str, *options: str, artifacts: Path | None = None) -> Run:
        """`cli.py run` of this experiment (YAML)."""
        self._count += 1
        folder = self.folder / str(self._count)
        folder.mkdir(parents=True)
        (folder / "drill.yaml").write_text(experiment)
        artifacts = artifacts or folder / "run"
        arguments = ["run", str(folder / "drill.yaml"), *options, "--artifact-dir", str(artifacts)]
        self._run = Run(self, self._order(arguments, folder / "output"), folder / "output", artifacts)
        return self._run

    def clean(self) -> str:
        """`cli.py clean`; what it says."""
        self._count += 1
        output = self.folder / f"{self._count}-clean"
        self._order(["clean"], output)
        assert self.server.read("status", PATIENCE_S) == 0, output.read_text()
        return output.read_text()

    def stop(self) -> None:
        """End the run that a drill has left alone, and remove what is left of it."""
        if self._run is not None and not self._run.over():
            self._run.signal(signal.SIGTERM)
            if not self._run.over(2 * ENDED_S):
                self._run.signal(signal.SIGKILL)
                self._run.over(PATIENCE_S)
        self._run = None
        if self.left():
            self.wait_until_parts_are_gone()
            self.clean()

    def wait_until_parts_are_gone(self) -> None:
        """The kernel ends what a killed run has started, but not in zero time."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.parts() and time.monotonic() < deadline_s:
            time.sleep(0.02)

    def _order(self, arguments: list[str], output: Path) -> int:
        self.server.order(run=arguments, output=str(output), base=str(self.base))
        pid = self.server.read("pid", PATIENCE_S)
        assert pid is not None
        return pid

    def note(self) -> None:
        """Keep the prefix of the namespaces of the run that is alive, or was killed."""
        for ledger in self.base.glob("*/ledger.jsonl"):
            with contextlib.suppress(OSError, ValueError):
                self.prefixes.add(json.loads(ledger.read_text().split("\n", 1)[0])["prefix"])

    def parts(self) -> dict[int, str]:
        """Processes of this lane's runs: pid -> command line. They write their errors into the run's directory."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(path / "fd" / "2").startswith(f"{self.base}/"):
                    line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(path.name)] = line
        return found

    def left(self) -> list[str]:
        """Everything that this lane's runs have left behind: processes, namespaces, run directories."""
        namespaces = os.listdir("/run/netns") if Path("/run/netns").is_dir() else []
        return [
            *(f"process {pid}: {line}" for pid, line in self.parts().items()),
            *(f"namespace {name}" for name in namespaces if name.split("-")[0] in self.prefixes),
            *(f"directory {path}" for path in self.base.iterdir() if path.is_dir()),
        ]

    def close(self) -> None:
        try:
            self.server.close()
        finally:
            shutil.rmtree(self.base, ignore_errors=True)


@dataclass
class Run:
    """One run of a lane, its output in a file so that nobody has to read along."""

    lane: Lane
    pid: int
    output: Path
    artifacts: Path
    status: int | None = None

    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        self.lane.note()
        self.lane.server.order(signal=number)

    def where(self) -> str:
        """What it has said, and where each of its threads is now."""
        self.signal(signal.SIGUSR1)
        time.sleep(1.0)
        return f"{self.said()}\nparts: {self.lane.parts()}"

    def over(self, timeout_s: float = 0.0) -> bool:
        if self.status is None:
            self.status = self.lane.server.read("status", timeout_s)
        return self.status is not None

    def wait_until(self, what: str, condition: Callable[[], Any], period_s: float = 0.005) -> Any:
        """The first true value of `condition`. Raises MachineBusy for a run that its probes refused."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            self.lane.note()
            if self.over():
                if LINK_OFF in self.said():
                    raise MachineBusy(self.said()[-600:])
                raise AssertionError(f"over, without {what}:\n{self.said()}")
            assert time.monotonic() < deadline_s, f"no {what} in:\n{self.where()}"
            time.sleep(period_s)
        self.lane.note()
        return found

    def wait_for(self, text: str) -> None:
        """Until it has said this."""
        self.wait_until(repr(text), lambda: text in self.said())

    def part(self, words: str) -> int:
        """The pid of the part whose command line holds `words`, as soon as there is one."""
        pids = self.wait_until(words, lambda: [pid for pid, line in self.lane.parts().items() if words in line])
        return int(min(pids))

    def agents(self, count: int = 1) -> list[int]:
        """Pids of the agents, the gateway first, as soon as there are so many."""
        zygote = self.part("emulation.agents.zygote")

        def children() -> list[int]:
            try:
                pids = [int(pid) for pid in Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()]
            except OSError:  # it has just gone, and so has the run or soon will
                return []
            return pids if len(pids) >= count else []

        return list(self.wait_until(f"{count} agents", children))

    def wait_for_the_last_request(self) -> None:
        """Until the gateway has said goodbye: what comes now is the tear-down."""
        gateway = Path(f"/proc/{self.agents()[0]}/cmdline")

        def gone() -> bool:
            try:
                return not gateway.read_bytes()
            except OSError:
                return True

        self.wait_until("end of the gateway", gone, period_s=0.002)

    def ended(self, timeout_s: float) -> int:
        """The exit status of a run that is over within this time, or later where every core was busy all the while."""
        idle = idle_s()
        if not self.over(timeout_s):
            spare_s = idle_s() - idle
            if spare_s > IDLE_SHARE * timeout_s or not self.over(PATIENCE_S):
                raise AssertionError(f"not over within {timeout_s:g} s, {spare_s:.1f} s idle:\n{self.where()}")
        assert self.status is not None
        if self.status and LINK_OFF in self.said():
            raise MachineBusy(self.said()[-600:])
        assert "Traceback" not in self.said(), self.said()
        assert not list(self.artifacts.rglob("*.tmp")), "half a file"
        return self.status

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.artifacts / "summary.json").read_text()))

    def fabric(self, name: str) -> dict[str, Any]:
        """The summary's entry of a fabric: its tables are there, and every offered request is accounted for."""
        entry = next(dict(entry) for entry in self.summary()["runs"] if entry["name"] == name)
        counts = entry["requests"]
        assert counts["offered"] == counts["completed"] + counts["failed"] + counts["unfinished"] > 0, counts
        assert {path.name for path in (self.artifacts / name / "seed1").iterdir()} >= TABLES
        return entry


def idle_s() -> float:
    """Seconds that all cores together have been idle since boot."""
    return float(Path("/proc/uptime").read_text().split()[1])


def tried(drill: Callable[[Lane], None], lane: Lane) -> None:
    """The drill, again where the machine could not carry its links; skipped where it never could."""
    refused = ""
    for attempt in range(4):
        time.sleep(attempt)
        try:
            drill(lane)
            return
        except MachineBusy as error:
            refused = str(error)
        finally:
            lane.stop()
    pytest.skip(f"this machine cannot carry its links now: {refused}")
