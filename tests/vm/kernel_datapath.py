"""What a booted machine does with the kernel's datapath: `kernel_datapath.py RESULT PART...`. RESULT says what came of
each part; whatever raises ends the machine with its traceback on the console.

    doctor       what this kernel has
    circuits     a small experiment over optical circuits: agents, controller, Open vSwitch
    link_delay   netem on every link of a leaf-spine, by the round trip of a packet
    dark_time    circuits swapped under streams of frames: no frame may cross in the dark

Each part imports what it needs: an emulated processor takes half a minute for all of it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "packets")]

from emulation.doctor.preflight import capabilities, choose_datapath  # noqa: E402
from emulation.linux.ledger import RunLedger  # noqa: E402

EXPERIMENT = ROOT / "experiments" / "datapaths.yaml"
CIRCUITS = 1  # of its fabrics
ROUNDS = 8
LINK_DELAY_S = 0.02  # long beside what eight hops cost an emulated processor


def doctor(scratch: Path) -> dict[str, Any]:
    return {capability.name: asdict(capability) for capability in capabilities()}


def circuits(scratch: Path) -> dict[str, Any]:
    from emulation.plan.fabric_plan import FabricPlan
    from emulation.run.fabric_run import FabricRun
    from experiments.schema.spec import load

    experiment = load(EXPERIMENT, ["workload.window_s=3"])
    requests = tuple(experiment.arrivals(1).requests)
    plan = FabricPlan(experiment, experiment.fabrics[CIRCUITS], 1, requests)
    with RunLedger.open("vm") as ledger:
        silent: Callable[..., None] = lambda *_: None  # noqa: E731
        result = FabricRun(plan, ledger, choose_datapath(), report=print, progress=silent, keep_logs=scratch).run()
    frames = result.frames
    return {
        "failure": result.failure,
        "fidelity": result.fidelity,
        "offered": len(requests),
        "completed": int((frames.requests["status"] == "completed").sum()),
        "switched": int(frames.circuits["needs_switch"].sum()),
        "goodput_bps": plan.kv_goodput_bps,
    }


def link_delay(scratch: Path) -> dict[str, float]:
    from emulation.network.testbed import Testbed
    from emulation.probe.link import ProbedPath as ProbePath
    from emulation.probe.link import round_trip_s
    from topologies.leaf_spine import LeafSpine

    found = {}
    for name, delay_s in (("without", 0.0), ("with", LINK_DELAY_S)):
        with RunLedger.open("vm") as ledger:
            testbed = Testbed(
                LeafSpine(racks=2, hosts_per_rack=1, uplinks=1, goodput_bps=9e6), ledger, link_delay_s=delay_s
            )
            with testbed.build():
                ends = testbed.namespace("h0"), testbed.namespace("h1")
                path = ProbePath(ends[0], "10.0.0.1", ends[1], "10.0.1.1")
                found[f"{name}_s"] = round_trip_s(path, rounds=10)
    return found


def dark_time(scratch: Path) -> dict[str, Any]:
    import test_dark_time
    from circuit_switch import CircuitSwitch

    # Frames a millisecond apart, which an emulated processor sends and receives, and time for some over each circuit;
    # its only processor is not for the sender alone.
    test_dark_time.IN_TIME = ()
    test_dark_time.ROUNDS, test_dark_time.PERIOD_S, test_dark_time.HOLD_S = ROUNDS, 0.001, 0.02
    switch = CircuitSwitch(
        scratch, test_dark_time.PREFILLS, test_dark_time.DECODES, test_dark_time.FABRIC, datapath=choose_datapath()
    )
    try:
        switch.start()
        observed = test_dark_time.swap_under_streams(switch)
    finally:
        switch.stop()
    return {
        **observed.figures(),
        "switches": len(observed.switches),
        "leaks_s": observed.leaks_s(),
        "faults": observed.faults,
        "dark_s": observed.dark_times_s(),
    }


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    part.__name__: part for part in (doctor, circuits, link_delay, dark_time)
}


def main() -> None:
    result: dict[str, Any] = {"datapath": choose_datapath()}
    for name in sys.argv[2:]:
        part = PARTS[name]
        with tempfile.TemporaryDirectory(prefix="hg-", dir="/run") as scratch:
            result[part.__name__] = part(Path(scratch))
        print(f"kernel_datapath: {part.__name__}: done", flush=True)
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1, default=str))


if __name__ == "__main__":
    main()
