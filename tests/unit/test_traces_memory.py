"""A trace of a gigabyte is read in under 200 MB, whatever its format and compression.

Shown by how much more a process of its own needs for a larger file than for a small one.
HELIOGRAPH_TRACE_MEGABYTES=1000 reads files of that size instead (an hour), and holds the peak itself against the limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import large_traces
import pytest

ROOT = Path(__file__).parents[2]
LIMIT_BYTES, GIGABYTE_MB = 200e6, 1_000
FULL_MB = int(os.environ.get("HELIOGRAPH_TRACE_MEGABYTES", "0"))
COMPRESSIONS = ("plain", "gzip", "zstd")
#: Megabytes of the two files: behind the first, what a reader makes once is there, at 65,536 arrival times at the
#: latest. One more arena of Python's allocator (1 MiB) is no growth: it must not reach the limit over the difference.
LONG_ROWS_MB, SHORT_ROWS_MB = (5, 20), (3, 10)
SIZES_MB = dict.fromkeys(("mooncake", "bailian", "tracelab-rounds", "agentx"), LONG_ROWS_MB)
SIZES_MB["burstgpt"] = (7, 16)  # several rows have one time
PEAK = """\
import sys
from workloads.traces.formats import open_trace
from workloads.traces.summary import summarise
rows = summarise(open_trace(sys.argv[1]))["rows_read"]
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(rows, 1024 * int(peak.split()[1]))
"""
# in turn, so that each compression meets rows long and short; all of them at full size
CASES = [
    (kind, compression)
    for number, kind in enumerate(large_traces.KINDS)
    for compression in (COMPRESSIONS if FULL_MB else COMPRESSIONS[number % 3 : number % 3 + 1])
]


def peak(path: Path) -> tuple[int, int]:
    """(rows, peak bytes) of a process that makes the summary of the file and nothing else."""
    done = subprocess.run([sys.executable, "-c", PEAK, path], cwd=ROOT, capture_output=True, text=True, check=True)
    rows, peak_bytes = done.stdout.split()
    return int(rows), int(peak_bytes)


@pytest.mark.parametrize(("kind", "compression"), CASES)
def test_a_gigabyte_is_read_in_under_200_megabytes(tmp_path: Path, kind: str, compression: str) -> None:
    if FULL_MB:
        rows, peak_bytes = peak(large_traces.write(tmp_path / "full", kind, FULL_MB, compression))
        print(f"{kind} {compression}: {FULL_MB} MB, {rows:,} rows, {peak_bytes / 1e6:.1f} MB")
        assert peak_bytes < LIMIT_BYTES
        return
    sizes_mb = SIZES_MB.get(kind, SHORT_ROWS_MB)
    (few, before_bytes), (many, after_bytes) = (
        peak(large_traces.write(tmp_path / str(size), kind, size, compression)) for size in sizes_mb
    )
    assert many > 2 * few
    per_mb = (after_bytes - before_bytes) / (sizes_mb[1] - sizes_mb[0])
    assert before_bytes + per_mb * GIGABYTE_MB < LIMIT_BYTES, (
        f"{before_bytes / 1e6:.1f}, then {after_bytes / 1e6:.1f} MB"
    )
