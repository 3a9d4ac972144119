"""Traces and tables of a run whose bytes were changed anywhere, and rows of any JSON: 1,000 files of each kind are read
or refused in one line that begins with the file.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_samples import COMPRESSIONS, SAMPLES

from results.records.schema import TABLES
from workloads.traces.formats import open_trace
from workloads.traces.trace import TraceError

thousand = settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("damage")


def read_or_refused(path: Path) -> None:
    try:
        found = list(open_trace(path))
    except TraceError as error:
        said = str(error)
    else:
        assert found
        assert all(row.new_tokens >= 1 and row.cached_tokens >= 0 and row.time_s >= 0 for row in found)
        return
    assert said.startswith(str(path))
    assert said.isprintable()


PIECES = [b"\n", b"\r", b'"', b",", b";", b"\t", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x28\xb5\x2f\xfd", b"\x1f\x8b"]
EDIT = st.tuples(st.floats(0, 1), st.integers(0, 20), st.sampled_from(PIECES) | st.binary(max_size=6))
EDITS = st.lists(EDIT, max_size=4)
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp037"])
#: Four rows of each: what happens to a row happens to any.
GOOD = {name: b"\n".join(make().split(b"\n")[:5]) + b"\n" for name, (_, _, make) in SAMPLES.items() if name != "agentx"}


def edited(data: bytes, changes) -> bytes:
    for where, drop, put in changes:
        at = int(where * len(data))
        data = data[:at] + put + data[at + drop :]
    return data


def test_a_trace_in_any_encoding_and_with_any_damage(folder):
    path = folder / "damaged"

    @thousand
    @given(st.sampled_from(sorted(GOOD)), ENCODINGS, EDITS, st.sampled_from(sorted(COMPRESSIONS)), EDITS)
    def check(name, encoding, before, compression, after):
        data = edited(GOOD[name].decode().encode(encoding), before)
        path.write_bytes(edited(COMPRESSIONS[compression](data), after))
        read_or_refused(path)

    check()


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(0, 5) | st.floats(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
KEYS = ["timestamp", "input_length", "output_length", "hash_ids", "chat_id", "parent_chat_id", "type", "extra"]
ROW = {"input_length": 5, "hash_ids": [1]}


def test_json_lines_of_any_values(folder):
    path = folder / "rows"

    @thousand
    @given(st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3), max_size=3), st.booleans())
    def check(rows, whole):
        rows = [{"timestamp": i, **(ROW if whole else {}), **row} for i, row in enumerate(rows)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        read_or_refused(path)

    check()


def written(path: Path, name: str, rows: int, text: str) -> bytes:
    """A table of a run, with values of every dtype."""
    table, values = TABLES[name], {"string": text, "boolean": True, "Int64": 7}
    row = {column: values.get(dtype, 0.5) for column, dtype in table.dtypes.items()}
    table.frame([row, {}, row][:rows]).to_csv(path, index=False)
    assert len(table.read(path)) == rows
    return path.read_bytes()


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_table_of_a_run_that_was_tampered_with(folder, name):
    path = folder / f"{name}.csv"
    good = written(path, name, 3, "a,b")

    @settings(thousand, max_examples=250)
    @given(EDITS.filter(bool))
    def check(changes):
        path.write_bytes(edited(good, changes))
        with contextlib.suppress(ValueError):
            assert list(TABLES[name].read(path).columns) == TABLES[name].columns

    check()


@pytest.mark.parametrize("name", sorted(TABLES))
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda header, row: (header, f"{row},1"), "cells where the header has"),
        (lambda header, row: (header, f"1,{row}"), "cells where the header has"),
        (lambda header, row: (header, row.rpartition(",")[0]), "cells where the header has"),
        (lambda header, row: (f"{header},{header.partition(',')[0]}", f"{row},1"), "is named twice"),
        (lambda header, row: (header.partition(",")[2], row.partition(",")[2]), "missing column"),
    ],
    ids=["a cell behind", "a cell before", "a cell fewer", "a column twice", "a column fewer"],
)
def test_a_row_of_a_runs_table_is_not_shifted_or_filled_up(folder, name, change, says):
    path = folder / f"{name}.csv"
    header, row = written(path, name, 1, "a").decode().splitlines()
    path.write_text("\n".join(change(header, row)) + "\n")
    with pytest.raises(ValueError, match=says) as error:
        TABLES[name].read(path)
    assert str(error.value).startswith(str(path))
