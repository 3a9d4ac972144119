"""A soak: short runs, each with a part of it killed, stopped or told to end at a random moment, `clean` after each, and
a look whether anything is left. Root; nothing else may run here meanwhile.

    sudo .venv/bin/python scripts/soak.py                       # 100 runs of 3 s, half an hour
    sudo .venv/bin/python scripts/soak.py --runs 10 --seed 7    # the blows are those of the seed

Prints a row for each run and a table of how they ended. Exit status 1 where anything was left, a run hung, a traceback
was printed or `clean` failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from emulation.linux.ledger import BASE  # noqa: E402
from process.interrupts import Interrupted, interruptible  # noqa: E402

EXPERIMENT = """\
name: soak
cluster: {{prefill_instances: 2, decode_instances: 1, gpus_per_instance: 1, instances_per_rack: 2}}
model: {{name: llama-3.1-70b, tp: 4}}
transfer: pull
workload:
  window_s: {window_s:g}
  warmup_s: 0
  tenants:
    - {{name: agentic, source: synthetic-agentic, load: 0.5}}
fabrics:
  - {fabric}
"""
FABRICS = {
    "circuits": "{name: circuits, kind: ocs, reconfiguration_ms: 25}",
    "packets": "{name: packets, kind: eps, oversubscription: 2}",
}
#: Part -> words of its command line; the run itself is known by its process.
PARTS = {
    "the run": "",
    "an agent": "emulation.agents.zygote",
    "the agents' parent": "emulation.agents.zygote",
    "the controller": "ryu_app/manager.py",
    "ovs-vswitchd": "ovs-vswitchd unix:",  # not the one that is asked for its version
    "ovsdb-server": "ovsdb-server",
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGSTOP)
#: A run that was stopped is looked at again after so long, and killed: nothing else ends it.
STOPPED_S = 5.0
#: Of a run and of what it left; a busy machine is slow.
HUNG_S, GONE_S = 90.0, 10.0
MARK = "HELIOGRAPH_SOAK"


@dataclass(frozen=True, slots=True)
class Blow:
    """What strikes a run: which part, which signal, how many seconds after its start; "" strikes nothing."""

    fabric: str
    part: str
    number: signal.Signals
    at_s: float


def blows(count: int, seed: int, longest_s: float) -> list[Blow]:
    """Those of a seed. Circuits have every part, packets no Open vSwitch; one run in eight is left alone."""
    chance, found = random.Random(seed), []
    for _ in range(count):
        fabric = chance.choice(list(FABRICS))
        parts = [part for part in PARTS if fabric == "circuits" or not part.startswith("ovs")]
        part = chance.choice(parts) if chance.random() > 0.125 else ""
        found.append(Blow(fabric, part, chance.choice(SIGNALS), round(chance.uniform(0.0, longest_s), 2)))
    return found


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run could leave behind."""

    namespaces: frozenset[str]
    links: frozenset[str]
    mounts: frozenset[str]
    runs: frozenset[str]
    hurried: str

    @classmethod
    def now(cls) -> Machine:
        hurried = Path("/sys/kernel/rcu_expedited")
        return cls(
            frozenset(os.listdir("/run/netns") if Path("/run/netns").is_dir() else ()),
            frozenset(os.listdir("/sys/class/net")),
            frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
            frozenset(path.name for path in BASE.iterdir() if path.name != "lock") if BASE.is_dir() else frozenset(),
            hurried.read_text().strip() if hurried.exists() else "",
        )

    def since(self, before: Machine) -> list[str]:
        """What is there now and was not then, and settings that are others."""
        kinds = (("namespace", "namespaces"), ("link", "links"), ("mount", "mounts"), ("run directory", "runs"))
        found = [f"{kind} {name}" for kind, key in kinds for name in sorted(getattr(self, key) - getattr(before, key))]
        return found + ([f"rcu_expedited is {self.hurried}"] if self.hurried != before.hurried else [])


@dataclass
class Round:
    """One run and what became of it."""

    blow: Blow
    status: int | None = None
    struck: bool = False
    said: str = ""
    wrong: list[str] = field(default_factory=list)

    def row(self, number: int) -> str:
        blow, status = self.blow, "hung" if self.status is None else str(self.status)
        what = f"{blow.number.name} to {blow.part} at {blow.at_s:.2f} s" if blow.part else "left alone"
        late = "" if self.struck or not blow.part else " (was over)"
        return (
            f"{number:4d}  {blow.fabric:9s} {what + late:52s} {status:>5s}  {'; '.join(self.wrong) or 'nothing left'}"
        )


def marked(mark: str) -> Iterator[tuple[int, str]]:
    """(pid, command line) of every process that a run with this mark has started."""
    wanted = f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                yield int(path.name), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def victim(blow: Blow, run: subprocess.Popen[bytes], mark: str) -> int | None:
    """The process to strike; None where there is none (yet, or any more)."""
    if blow.part == "the run":
        return run.pid if run.poll() is None else None
    pids = sorted(pid for pid, words in marked(mark) if PARTS[blow.part] in words and pid != run.pid)
    if blow.part == "an agent":
        pids = pids[1:]  # the first is their parent
    return pids[0] if pids else None


def strike(blow: Blow, run: subprocess.Popen[bytes], mark: str) -> bool:
    """Wait for the moment, and for the part to be there, and strike; whether there was anything to strike."""
    time.sleep(blow.at_s)
    until_s = time.monotonic() + HUNG_S
    while (pid := victim(blow, run, mark)) is None:
        if run.poll() is not None or time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, blow.number)
        return True
    return False


def fight(blow: Blow, folder: Path, window_s: float) -> Round:
    """One run, its blow, and `clean`; what was wrong afterwards."""
    one, mark, before = Round(blow), f"{os.getpid()}-{time.monotonic_ns()}", Machine.now()
    (folder / "soak.yaml").write_text(EXPERIMENT.format(window_s=window_s, fabric=FABRICS[blow.fabric]))
    command = [sys.executable, str(ROOT / "cli.py"), "run", "soak.yaml", "--artifact-dir", str(folder / "run")]
    with (folder / "output").open("wb") as output:
        run = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env=os.environ | {MARK: mark}, start_new_session=True,
        )  # fmt: skip
    try:
        one.struck = bool(blow.part) and strike(blow, run, mark)
        if one.struck and blow.part == "the run" and blow.number == signal.SIGSTOP:
            time.sleep(STOPPED_S)
            run.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.status = run.wait(HUNG_S)
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
    one.said = (folder / "output").read_text(errors="replace")
    if one.status is None:
        one.wrong.append(f"still running after {HUNG_S:g} s")
    if "Traceback" in one.said.partition("\nheliograph: ")[0]:  # after it the last words of what was struck are quoted
        one.wrong.append("a traceback")
    cleaned = subprocess.run([sys.executable, str(ROOT / "cli.py"), "clean"], capture_output=True, text=True)
    if cleaned.returncode:
        one.wrong.append(f"clean: {cleaned.stderr.strip()}")
    one.wrong += left(before, mark)
    return one


def left(before: Machine, mark: str) -> list[str]:
    """What is there, and was not before the run, once what is about to end has had the time to."""
    until_s = time.monotonic() + GONE_S
    while True:
        found = [f"process {pid} ({words[:60]})" for pid, words in marked(mark)] + Machine.now().since(before)
        if not found or time.monotonic() > until_s:
            return found
        time.sleep(0.1)


def table(rounds: Sequence[Round]) -> str:
    """How the runs ended: for each part and signal the exit statuses, and how often."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for each in rounds:
        key = (each.blow.part, each.blow.number.name) if each.struck else ("nothing", "-")
        counts.setdefault(key, Counter())["hung" if each.status is None else str(each.status)] += 1
    lines = [f"{'struck':20s} {'signal':8s} ended with (how often)"]
    for (part, name), ended in sorted(counts.items()):
        lines.append(f"{part:20s} {name:8s} {', '.join(f'{status} ({n})' for status, n in sorted(ended.items()))}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--window-s", type=float, default=3.0)
    options = parser.parse_args()
    if os.geteuid():
        parser.error("a run makes network namespaces: run it with sudo")
    rounds: list[Round] = []
    try:
        with interruptible():
            for number, blow in enumerate(blows(options.runs, options.seed, options.window_s + 6.0), start=1):
                with tempfile.TemporaryDirectory(prefix="heliograph-soak-") as folder:
                    rounds.append(fight(blow, Path(folder), options.window_s))
                print(rounds[-1].row(number), flush=True)
                if rounds[-1].wrong:
                    print(rounds[-1].said[-2000:], flush=True)
    except Interrupted as error:
        print(f"{error} after {len(rounds)} runs", file=sys.stderr)
        return error.status
    wrong = sum(bool(each.wrong) for each in rounds)
    print(f"\n{table(rounds)}\n\n{len(rounds)} runs, {wrong} of them left something, hung or printed a traceback")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
