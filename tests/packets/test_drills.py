"""Drills: parts of a run that are killed, frozen or starved of disk, and a run that is killed itself, at every moment.

After each one nothing of the run remains, its artifacts say what was lost, and what stood beside it still stands: a
foreign namespace, a foreign bridge and another Open vSwitch.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from namespaces import inside

from emulation.ledger import BASE, dead_runs
from emulation.processes import start_ticks

ROOT = Path(__file__).resolve().parents[2]
#: Seconds within which a run has to be over once it can have noticed: 4 s of silence, then 10.
NOTICED_S, ENDED_S = 5.0, 10.0
INVALID = 3
EXPERIMENT = """\
name: drill
cluster: {prefill_instances: 2, decode_instances: 2, gpus_per_instance: 1, instances_per_rack: 2}
model: {name: llama-3.1-70b, tp: 4}
transfer: pull
workload:
  window_s: 12
  warmup_s: 3
  tenants:
    - {name: agentic, source: synthetic-agentic, load: 0.5}
fabrics:
  - {name: circuits, kind: ocs, reconfiguration_ms: 25}
  - {name: packets, kind: eps, oversubscription: 2}
"""
TABLES = {"requests.csv", "transfers.csv", "circuits.csv", "links.csv", "fidelity.json"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="packets need network namespaces, which need root")


@dataclass
class Run:
    """A run of `cli.py` in a process of its own, its output in a file so that nobody has to read along."""

    process: subprocess.Popen[bytes]
    output: Path
    artifacts: Path

    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str, timeout_s: float = 40.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while text not in self.said():
            self.check_waiting(text, deadline_s)
            time.sleep(0.02)

    def wait_for_part(self, words: str, timeout_s: float = 40.0) -> int:
        """The pid of the part whose command line holds `words`, as soon as there is one."""
        deadline_s = time.monotonic() + timeout_s
        while not (found := [pid for pid, line in parts().items() if words in line]):
            self.check_waiting(words, deadline_s)
            time.sleep(0.005)
        return min(found)

    def check_waiting(self, text: str, deadline_s: float) -> None:
        if self.process.poll() is not None and "of its rate; 3 % is allowed" in self.said():
            pytest.skip(f"this machine cannot carry its links now: {self.said()[-600:]}")
        assert self.process.poll() is None, f"over, without {text!r}:\n{self.said()}"
        assert time.monotonic() < deadline_s, f"no {text!r} in:\n{self.said()}"

    def ended(self, timeout_s: float) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"not over within {timeout_s:g} s:\n{self.said()}") from None

    def circuits(self) -> dict:
        """The entry of the fabric that was drilled; every offered request is in it."""
        runs = json.loads((self.artifacts / "summary.json").read_text())["runs"]
        entry = next(entry for entry in runs if entry["name"] == "circuits")
        counts = entry["requests"]
        assert counts["offered"] > 0
        assert counts["offered"] == counts["completed"] + counts["failed"] + counts["unfinished"]
        return entry


def parts() -> dict[int, str]:
    """Processes of runs: pid -> command line. What a run starts writes its errors to a file in the run's directory."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(path / "fd" / "2").startswith(f"{BASE}/"):
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(path.name)] = line
    return found


def agents(zygote: int) -> list[int]:
    """Pids of the agents, oldest first: the zygote's children."""
    text = Path(f"/proc/{zygote}/task/{zygote}/children").read_text()
    return [int(pid) for pid in text.split()]


@dataclass
class Bystander:
    """What stands beside the runs and is not theirs, in namespaces of its own."""

    names: tuple[str, str]
    directory: Path
    daemons: dict[int, int | None]

    def check(self) -> None:
        for name in self.names:
            assert Path("/run/netns", name).exists(), f"namespace {name} is gone"
        assert {pid: start_ticks(pid) for pid in self.daemons} == self.daemons, "the other Open vSwitch has died"
        assert self._vsctl("list-br") == "foreign0\n"
        assert self._vsctl("list-ports", "foreign0") == "foreign-port\n"
        links = subprocess.run(
            [*inside(self.names[0]), "ip", "link", "show", "plane0"], capture_output=True, check=False
        )
        assert links.returncode == 0, "the foreign bridge is gone"

    def _vsctl(self, *words: str) -> str:
        command = ["ovs-vsctl", f"--db=unix:{self.directory}/db.sock", "--timeout=5", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def bystander() -> Iterator[Bystander]:
    """A namespace that looks like a run's with a bridge called like a circuit switch in it, and an Open vSwitch."""
    names = (f"hgffff-{os.getpid()}", f"other-{os.getpid()}")
    directory = Path(tempfile.mkdtemp(prefix="ovs-", dir="/run"))
    environment = os.environ | dict.fromkeys(("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"), str(directory))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        subprocess.run([*inside(names[0]), "ip", "link", "add", "plane0", "type", "bridge"], check=True)
        subprocess.run([*inside(names[1]), "ip", "link", "add", "foreign-port", "type", "veth"], check=True)
        schema = "/usr/share/openvswitch/vswitch.ovsschema"
        subprocess.run(["ovsdb-tool", "create", f"{directory}/conf.db", schema], check=True, env=environment)
        quiet = ["-vconsole:off", "-vsyslog:off", "-vfile:off"]
        for command in (
            ["ovsdb-server", f"{directory}/conf.db", f"--remote=punix:{directory}/db.sock", "--unixctl=none"],
            ["ovs-vswitchd", f"unix:{directory}/db.sock", f"--unixctl={directory}/vswitchd.ctl"],
        ):
            words = [*inside(names[1]), *command, *quiet]
            processes.append(subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL))
            deadline_s = time.monotonic() + 10
            while not (directory / ("db.sock" if len(processes) == 1 else "vswitchd.ctl")).exists():
                assert processes[-1].poll() is None
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
        found = Bystander(names, directory, {process.pid: start_ticks(process.pid) for process in processes})
        bridge = ["add-br", "foreign0", "--", "set", "Bridge", "foreign0", "datapath_type=netdev"]
        found._vsctl("--", "init", "--", *bridge, "--", "add-port", "foreign0", "foreign-port")
        yield found
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(10)
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)
        shutil.rmtree(directory, ignore_errors=True)


def left_behind() -> tuple[set[str], set[int], list[Path], str]:
    """Everything a run could leave: namespaces, processes, run directories, a hurried RCU."""
    namespaces = set(os.listdir("/run/netns")) if Path("/run/netns").is_dir() else set()
    directories = [path for path in BASE.iterdir() if path.is_dir()] if BASE.is_dir() else []
    hurried = Path("/sys/kernel/rcu_expedited")
    return namespaces, set(parts()), directories, hurried.read_text() if hurried.exists() else ""


@pytest.fixture(autouse=True)
def nothing_is_left(bystander: Bystander) -> Iterator[None]:
    assert not dead_runs(), "an earlier run left something behind: ./heliograph clean"
    before = left_behind()
    yield
    assert left_behind() == before
    bystander.check()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    started: list[Run] = []

    def start(artifacts: Path | None = None, *more: str) -> Run:
        (tmp_path / "drill.yaml").write_text(EXPERIMENT)
        output, artifacts = tmp_path / f"output{len(started)}", artifacts or tmp_path / f"run{len(started)}"
        command = [sys.executable, str(ROOT / "cli.py"), "run", str(tmp_path / "drill.yaml"), *more]
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*command, "--artifact-dir", str(artifacts)], stdout=file, stderr=subprocess.STDOUT, cwd=ROOT
            )
        started.append(Run(process, output, artifacts))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.wait(20)


def clean() -> None:
    done = subprocess.run([sys.executable, "cli.py", "clean"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def check_ended_early(run: Run, says: str, *, noticed_s: float = NOTICED_S) -> None:
    """The run is over in time, says why, and its artifacts account for every request."""
    code = run.ended(noticed_s + ENDED_S)
    assert code == 1, run.said()
    assert "Traceback" not in run.said()
    assert says in run.said().partition("ended early:")[2], run.said()
    entry = run.circuits()
    assert entry["verdict"] == "invalid"
    assert any(says in reason for reason in entry["reasons"]), entry["reasons"]
    ended = json.loads((run.artifacts / "summary.json").read_text())["ended_early"]
    assert ended["fabric"] == "circuits"
    assert ended["not_run"] == [{"fabric": "packets", "seed": 1}]
    folder = run.artifacts / "circuits" / "seed1"
    assert {path.name for path in folder.iterdir()} >= TABLES
    assert not list(run.artifacts.rglob("*.tmp")), "half a file"
    assert (run.artifacts / "report.html").is_file()


FREEZE, KILL = signal.SIGSTOP, signal.SIGKILL
PARTS = {
    "agent": ("emulation.agents.zygote", "agent"),
    "all agents": ("emulation.agents.zygote", "agent"),
    "controller": ("ryu_manager", "controller"),
    "ovsdb-server": ("ovsdb-server", "ovsdb-server"),
    "ovs-vswitchd": ("ovs-vswitchd", "ovs-vswitchd"),
}


def hit(run: Run, part: str, number: signal.Signals) -> None:
    pid = run.wait_for_part(PARTS[part][0])
    if part == "agent":
        pid = agents(pid)[1]  # the gateway is the first
    os.kill(pid, number)


@pytest.mark.parametrize(
    ("part", "number"),
    [
        ("agent", FREEZE),
        ("all agents", FREEZE),
        ("controller", FREEZE),
        ("ovsdb-server", FREEZE),
        ("ovs-vswitchd", FREEZE),
        ("agent", KILL),
        ("ovsdb-server", KILL),
    ],
)
def test_a_part_lost_while_the_clock_runs_ends_the_run(start, part, number) -> None:
    run = start()
    run.wait_for("circuits: run")
    time.sleep(1.0 if number == FREEZE else 4.0)  # in the warm-up, and in the window
    hit(run, part, number)
    check_ended_early(run, PARTS[part][1])


@pytest.mark.parametrize(("part", "number"), [("ovsdb-server", FREEZE), ("controller", KILL)])
def test_a_part_lost_while_the_network_is_built_ends_the_run(start, part, number) -> None:
    run = start()
    hit(run, part, number)
    check_ended_early(run, PARTS[part][1], noticed_s=12.0)
    assert run.circuits()["requests"]["completed"] == 0


@pytest.mark.parametrize(("part", "number"), [("controller", FREEZE), ("agent", KILL)])
def test_a_part_lost_while_connections_are_opened_ends_the_run(start, part, number) -> None:
    run = start()
    run.wait_for("circuits: connect")
    hit(run, part, number)
    check_ended_early(run, PARTS[part][1], noticed_s=10.0)


def test_parts_frozen_at_the_end_are_removed_all_the_same(start) -> None:
    """The gateway has said goodbye: what is frozen now can only hold up the tear-down."""
    run = start(None, "--set", "workload.window_s=2", "--set", "workload.warmup_s=0",
                "--set", "fabrics=[{name: circuits, kind: ocs, reconfiguration_ms: 25}]")  # fmt: skip
    run.wait_for("circuits: run")
    gateway = agents(run.wait_for_part("emulation.agents.zygote"))[0]
    while Path(f"/proc/{gateway}/cmdline").exists() and Path(f"/proc/{gateway}/cmdline").read_bytes():
        time.sleep(0.002)
    for part in ("all agents", "controller", "ovsdb-server", "ovs-vswitchd"):
        for pid in [pid for pid, line in parts().items() if PARTS[part][0] in line]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, FREEZE)
    assert run.ended(20) in (0, INVALID), run.said()
    assert "Traceback" not in run.said()
    assert run.circuits()["requests"]["completed"] > 0


def test_an_interrupt_while_the_clock_runs_keeps_what_was_measured(start) -> None:
    run = start()
    run.wait_for("circuits: run")
    time.sleep(6.0)
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    run.process.send_signal(signal.SIGTERM)  # an impatient second one changes nothing
    assert run.ended(ENDED_S) == 128 + signal.SIGINT, run.said()
    entry = run.circuits()
    assert entry["requests"]["completed"] > 0
    assert entry["requests"]["unfinished"] > 0
    assert "interrupted by SIGINT" in entry["reasons"]
    assert "Traceback" not in run.said()


def test_an_interrupt_during_the_tear_down_waits_for_it(start) -> None:
    run = start(None, "--set", "workload.window_s=2", "--set", "workload.warmup_s=0")
    run.wait_for("circuits: run")
    gateway = agents(run.wait_for_part("emulation.agents.zygote"))[0]
    while Path(f"/proc/{gateway}/cmdline").exists() and Path(f"/proc/{gateway}/cmdline").read_bytes():
        time.sleep(0.002)
    run.process.send_signal(signal.SIGTERM)
    assert run.ended(ENDED_S) == 128 + signal.SIGTERM, run.said()
    assert run.circuits()["requests"]["completed"] > 0
    assert {path.name for path in (run.artifacts / "circuits" / "seed1").iterdir()} >= TABLES
    assert "packets: build" not in run.said()


@pytest.mark.parametrize(("size_kib", "holds"), [(4, False), (64, True)])
def test_a_full_disk_ends_the_run_and_leaves_no_half_file(start, tmp_path, size_kib, holds) -> None:
    """A disk that takes one small file, and one that cannot take the first fabric's results."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(disk)], check=True)
    try:
        short = ["--set", "workload.window_s=3", "--set", "workload.warmup_s=0"]
        run = start(disk / "run", *short)
        code = run.ended(60)
        assert code == 1, run.said()
        assert "cannot write" in run.said()
        assert "No space left on device" in run.said()
        assert "Traceback" not in run.said()
        assert not list(disk.rglob("*.tmp")), "half a file"
        assert (disk / "run" / "config.yaml").exists()
        assert (disk / "run" / "provenance.json").exists() == holds
        for path in disk.rglob("*.json"):
            json.loads(path.read_text())
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_twenty_random_kills_in_a_row_leave_nothing_after_clean(start) -> None:
    """Each next run removes what the one killed before it left; `clean` removes the last one's."""
    moments = random.Random(6)
    for _ in range(20):
        run = start()
        # the first second is Python's start; in the fourth the first fabric is connected
        time.sleep(moments.uniform(0.8, 4.0))
        run.process.kill()
        run.process.wait(10)
        assert "Traceback" not in run.said(), run.said()
    deadline_s = time.monotonic() + 5
    while parts() and time.monotonic() < deadline_s:  # the kernel ends them with their parent, but not in zero time
        time.sleep(0.02)
    clean()
