"""Drills: parts of a run that are killed, frozen or starved of disk, and a run that is killed itself, at every moment.

After each of them nothing of the run remains, its artifacts say what was lost, and what stood beside it still stands: a
foreign namespace, a foreign bridge and another Open vSwitch. Some drills go on at a time: most of a drill is waiting.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from bystander import Bystander, standing_beside
from drill_runs import ENDED_S, Lane, Run, tried

LANES = 3
INVALID = 3
FREEZE, KILL = signal.SIGSTOP, signal.SIGKILL
CIRCUITS = "{name: circuits, kind: ocs, reconfiguration_ms: 25}"
EXPERIMENT = f"""\
name: drill
cluster: {{prefill_instances: 2, decode_instances: 1, gpus_per_instance: 1, instances_per_rack: 2}}
model: {{name: llama-3.1-70b, tp: 4}}
transfer: pull
workload:
  window_s: 1
  warmup_s: 0
  tenants:
    - {{name: agentic, source: synthetic-agentic, load: 0.5}}
fabrics:
  - {CIRCUITS}
  - {{name: packets, kind: eps, oversubscription: 2}}
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="packets need network namespaces, which need root")


# -- moments ---------------------------------------------------------------------------------------------------------


def build(run: Run) -> None:
    run.wait_for("circuits: build")


def connect(run: Run) -> None:
    run.wait_for("circuits: connect")


def clock(run: Run) -> None:
    run.wait_for(" s  sent ")
    time.sleep(0.8)


@dataclass(frozen=True)
class Moment:
    """A moment of a run: what makes it last, and how to wait for it."""

    name: str
    options: tuple[str, ...]
    reach: Callable[[Run], None]

    def __str__(self) -> str:
        return self.name


MOMENTS = (
    Moment("build", (), build),
    Moment("warm-up", ("--set", "workload.warmup_s=60"), clock),
    Moment("run", ("--set", "workload.window_s=60"), clock),
    Moment("tear-down", ("--set", f"fabrics=[{CIRCUITS}]"), Run.wait_for_the_last_request),
)
CONNECT = Moment("connect", ("--set", "workload.window_s=60"), connect)


# -- drills ----------------------------------------------------------------------------------------------------------

PARTS = {
    "agent": "emulation.agents.zygote",
    "parent of the agents": "emulation.agents.zygote",
    "controller": "ryu_app/manager.py",
    "ovsdb-server": "ovsdb-server",
    "ovs-vswitchd": "ovs-vswitchd",
}


@dataclass(frozen=True)
class Part:
    """A part of the run is frozen, or killed."""

    part: str
    number: signal.Signals
    moment: Moment

    def _pid(self, run: Run) -> int:
        return run.agents(2)[1] if self.part == "agent" else run.part(PARTS[self.part])

    def __str__(self) -> str:
        return f"{self.part} {'frozen' if self.number == FREEZE else 'killed'} at {self.moment}"

    def __call__(self, lane: Lane) -> None:
        run = lane.start(EXPERIMENT, *self.moment.options)
        at_the_end = self.moment.name == "tear-down"
        # the tear-down is too short to look for an agent in it
        process = os.pidfd_open(self._pid(run)) if at_the_end else None
        self.moment.reach(run)
        process = os.pidfd_open(self._pid(run)) if process is None else process
        with contextlib.suppress(ProcessLookupError):  # at the tear-down it may have gone in order
            signal.pidfd_send_signal(process, self.number)
        os.close(process)
        status = run.ended(ENDED_S)
        entry = run.fabric("circuits")
        if at_the_end:
            # The last request was served: what is lost now can only hold up the end. What the gateway said last goes
            # through the parent of the agents.
            assert entry["requests"]["completed"] > 0 or self.part == "parent of the agents"
            return
        says = self.part.replace("parent of the agents", "agent")
        assert status == 1, run.said()
        assert says in run.said().partition("ended early:")[2], run.said()
        assert entry["verdict"] == "invalid"
        assert any(says in reason for reason in entry["reasons"]), entry["reasons"]
        ended = run.summary()["ended_early"]
        assert ended["fabric"] == "circuits"
        assert ended["not_run"] == [{"fabric": "packets", "seed": 1}]
        assert (run.artifacts / "report.html").is_file()


@dataclass(frozen=True)
class Signal:
    """The run is interrupted, or told to end."""

    number: signal.Signals
    moment: Moment

    def __str__(self) -> str:
        return f"{self.number.name} at {self.moment}"

    def __call__(self, lane: Lane) -> None:
        # at the tear-down too, the next fabric must not begin
        run = lane.start(EXPERIMENT, *(self.moment.options if self.moment.name != "tear-down" else ()))
        self.moment.reach(run)
        run.signal(self.number)
        time.sleep(0.1)
        run.signal(signal.SIGTERM)  # an impatient second one changes nothing
        assert run.ended(ENDED_S) == 128 + self.number, run.said()
        assert f"interrupted by {self.number.name}" in run.said()
        assert "packets: build" not in run.said()
        entry = run.fabric("circuits")
        ended = run.summary()["ended_early"]
        assert ended == {
            "fabric": "circuits",
            "seed": 1,
            "reason": f"interrupted by {self.number.name}",
            "not_run": [{"fabric": "packets", "seed": 1}],
        }
        assert (run.artifacts / "report.html").is_file()
        if self.moment.name == "tear-down":
            assert entry["requests"]["completed"] > 0
        else:
            assert entry["requests"]["unfinished"] > 0
            assert f"interrupted by {self.number.name}" in entry["reasons"]


@dataclass(frozen=True)
class Impatience:
    """Ctrl-C in the terminal, which reaches everybody who runs in it, again and again."""

    moment: Moment

    def __str__(self) -> str:
        return f"six times Ctrl-C at {self.moment}"

    def __call__(self, lane: Lane) -> None:
        run = lane.start(EXPERIMENT, *(self.moment.options if self.moment.name != "tear-down" else ()))
        self.moment.reach(run)
        for pause_s in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
            time.sleep(pause_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGINT)
        assert run.ended(ENDED_S) == 128 + signal.SIGINT, run.said()
        assert run.said().count("interrupted by SIGINT") == 1, run.said()
        assert "everything the run had made is removed" in run.said()
        assert run.summary()["ended_early"]["reason"] == "interrupted by SIGINT"


@dataclass(frozen=True)
class FullDisk:
    """The disk of the artifacts, or that of /run, has no room left from a moment on."""

    where: str
    moment: Moment

    def __str__(self) -> str:
        return f"disk of {self.where} full at {self.moment}"

    def __call__(self, lane: Lane) -> None:
        disk = lane.base if self.where == "run" else lane.folder / "disk"
        disk.mkdir(parents=True, exist_ok=True)
        at_once = self.moment.name == "build"
        size = "48k" if at_once else "64m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=755,size={size}", "tmpfs", str(disk)], check=True)
        try:
            artifacts = disk / "artifacts" if self.where == "artifacts" else None
            # long enough to be filled in the middle, short enough to be waited for: some of it shows at the end only
            warmup_s, window_s = (2, 1) if self.moment.name == "warm-up" else (0, 3)
            lengths = ("--set", f"workload.warmup_s={warmup_s}", "--set", f"workload.window_s={window_s}")
            options = (*lengths, "--set", f"fabrics=[{CIRCUITS}]", "--pcap")
            run = lane.start(EXPERIMENT, *options, artifacts=artifacts)
            if not at_once:
                self.moment.reach(run)
                fill(disk)
            # what is not written to is missed at the end at the latest
            status = run.ended(3 * ENDED_S)
            if self.where == "run" and self.moment.name == "tear-down":
                assert run.fabric("circuits")["requests"]["completed"] > 0
                return
            assert status == 1, run.said()
            assert "No space left on device" in run.said(), run.said()
            for path in run.artifacts.rglob("*.json"):
                json.loads(path.read_text())
            assert not lane.left()
        finally:
            lane.stop()
            subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path) -> None:
    """Take what room there is."""
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def twenty_kills(lane: Lane) -> None:
    """Five runs in a row killed at each moment; each next run removes what the one before left, `clean` the last."""
    delays = random.Random(6)
    for moment in MOMENTS * 5:
        run = lane.start(EXPERIMENT, *moment.options)
        if delays.random() < 0.75:
            moment.reach(run)
        time.sleep(delays.uniform(0, 0.5))
        run.signal(KILL)
        assert run.over(ENDED_S)
        assert "Traceback" not in run.said(), run.said()
    lane.wait_until_parts_are_gone()
    lane.note()
    lane.clean()


DRILLS: list[Callable[[Lane], None]] = [
    twenty_kills,
    *(Part(part, FREEZE, moment) for part in PARTS for moment in MOMENTS),
    *(Part(part, KILL, moment) for part in PARTS for moment in MOMENTS),
    Part("controller", FREEZE, CONNECT),  # while the run waits for its answer
    Part("agent", KILL, CONNECT),
    *(Signal(number, moment) for number in (signal.SIGINT, signal.SIGTERM) for moment in MOMENTS),
    *(Signal(number, moment) for number in (signal.SIGHUP, signal.SIGQUIT) for moment in MOMENTS[2:]),
    *(Impatience(moment) for moment in (MOMENTS[0], CONNECT, MOMENTS[2], MOMENTS[3])),
    *(FullDisk(where, moment) for where, moment in itertools.product(("artifacts", "run"), MOMENTS)),
]


def name(drill: object) -> str:
    return str(getattr(drill, "__name__", drill)).replace(" ", "-")


class Lanes:
    """The drills that are wanted, a few at a time; each is tried again when its result is asked for again."""

    def __init__(self, folder: Path, wanted: list[Callable[[Lane], None]]) -> None:
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        self._lanes = [Lane(folder / f"lane{number}") for number in range(min(LANES, len(wanted)))]
        for lane in self._lanes:
            self._free.put(lane)
        self._threads = ThreadPoolExecutor(LANES)
        self._results = {name(drill): self._submit(drill) for drill in wanted}

    def _submit(self, drill: Callable[[Lane], None]) -> Future[None]:
        return self._threads.submit(self._in_a_lane, drill)

    def _in_a_lane(self, drill: Callable[[Lane], None]) -> None:
        lane = self._free.get()
        try:
            tried(drill, lane)
            assert not lane.left()
        finally:
            self._free.put(lane)

    def result(self, drill: Callable[[Lane], None]) -> None:
        """Raises what the drill has raised."""
        future = self._results.pop(name(drill), None) or self._submit(drill)
        future.result()

    def close(self) -> list[str]:
        """End the lanes; what their runs have left."""
        self._threads.shutdown(cancel_futures=True)
        left = []
        for lane in self._lanes:
            try:
                left += lane.left()
            finally:
                lane.close()
        return left


@pytest.fixture(scope="module")
def bystander() -> Iterator[Bystander]:
    with standing_beside() as found:
        yield found


@pytest.fixture(scope="module")
def lanes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, bystander: Bystander
) -> Iterator[Lanes]:
    hurried = Path("/sys/kernel/rcu_expedited")
    before = hurried.read_text() if hurried.exists() else ""
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    lanes = Lanes(tmp_path_factory.mktemp("drills"), [item.callspec.params["drill"] for item in items])
    yield lanes
    assert not lanes.close()
    assert (hurried.read_text() if hurried.exists() else "") == before


@pytest.mark.parametrize("drill", DRILLS, ids=name)
def test_what_is_lost_ends_the_run_and_nothing_else(
    lanes: Lanes, bystander: Bystander, drill: Callable[[Lane], None]
) -> None:
    lanes.result(drill)
    bystander.check()
