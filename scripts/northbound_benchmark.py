"""How fast the controller answers while a run is on: 250 events a second beside real packets (root).

    sudo .venv/bin/python scripts/northbound_benchmark.py [EXPERIMENT.yaml] [--set path.to.key=value]...
        [--fabric NAME] [--events-per-s 250] [--seconds N]

Runs one circuit fabric of an experiment (the demo's) as `./heliograph run` does, and offers the controller a load of
events of its own meanwhile, from the gateway's host, over the host network. The load books, switches and releases
windows for senders and receivers that the run does not have: they own ports of the circuit switch that nothing is
plugged into, so no request of the run ever waits for theirs. They share what is measured, the controller's process, and
the machine. Prints the latencies of the load's events, those of a plain echo beside the controller (what the machine
adds to anything), and how the run ended.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from emulation.doctor.preflight import choose_datapath  # noqa: E402
from emulation.linux.children import end, spawn  # noqa: E402
from emulation.linux.ledger import RunLedger  # noqa: E402
from emulation.plan.fabric_plan import FabricPlan  # noqa: E402
from emulation.run.controller_process import NORTHBOUND_PORT  # noqa: E402
from emulation.run.fabric_run import FabricResult, FabricRun  # noqa: E402
from experiments.schema.spec import Experiment, Fabric, SpecError, load  # noqa: E402
from scripts.northbound_load import lead_s  # noqa: E402
from topologies.cluster import Cluster  # noqa: E402

CLIENT = "scripts/northbound_load.py"
EVENTS_PER_S = 250
MOST_EVENTS_PER_S = 5000
PAIRS = {"load-p0": "load-d0", "load-p1": "load-d1"}
#: OpenFlow ports that no plane has; 0xff00 is the last one there may be.
FIRST_PORT = 0xFE00
#: The load begins when the run has begun, and ends before it: what that takes beside `lead_s`.
SETTLE_S = 1.0
P50_LIMIT_S, P99_LIMIT_S = 0.005, 0.025


@dataclass(frozen=True)
class LoadedPlan(FabricPlan):
    """A plan whose controller knows of the load's pairs besides its own instances."""

    def controller(self, cluster: Cluster, **told: Any) -> dict[str, Any]:
        """As the run's own, with the pairs added."""
        config = super().controller(cluster, **told)
        config["prefills"] = [*config["prefills"], *PAIRS]
        config["decodes"] = [*config["decodes"], *PAIRS.values()]
        config["reachable"] = {**config["reachable"], **{prefill: [decode] for prefill, decode in PAIRS.items()}}
        return config

    def switch_ports(self, cluster: Cluster) -> dict[str, dict[str, int]]:
        """As the run's own, with the pairs' on every plane."""
        names = [name for pair in PAIRS.items() for name in pair]
        added = {name: FIRST_PORT + number for number, name in enumerate(names)}
        return {bridge: ports | added for bridge, ports in super().switch_ports(cluster).items()}


@dataclass
class Latencies:
    """Seconds from when something was due to its answer."""

    samples_s: Sequence[float]

    @property
    def p50_s(self) -> float:
        return statistics.median(self.samples_s)

    @property
    def p99_s(self) -> float:
        """Nearest rank."""
        return sorted(self.samples_s)[-(-99 * len(self.samples_s) // 100) - 1]

    def __str__(self) -> str:
        figures = {"p50": self.p50_s, "p99": self.p99_s, "maximum": max(self.samples_s)}
        return ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in figures.items())


@dataclass
class Benchmark:
    """What one run and its load showed."""

    result: FabricResult
    offered: int
    answers: dict[str, int]
    refusals: list[str]
    events: Latencies
    echo: Latencies

    @property
    def within_limits(self) -> bool:
        """Whether every event was answered, none refused, and in time."""
        answered = self.answers == {"200": self.offered} and not self.refusals
        return answered and self.events.p50_s <= P50_LIMIT_S and self.events.p99_s <= P99_LIMIT_S

    def lines(self) -> list[str]:
        """For a human."""
        requests = self.result.frames.requests
        return [
            f"events of the load: {self.offered} offered, answered {self.answers}: {self.events}",
            f"  limits: p50 {P50_LIMIT_S * 1e3:g} ms, p99 {P99_LIMIT_S * 1e3:g} ms",
            f"echo beside the controller: {self.echo}",
            f"the run: {self.result.fidelity['verdict']}, {(requests['status'] == 'completed').sum()} of "
            f"{len(requests)} requests completed, {len(self.result.frames.circuits)} windows of both",
            *self.result.fidelity["reasons"],
            *self.refusals,
        ]


@dataclass
class _Load:
    """The client and the echo, started when the run's clock has started."""

    plan: FabricPlan
    ledger: RunLedger
    logs: Path
    events_per_s: float
    seconds: float
    ending: ExitStack
    client: subprocess.Popen[bytes] | None = None
    printed: Path = field(init=False)

    def __post_init__(self) -> None:
        self.printed = self.logs / "load.json"

    def progress(self, *state: float) -> None:
        """Called twice a second while the clock runs; the last two are elapsed and total run-clock seconds."""
        if self.client is None and state[-2] > 0:
            t0_s = time.monotonic() - self.plan.scale.wall_s(state[-2])
            self._start(t0_s)

    def _start(self, t0_s: float) -> None:
        host = self.plan.cluster().controller_ip
        log = self.logs / "load.out"
        command = [sys.executable, CLIENT, "--echo", host, "0"]
        controller, gateway = (f"{self.ledger.prefix}-{node}" for node in ("ctl", "gw"))
        echo = spawn(command, ledger=self.ledger, log=log, namespace=controller, stdout=subprocess.PIPE)
        self.ending.callback(end, echo)
        config = {
            "host": host,
            "port": NORTHBOUND_PORT,
            "t0_monotonic_s": t0_s,
            "time_dilation": self.plan.scale.time_dilation,
            "senders": list(PAIRS),
            "events_per_s": self.events_per_s,
            "seconds": self.seconds,
            "echo": [host, listening_port(echo)],
        }
        with self.printed.open("wb") as output:
            self.client = spawn(
                [sys.executable, CLIENT],
                ledger=self.ledger,
                log=log,
                namespace=gateway,
                stdin=subprocess.PIPE,
                stdout=output,
            )
        self.ending.callback(end, self.client)
        assert self.client.stdin is not None
        self.client.stdin.write(json.dumps(config).encode() + b"\n")
        self.client.stdin.close()


def listening_port(echo: subprocess.Popen[bytes]) -> int:
    """What an echo says first. ChildProcessError where it ended before."""
    assert echo.stdout is not None
    if not (line := echo.stdout.readline()):
        raise ChildProcessError("the echo beside the controller ended before it listened")
    return int(line)


def measure(
    experiment: Experiment,
    fabric: Fabric,
    ledger: RunLedger,
    logs: Path,
    *,
    events_per_s: float = EVENTS_PER_S,
    seconds: float | None = None,
) -> Benchmark:
    """Run a circuit fabric with the load beside it; `seconds` of load (wall), by default as long as the run.

    Raises RuntimeError where the run or the load did not get that far, with what was said.
    """
    plan = LoadedPlan(experiment, fabric, experiment.seeds[0], tuple(experiment.requests(experiment.seeds[0])))
    workload = experiment.workload
    settle_s = SETTLE_S + lead_s(len(PAIRS), plan.scale.time_dilation)
    whole_s = plan.scale.wall_s(workload.warmup_s + workload.window_s) - settle_s
    seconds = whole_s if seconds is None else seconds
    if not 1.0 <= seconds <= whole_s:
        raise RuntimeError(
            f"{seconds:g} s of load: this run leaves room for 1 to {whole_s:.1f} s; change workload.window_s"
        )
    with ExitStack() as ending:
        beside = _Load(plan, ledger, logs, events_per_s, seconds, ending)
        run = FabricRun(
            plan, ledger, choose_datapath(), report=lambda step: None, progress=beside.progress, keep_logs=logs
        )
        result = run.run()
    output = beside.printed.read_text() if beside.printed.exists() else ""
    if result.failure or not output:
        said = (logs / "load.out").read_text()[-1000:] if (logs / "load.out").exists() else ""
        raise RuntimeError(f"the run said: {result.failure}; the load said: {said or output or 'nothing'}")
    found = json.loads(output)
    if not (found["latencies_s"] and found["echo_s"]):
        raise RuntimeError(f"none of {found['offered']} events was answered: {found['refusals']}")
    latencies = Latencies(found["latencies_s"]), Latencies(found["echo_s"])
    return Benchmark(result, found["offered"], found["answers"], found["refusals"], *latencies)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 within the limits, 1 beyond them or where an event or the run failed, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="northbound_benchmark", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("experiment", nargs="?", type=Path, default=ROOT / "experiments" / "demo.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="path.to.key=value", help="override a key")
    parser.add_argument("--fabric", help="name of a circuit fabric (default: the first one)")
    parser.add_argument("--events-per-s", type=float, default=EVENTS_PER_S, help="of the load, all senders together")
    parser.add_argument("--seconds", type=float, help="wall seconds of load (default: as long as the run)")
    asked = parser.parse_args(arguments)
    try:
        experiment = load(asked.experiment, asked.set)
    except SpecError as error:
        parser.error(str(error))
    circuits = {fabric.name: fabric for fabric in experiment.fabrics if fabric.kind == "ocs"}
    name = asked.fabric or next(iter(circuits), "")
    if name not in circuits:
        parser.error(f"--fabric {name!r}: {asked.experiment} has {', '.join(circuits) or 'none'} of kind ocs")
    if not 1 <= asked.events_per_s <= MOST_EVENTS_PER_S:
        parser.error(f"--events-per-s {asked.events_per_s:g}: 1 to {MOST_EVENTS_PER_S} are allowed")
    if os.geteuid():
        parser.error("a run makes network namespaces: run it with sudo")
    run_id = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-northbound"
    try:
        with tempfile.TemporaryDirectory(prefix="northbound-") as logs, RunLedger.open(run_id) as ledger:
            rates = {"events_per_s": asked.events_per_s, "seconds": asked.seconds}
            found = measure(experiment, circuits[name], ledger, Path(logs), **rates)
    except (RuntimeError, OSError) as error:
        print(f"northbound_benchmark: {error}", file=sys.stderr)
        return 1
    print(f"beside a run of {experiment.name}, {name}, at {asked.events_per_s:g} events/s")
    print("\n".join(found.lines()))
    return 0 if found.within_limits else 1


if __name__ == "__main__":
    sys.exit(main())
