"""What a run costs against its size, and the largest cluster that stays valid on this machine (root).

    sudo .venv/bin/python scripts/scale_benchmark.py [--gpus 8,16,32,64,128] [--dilations 1,2,4]
        [--fabrics eps-2to1-ecmp,ocs-25ms] [--window-s 10] [--artifact-dir DIR] [--largest-only]

Runs one fabric of experiments/paper/slice.yaml after another with `./heliograph run`, at every size and dilation: half
of the GPUs prefill and half decode, four to an instance, so 128 are the paper's slice. Writes scale.csv and scale.png,
and prints the table: CPU seconds of the run for each emulated gigabyte of KV (all cores, what other programs took not
counted), what the processes weigh, what was late, and the verdict. Run it on a machine that does nothing else.

`--largest-only` goes down from the largest cluster and stops at the first that is valid. Without --artifact-dir every
benchmark has a new directory, results/runs/TIME-scale; one that was interrupted goes on where it was when it is given
its directory, on the same machine, with the same code and window.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import psutil

from inputs import json_file, yaml_file

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from inputs import csv_file  # noqa: E402
from process.interrupts import Interrupted, interruptible, shielded  # noqa: E402
from results.records.artifacts import ArtifactError, sha256, write_text  # noqa: E402
from sweeps.axes import SweepError  # noqa: E402
from sweeps.grid import GridDirectory  # noqa: E402
from sweeps.source import source_digest  # noqa: E402

SLICE = ROOT / "experiments" / "paper" / "slice.yaml"
GPUS_PER_INSTANCE = 4
WARMUP_S = 2
#: Proportional set sizes are read this often: a process's pages are walked for it.
MEMORY_EVERY_S = 5.0
#: What others may take of a machine that is called quiet.
QUIET_PERCENT = 10.0


@dataclass(frozen=True)
class Row:
    """One run. cpu_s: core-seconds of the run between the clock's start and its end; emulated_gb: KV that arrived;
    cpu_percent, foreign_percent: of the whole machine; agents_percent and the next two: of one core."""

    fabric: str
    gpus: int
    time_dilation: float
    verdict: str
    completed: int
    emulated_gb: float
    cpu_s: float
    cpu_s_per_gb: float
    cpu_percent: float
    foreign_percent: float
    agents_percent: float
    controller_percent: float
    vswitchd_percent: float
    memory_mib: float
    arrival_lag_p99_ms: float
    prefill_lateness_p99_ms: float
    dropped_packets: float
    build_s: float
    connect_s: float
    run_s: float
    teardown_s: float
    reasons: str


class Memory(threading.Thread):
    """Watches a process and all its descendants: `peak_mib` is the largest sum of their proportional set sizes."""

    def __init__(self, pid: int) -> None:
        super().__init__(name="memory", daemon=True)
        self._root = psutil.Process(pid)
        self._ended = threading.Event()
        self.peak_mib = 0.0

    def run(self) -> None:
        while not self._ended.wait(MEMORY_EVERY_S):
            self.peak_mib = max(self.peak_mib, sum(self._sizes_mib()))

    def _sizes_mib(self) -> Iterator[float]:
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return
        for process in processes:
            try:
                yield process.memory_full_info().pss / 2**20
            except psutil.Error:
                continue

    def stop(self) -> None:
        self._ended.set()
        self.join()


def run(fabric: str, gpus: int, dilation: float, window_s: float, directory: Path) -> Row:
    """One run, from nothing to its row. A run that its machine cannot carry is a row too."""
    instances = gpus // GPUS_PER_INSTANCE // 2
    changes = {
        "cluster.prefill_instances": instances,
        "cluster.decode_instances": instances,
        "scale.time_dilation": dilation,
        "workload.window_s": window_s,
        "workload.warmup_s": WARMUP_S,
        "fabrics": f"[{json.dumps(_fabric(fabric))}]",
    }
    command = [sys.executable, str(ROOT / "cli.py"), "run", str(SLICE), "--artifact-dir", str(directory)]
    command += [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    memory_mib = attend(command, directory.parent / f"{directory.name}.log")
    return _row(fabric, gpus, dilation, directory, memory_mib)


def attend(command: Sequence[str], log: Path) -> float:
    """Run a command to its end, its output in `log`; the most memory it had, MiB. An interrupt is handed on to it
    and raised when it has ended: it has a network to remove."""
    child: subprocess.Popen[bytes] | None = None
    memory: Memory | None = None
    try:
        with log.open("wb") as output, shielded():
            # in a session of its own: Ctrl-C in the terminal reaches us alone
            child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        memory = Memory(child.pid)
        memory.start()
        child.wait()
        return memory.peak_mib
    except KeyboardInterrupt:
        if child is not None:
            child.send_signal(signal.SIGINT)
            child.wait()
        raise
    finally:
        if memory is not None and memory.is_alive():
            memory.stop()


def _fabric(name: str) -> dict[str, Any]:
    fabrics = {fabric["name"]: fabric for fabric in yaml_file.read(SLICE).data["fabrics"]}
    if name not in fabrics:
        raise SystemExit(f"no fabric {name!r} in {SLICE}; there are {', '.join(fabrics)}")
    return dict(fabrics[name])


def _row(fabric: str, gpus: int, dilation: float, directory: Path, memory_mib: float) -> Row:
    where = directory / fabric / "seed1"
    try:
        fidelity = json_file.read_mapping(where / "fidelity.json")
    except FileNotFoundError:
        log = (directory.parent / f"{directory.name}.log").read_text(errors="replace")
        raise SystemExit(f"{fabric} with {gpus} GPUs did not run:\n{log[-2000:]}") from None
    measures = {measure["name"]: measure["emulated"] for measure in fidelity["measures"]}
    transfers = csv_file.table(where / "transfers.csv", ["emulated_bytes", "last_byte_s"])
    arrived = [float(emulated_bytes) for _, (emulated_bytes, last_byte_s) in transfers if last_byte_s]
    completed = sum(status == "completed" for _, (status,) in csv_file.table(where / "requests.csv", ["status"]))
    times_s = fidelity["timings_s"]

    def measure(start: str) -> float:
        return float(next((value for name, value in measures.items() if name.startswith(start) and value), 0.0))

    cpu_percent, foreign_percent = measure("CPU, mean of all cores"), measure("CPU taken by other programs")
    cpu_s = max(0.0, cpu_percent - foreign_percent) / 100 * (os.cpu_count() or 1) * times_s.get("run", 0.0)
    emulated_gb = sum(arrived) / 1e9
    return Row(
        fabric=fabric,
        gpus=gpus,
        time_dilation=dilation,
        verdict=fidelity["verdict"],
        completed=completed,
        emulated_gb=round(emulated_gb, 4),
        cpu_s=round(cpu_s, 2),
        cpu_s_per_gb=round(cpu_s / emulated_gb, 1) if emulated_gb else 0.0,
        cpu_percent=round(cpu_percent, 1),
        foreign_percent=round(foreign_percent, 1),
        agents_percent=round(measure("CPU of the agents"), 1),
        controller_percent=round(measure("CPU of controller"), 1),
        vswitchd_percent=round(measure("CPU of ovs-vswitchd"), 1),
        memory_mib=round(memory_mib),
        arrival_lag_p99_ms=round(measure("arrival lag p99"), 2),
        prefill_lateness_p99_ms=round(measure("prefill timer lateness p99"), 2),
        dropped_packets=measure("packets dropped"),
        **{f"{step}_s": round(times_s.get(step, 0.0), 2) for step in ("build", "connect", "run", "teardown")},
        reasons="; ".join(fidelity["reasons"]),
    )


def written(path: Path) -> list[Row]:
    """Rows of an earlier, interrupted benchmark."""
    if not path.is_file():
        return []
    kinds: dict[str, Any] = {"int": int, "float": float, "str": str}
    columns = [kinds[str(field.type)] for field in fields(Row)]
    table = csv_file.table(path, [field.name for field in fields(Row)])
    return [Row(*(kind(cell) for kind, cell in zip(columns, cells, strict=True))) for _, cells in table]


def write(path: Path, rows: Sequence[Row]) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(row) for row in rows)
    write_text(path, text.getvalue())


def largest_valid(rows: Sequence[Row], fabric: str, dilation: float) -> int | None:
    """GPUs of the largest cluster that stayed valid; None where none did."""
    return max(
        (row.gpus for row in rows if (row.fabric, row.time_dilation, row.verdict) == (fabric, dilation, "valid")),
        default=None,
    )


def setting(window_s: float) -> dict[str, Any]:
    """What rows of one table have to have in common, beside the columns that tell them apart."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "schema": 1,
        "window_s": window_s,
        "warmup_s": WARMUP_S,
        "experiment": sha256(SLICE),
        "benchmark": sha256(Path(__file__)),
        "source": source_digest("emulation"),
        "machine": {
            "kernel": platform.release(),
            "processor": model.partition(":")[2].strip() or platform.machine(),
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30),
        },
    }


def benchmark(options: argparse.Namespace, directory: Path) -> list[Row]:
    """Every run that was asked for and is not in the table of the directory yet; the whole table."""
    table = directory / "scale.csv"
    if rows := written(table):
        print(f"{len(rows)} runs of {table} are shown again, not measured again", flush=True)
    show("fabric", "GPUs", "dilation", "GB", "CPU s/GB", "CPU %", "MiB", "build s", "verdict")
    for fabric in options.fabrics.split(","):
        for dilation in options.dilations:
            for gpus in sorted(options.gpus, reverse=True):
                known = [row for row in rows if (row.fabric, row.gpus, row.time_dilation) == (fabric, gpus, dilation)]
                place = directory / f"{fabric}-{gpus}-x{dilation}-{time.strftime('%H%M%S')}"
                row = known[0] if known else run(fabric, gpus, dilation, options.window_s, place)
                rows += [] if known else [row]
                write(table, rows)
                figures = f"{row.emulated_gb:.2f}", f"{row.cpu_s_per_gb:.1f}", f"{row.cpu_percent:.0f}", row.memory_mib
                show(fabric, gpus, dilation, *figures, f"{row.build_s:.1f}", f"{row.verdict}  {row.reasons[:120]}")
                if options.largest_only and row.verdict == "valid":
                    break
            largest = largest_valid(rows, fabric, dilation)
            print(f"largest valid cluster: {fabric} at dilation {dilation:g}: {largest or 'none'} GPUs", flush=True)
    return rows


def draw(rows: Sequence[Row], path: Path) -> None:
    """CPU for each emulated gigabyte, and the load of the machine, against size: a line for each fabric and dilation;
    a hollow marker is a run that was not valid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, fabric in enumerate(dict.fromkeys(row.fabric for row in rows)):
        for style, dilation in zip("ovs^D", sorted({row.time_dilation for row in rows}), strict=False):
            line = sorted(
                (row for row in rows if (row.fabric, row.time_dilation) == (fabric, dilation)), key=lambda row: row.gpus
            )
            for axes, values in (
                (left, [row.cpu_s_per_gb for row in line]),
                (right, [row.cpu_percent for row in line]),
            ):
                sizes, colour = [row.gpus for row in line], f"C{number}"
                axes.plot(sizes, values, color=colour, linewidth=1.2, alpha=0.6)
                for row, value in zip(line, values, strict=True):
                    face = colour if row.verdict == "valid" else "none"
                    axes.plot(row.gpus, value, style, markerfacecolor=face, markeredgecolor=colour, markersize=6)
                axes.plot([], [], style, color=colour, label=f"{fabric}, dilation {dilation:g}")
    left.set(ylabel="CPU seconds per emulated gigabyte", ylim=(0, None))
    right.set(ylabel="CPU of the machine, %", ylim=(0, 105))
    for axes in (left, right):
        axes.set(xlabel="emulated GPUs (hollow: not valid)", xscale="log")
        axes.set_xticks(sorted({row.gpus for row in rows}), [str(n) for n in sorted({row.gpus for row in rows})])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    left.legend(fontsize=7)
    figure.savefig(path)


def show(fabric: str, *values: object) -> None:
    """One line of the table."""
    print(f"{fabric:<18}" + "".join(f"{value!s:>9}" for value in values[:-1]) + f"  {values[-1]}", flush=True)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=numbers, default=[8, 16, 32, 64, 128], help="multiples of 8")
    parser.add_argument("--dilations", type=numbers, default=[1, 2, 4])
    parser.add_argument("--fabrics", default="eps-2to1-ecmp,ocs-25ms", help="names in experiments/paper/slice.yaml")
    parser.add_argument("--window-s", type=float, default=10.0, help="measured window of each run, real seconds")
    parser.add_argument("--artifact-dir", type=Path, help="new, empty, or that of a benchmark to go on with")
    parser.add_argument("--largest-only", action="store_true", help="stop at the first valid cluster, from the largest")
    options = parser.parse_args()
    if odd := [gpus for gpus in options.gpus if gpus < 8 or gpus % 8]:
        parser.error(f"--gpus {odd[0]}: give multiples of 8 (an instance of 4 prefills, another decodes)")
    if os.geteuid():
        parser.error("a run makes network namespaces: run it with sudo")
    try:
        directory = GridDirectory.create_or_resume("scale", setting(options.window_s), options.artifact_dir).path
    except (ArtifactError, SweepError) as error:
        parser.error(f"--artifact-dir: {error}")
    try:
        with interruptible():
            rows = benchmark(options, directory)
    except Interrupted as error:
        print(f"{error}: the run has removed what it made; --artifact-dir {directory} goes on", file=sys.stderr)
        return error.status
    if (most := max(row.foreign_percent for row in rows)) > QUIET_PERCENT:
        print(
            f"other programs took up to {most:.0f} % of the processors: verdicts say so, and these are no measurements"
        )
    draw(rows, directory / "scale.png")
    print(f"{directory / 'scale.csv'} and scale.png beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
