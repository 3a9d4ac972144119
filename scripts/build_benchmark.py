"""How long the paper's slice takes to build and to remove, on this machine (root).

    sudo .venv/bin/python scripts/build_benchmark.py [--rounds 3] [--gpus 128]

128 GPUs in 32 instances, with their host network and each of the fabrics of experiments/paper/slice.yaml: namespaces,
links, addresses, qdiscs and circuit switches, everything read back. Prints, for each fabric, the median seconds of the
build and of the teardown, the CPU seconds of the build, and what was built. Stock Mininet takes 20 s for 128 hosts with
static ARP.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from emulation.doctor.preflight import choose_datapath  # noqa: E402
from emulation.linux.ledger import RunLedger  # noqa: E402
from emulation.network.testbed import Testbed  # noqa: E402
from emulation.plan.fabric_plan import FabricPlan  # noqa: E402
from experiments.schema.spec import load  # noqa: E402
from topologies.cluster import Cluster  # noqa: E402

SLICE = ROOT / "experiments" / "paper" / "slice.yaml"


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def build_once(cluster: Cluster, ledger: RunLedger) -> tuple[float, float, float]:
    """Seconds to build, CPU seconds of that, seconds to remove."""
    testbed = Testbed(cluster, ledger, choose_datapath())
    began_s, began_cpu_s = time.monotonic(), cpu_s()
    testbed.build(controller_listens=False)
    built_s, built_cpu_s = time.monotonic(), cpu_s()
    testbed.close()
    return built_s - began_s, built_cpu_s - began_cpu_s, time.monotonic() - built_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="builds of each fabric; the median is printed")
    parser.add_argument("--gpus", type=int, default=128, help="a multiple of 8")
    options = parser.parse_args()
    instances = options.gpus // 8
    experiment = load(SLICE, [f"cluster.{role}_instances={instances}" for role in ("prefill", "decode")])
    print(f"{'fabric':<20}{'build s':>9}{'CPU s':>8}{'teardown s':>12}{'namespaces':>12}{'links':>7}")
    with tempfile.TemporaryDirectory(prefix="hg-", dir="/run") as base:
        for fabric in experiment.fabrics:
            times = []
            for _ in range(options.rounds):
                cluster = FabricPlan(experiment, fabric, experiment.seeds[0], ()).cluster()
                with RunLedger.open("benchmark", base=Path(base)) as ledger:
                    times.append(build_once(cluster, ledger))
            build_s, build_cpu_s, teardown_s = (statistics.median(column) for column in zip(*times, strict=True))
            namespaces = len(cluster.hosts()) + bool(cluster.switches())
            print(
                f"{fabric.name:<20}{build_s:>9.2f}{build_cpu_s:>8.2f}{teardown_s:>12.2f}"
                f"{namespaces:>12}{len(cluster.links()):>7}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
