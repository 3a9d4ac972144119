"""Every loader of tables and text meets 1,000 files of its kind: it reads what is right as it is, refuses what is wrong
with its file in one line, and never raises anything else.
"""

from __future__ import annotations

import csv
import gzip
import io
import struct
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli import app
from inputs.errors import InputError
from workloads.prefill_samples import read_samples
from workloads.traces.formats import open_trace
from workloads.traces.trace import TraceError

thousand = settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))
BAD_INPUT = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("attack")


def refused(path: Path, error: Exception) -> None:
    said = str(error)
    assert said.startswith(str(path))
    assert "\n" not in said
    assert said.isprintable()


# -- shapes of a table

ROWS = [["3.5", "10", "7"], ["4.25", "20", "8"], ["9", "30", "9"]]
COLUMNS = ["arrived_at", "num_prefill_tokens", "num_decode_tokens"]
HARMLESS, HARMFUL = "harmless", "harmful"
#: What is done to the cells, and whether the table still says the same.
CELL_CHANGES = {
    "nothing": (HARMLESS, lambda rows, at: rows),
    "another column": (HARMLESS, lambda rows, at: [[*row, f'a, "b"\n{i}'] for i, row in enumerate(rows)]),
    "a column without a name": (
        HARMLESS,
        lambda rows, at: [["" if i == 0 else "7", *row] for i, row in enumerate(rows)],
    ),
    "spaces": (HARMLESS, lambda rows, at: [[f" {cell} " for cell in row] for row in rows]),
    "upper case": (HARMLESS, lambda rows, at: [[cell.upper() for cell in row] for row in rows]),
    "other order": (HARMLESS, lambda rows, at: [row[::-1] for row in rows]),
    "floats": (HARMLESS, lambda rows, at: [rows[0], *([a, f"{b}.0", c] for a, b, c in rows[1:])]),
    "one cell more": (HARMFUL, lambda rows, at: [row + ["1"] * (i == at) for i, row in enumerate(rows)]),
    "one cell fewer": (HARMFUL, lambda rows, at: [row[: len(row) - (i == at)] for i, row in enumerate(rows)]),
    "twice": (HARMFUL, lambda rows, at: [[*row, row[at % 3]] for row in rows]),
    "twice in capitals": (HARMFUL, lambda rows, at: [[*row, row[1].upper()] for row in rows]),
    "a column missing": (HARMFUL, lambda rows, at: [row[:2] for row in rows]),
    "a comma": (HARMFUL, lambda rows, at: [rows[0], *([a, f"1,{b}", c] for a, b, c in rows[1:])]),
    "half a token": (HARMFUL, lambda rows, at: [*rows[:-1], [rows[-1][0], "30.5", "9"]]),
}
ENCODINGS = {"utf-8": HARMLESS, "utf-8-sig": HARMLESS, "utf-16": HARMFUL, "utf-16-be": HARMFUL, "utf-32-le": HARMFUL}
SEPARATORS = {",": HARMLESS, ";": HARMFUL, "\t": HARMFUL, "|": HARMFUL}
LINE_ENDS = {"\n": HARMLESS, "\r\n": HARMLESS, "\r": HARMFUL}


def skippable(data: bytes) -> bytes:
    return struct.pack("<II", 0x184D2A55, 3) + b"abc" + data


COMPRESSIONS = {
    "plain": (HARMLESS, lambda data: data),
    "gzip": (HARMLESS, gzip.compress),
    "two members": (HARMLESS, lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "zstd": (HARMLESS, zstandard.compress),
    "skippable first": (HARMLESS, lambda data: skippable(zstandard.compress(data))),
    "skippable between": (HARMLESS, lambda d: zstandard.compress(d[:9]) + skippable(zstandard.compress(d[9:]))),
    "cut gzip": (HARMFUL, lambda data: gzip.compress(data)[:-4]),
    "cut zstd": (HARMFUL, lambda data: zstandard.compress(data)[:-4]),
    "line end behind": (HARMFUL, lambda data: gzip.compress(data) + b"\r\n"),
    "junk behind": (HARMFUL, lambda data: zstandard.compress(data) + b"\0\0"),
    "twice": (HARMFUL, lambda data: gzip.compress(zstandard.compress(data))),
}  # fmt: skip

shapes = st.tuples(
    st.sampled_from(sorted(CELL_CHANGES)), st.integers(1, 3), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(sorted(SEPARATORS)), st.sampled_from(sorted(LINE_ENDS)), st.sampled_from(sorted(ENCODINGS)),
    st.sampled_from(sorted(COMPRESSIONS)),
)  # fmt: skip


def made(columns, rows, shape) -> tuple[bytes, bool]:
    """(the content, whether it still says the same)."""
    change, at, quoting, separator, line_end, encoding, compression = shape
    kind, changed = CELL_CHANGES[change]
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=line_end)
    writer.writerows(changed([columns, *rows], at))
    harm = (kind, SEPARATORS[separator], LINE_ENDS[line_end], ENCODINGS[encoding], COMPRESSIONS[compression][0])
    return COMPRESSIONS[compression][1](text.getvalue().encode(encoding)), HARMFUL not in harm


def test_a_trace_of_any_shape_is_read_as_it_is_or_refused(folder):
    path = folder / "trace"

    @thousand
    @given(shapes, st.sampled_from(["auto", "vidur"]))
    def check(shape, source):
        content, same = made(COLUMNS, ROWS, shape)
        path.write_bytes(content)
        try:
            found = [(row.time_s, row.new_tokens, row.output_tokens) for row in open_trace(path, source)]
        except TraceError as error:
            refused(path, error)
            assert not same
        else:
            assert same
            assert found == [(0, 10, 7), (0.75, 20, 8), (5.5, 30, 9)]

    check()


def test_measured_prefills_of_any_shape_are_read_as_they_are_or_refused(folder):
    path = folder / "prefills.csv"

    @thousand
    @given(shapes)
    def check(shape):
        content, same = made(["ms", "new", "cached"], ROWS, shape)
        path.write_bytes(content)
        try:
            found = [(each.ms, each.new_tokens, each.cached_tokens) for each in read_samples(path)]
        except InputError as error:
            refused(path, error)
            assert not same
        else:
            assert same
            assert found == [(3.5, 10, 7), (4.25, 20, 8), (9, 30, 9)]

    check()


def test_the_command_refuses_a_table_of_any_shape_with_exit_status_2(folder):
    path = folder / "command.csv"

    @settings(thousand, max_examples=100)
    @given(shapes, st.sampled_from([["trace"], ["fit", "--tp", "4", "--output", str(folder / "never.yaml")]]))
    def check(shape, command):
        path.write_bytes(made(COLUMNS if command[0] == "trace" else ["ms", "new", "cached"], ROWS, shape)[0])
        done = CliRunner().invoke(app, [*command, str(path)])
        assert isinstance(done.exception, SystemExit | None)
        assert done.exit_code in (0, BAD_INPUT)
        assert not (folder / "never.yaml").exists()  # three rows are too few for a fit

    check()
