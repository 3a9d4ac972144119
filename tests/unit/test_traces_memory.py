"""A trace of a gigabyte is read in under 200 MB, whatever its format and compression.

Shown by how much a process grows from a small to a larger file. HELIOGRAPH_TRACE_MEGABYTES=1000 reads files of that
size instead (an hour), and holds the peak itself against the limit.
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
#: Megabytes of the two files: behind the first, what a reader makes once is there, at 65,536 rows at the latest.
#: One more arena of Python's allocator, of 1 MiB, is no growth: it must not reach the limit over the difference.
LONG_ROWS_MB, SHORT_ROWS_MB, SHORTEST_ROWS_MB = (4, 15), (5, 15), (3, 12)
SIZES_MB = dict.fromkeys(("mooncake", "bailian", "tracelab-rounds", "agentx"), LONG_ROWS_MB)
SIZES_MB |= dict.fromkeys(("tracelab", "vidur", "vidur-lengths"), SHORTEST_ROWS_MB)  # 31,000 a megabyte
PEAKS = """\
import sys
from workloads.traces.formats import open_trace
from workloads.traces.summary import summarise
for path in sys.argv[1:]:
    rows = summarise(open_trace(path))["rows_read"]
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(rows, 1024 * int(peak.split()[1]))
"""
# in turn, so that each compression meets rows long and short; all of them at full size
CASES = [
    (kind, compression)
    for number, kind in enumerate(large_traces.KINDS)
    for compression in (COMPRESSIONS if FULL_MB else COMPRESSIONS[number % 3 : number % 3 + 1])
]


def peaks(*paths: Path) -> list[tuple[int, int]]:
    """(rows, peak bytes of the process so far) after the summary of each file, in one process."""
    done = subprocess.run([sys.executable, "-c", PEAKS, *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    return [(int(rows), int(peak)) for rows, peak in map(str.split, done.stdout.splitlines())]


@pytest.mark.parametrize(("kind", "compression"), CASES)
def test_a_gigabyte_is_read_in_under_200_megabytes(tmp_path: Path, kind: str, compression: str) -> None:
    if FULL_MB:
        ((rows, peak_bytes),) = peaks(large_traces.write(tmp_path / "full", kind, FULL_MB, compression))
        print(f"{kind} {compression}: {FULL_MB} MB, {rows:,} rows, {peak_bytes / 1e6:.1f} MB")
        assert peak_bytes < LIMIT_BYTES
        return
    sizes_mb = SIZES_MB.get(kind, SHORT_ROWS_MB)
    small, big = (large_traces.write(tmp_path / str(size), kind, size, compression) for size in sizes_mb)
    (few, before_bytes), (many, after_bytes) = peaks(small, big)
    assert many > 2 * few
    per_mb = (after_bytes - before_bytes) / (sizes_mb[1] - sizes_mb[0])
    assert before_bytes + per_mb * GIGABYTE_MB < LIMIT_BYTES, (
        f"{before_bytes / 1e6:.1f}, then {after_bytes / 1e6:.1f} MB"
    )
