"""What the twin costs against cluster size and against requests: processor seconds of one core, and memory.

    .venv/bin/python scripts/twin_benchmark.py [--gpus 32,64,128,256] [--windows-s 41,82,165,330] [--fabrics NAME,...]
        [--transfers pull,layerwise] [--rounds 3] [--artifact-dir DIR]

Simulates experiments/twin-speed.yaml at every size with its whole window, and at 128 GPUs with every window, each in a
process of its own. Writes twin-speed.csv and twin-speed.png and prints the table. A time is the best of the rounds:
other programs can only make one longer, and on a shared core they do so by half.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from experiments.schema.spec import Experiment, load  # noqa: E402
from simulation.twin import Twin  # noqa: E402

SPEC = ROOT / "experiments" / "twin-speed.yaml"
GPUS, WINDOW_S = 128, 330.0
MIB = 1024  # ru_maxrss is in KiB


@dataclass(frozen=True)
class Row:
    """One fabric of one setting. cpu_s: of `Twin.run`, tables included; peak_mib: of the process; actions: of its
    clock; rates: flow rates computed."""

    gpus: int
    window_s: float
    transfer: str
    fabric: str
    requests: int
    cpu_s: float
    peak_mib: float
    actions: int
    rates: int


def setting(gpus: int, window_s: float, transfer: str) -> Experiment:
    """The experiment at another size: half of the GPUs prefill, racks of 32. Raises ValueError for an odd size."""
    if gpus < 16 or gpus % 16:
        raise ValueError(f"{gpus} GPUs: give a multiple of 16, nodes of 8 GPUs for either role")
    return load(
        SPEC,
        [
            f"cluster.prefill_instances={gpus // 8}",
            f"cluster.decode_instances={gpus // 8}",
            f"cluster.instances_per_rack={min(8, gpus // 8)}",
            f"workload.window_s={window_s}",
            f"transfer={transfer}",
        ],
    )


def measure(gpus: int, window_s: float, transfer: str, fabric_name: str, rounds: int) -> Row:
    """Simulate one fabric `rounds` times."""
    experiment = setting(gpus, window_s, transfer)
    (fabric,) = (fabric for fabric in experiment.fabrics if fabric.name == fabric_name)
    requests = experiment.requests(experiment.seeds[0])
    best_s = float("inf")
    for _ in range(rounds):
        began_s = time.process_time()
        result = Twin(experiment, fabric, experiment.seeds[0], requests).run()
        best_s = min(best_s, time.process_time() - began_s)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB
    return Row(
        gpus, window_s, transfer, fabric.name, len(requests), best_s, peak_mib, result.actions, result.flow_updates
    )


def draw(rows: Sequence[Row], path: Path) -> None:
    """Two panels: against GPUs with the whole window, against requests at 128 GPUs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    whole = max(row.window_s for row in rows)
    figure, (by_size, by_requests) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    colours: dict[str, str] = {}
    for number, fabric in enumerate(dict.fromkeys(row.fabric for row in rows)):
        colours[fabric] = f"C{number}"
    for transfer, style in (("pull", "--"), ("layerwise", "-")):
        for fabric, colour in colours.items():
            mine = [row for row in rows if (row.fabric, row.transfer) == (fabric, transfer)]
            sizes = sorted((row.gpus, row.cpu_s) for row in mine if row.window_s == whole)
            counts = sorted((row.requests, row.cpu_s) for row in mine if row.gpus == GPUS)
            for axes, points in ((by_size, sizes), (by_requests, counts)):
                if points:
                    axes.plot(
                        *zip(*points, strict=True), style, color=colour, marker="o", label=f"{fabric}, {transfer}"
                    )
    by_size.set(xlabel=f"GPUs ({whole:g} s window)", ylabel="processor seconds of one core")
    by_requests.set(xlabel=f"requests ({GPUS} GPUs)")
    for axes in (by_size, by_requests):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    by_size.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="32,64,128,256")
    parser.add_argument("--windows-s", default="41,82,165,330")
    parser.add_argument("--fabrics", default="eps-2to1-ecmp,eps-2to1-adaptive,eps-2to1-srpt,ocs-25ms,ceiling")
    parser.add_argument("--transfers", default="pull,layerwise")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--artifact-dir", type=Path, default=ROOT / "results" / "runs" / "twin-speed")
    options = parser.parse_args(argv)
    known = [fabric.name for fabric in load(SPEC).fabrics]
    fabrics = options.fabrics.split(",")
    if unknown := [name for name in fabrics if name not in known]:
        parser.error(f"no fabric {', '.join(unknown)} in {SPEC.name}: it has {', '.join(known)}")
    try:
        sizes = [int(text) for text in options.gpus.split(",")]
        windows_s = [float(text) for text in options.windows_s.split(",")]
        cells = dict.fromkeys([(gpus, WINDOW_S) for gpus in sizes] + [(GPUS, window_s) for window_s in windows_s])
        settings = [(*cell, transfer) for transfer in options.transfers.split(",") for cell in cells]
        for each in settings:
            setting(*each)
    except ValueError as error:
        parser.error(str(error))
    options.artifact_dir.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    # a process of its own for each: ru_maxrss never falls
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for gpus, window_s, transfer in settings:
            for fabric in fabrics:
                row = pool.apply(measure, (gpus, window_s, transfer, fabric, options.rounds))
                rows.append(row)
                print("  ".join(f"{value:.1f}" if isinstance(value, float) else str(value) for value in astuple(row)))
        pool.close()
        pool.join()
    with (options.artifact_dir / "twin-speed.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    draw(rows, options.artifact_dir / "twin-speed.png")
    print(f"{options.artifact_dir / 'twin-speed.csv'} and .png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
