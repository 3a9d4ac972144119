"""A tenant's `source: module:Class`: a trace format of one's own, read, refused and carried like the known ones."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli import app
from experiments.schema.errors import SpecError
from experiments.schema.spec import load
from inputs.plugin_file import PluginError
from simulation.twin import Twin
from sweeps.inputs import carry
from workloads.traces.formats import open_trace
from workloads.traces.own import OwnRow, _entry
from workloads.traces.trace import TraceError

ROOT = Path(__file__).resolve().parents[2]
DEMO, EXAMPLE = ROOT / "experiments" / "demo.yaml", ROOT / "examples" / "ticket_log.py"
LOG = "# a comment\n" + "".join(f"{100 + n} user{n % 3} {3000 + 500 * n} {40 + n}\n" for n in range(30))


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "tickets.log"
    path.write_text(LOG)
    return path


def tenant(source: object, path: object, **more: object) -> str:
    pairs = {"name": "own", "source": f"'{source}'", "path": f"'{path}'", **more}
    return f"workload.tenants=[{{{', '.join(f'{key}: {value}' for key, value in pairs.items())}}}]"


def experiment(source: object, path: object, **more: object):
    return load(DEMO, [tenant(source, path, **more), "workload.window_s=20", "workload.warmup_s=1"])


def test_the_example_is_replayed_with_the_prefixes_and_sessions_that_it_yields(log):
    found = experiment(f"{EXAMPLE}:TicketLog", log, offset_s=5)
    requests = [request for request in found.requests(1) if not request.warmup]
    assert len(requests) == 20
    contexts = [request.new_tokens + request.cached_tokens for request in requests]
    assert contexts == [3000 + 500 * n for n in range(5, 25)]
    assert [request.cached_tokens for request in requests] == [3000 + 500 * (n - 3) + 40 + n - 3 for n in range(5, 25)]
    result = Twin(found, found.fabrics[0], 1, found.requests(1)).run()
    assert set(result.frames.requests["status"]) == {"completed"}


def test_the_trace_command_reads_it_from_the_current_folder(log, monkeypatch):
    monkeypatch.chdir(EXAMPLE.parent)
    said = CliRunner().invoke(app, ["trace", str(log), "--source", "ticket_log.py:TicketLog"])
    assert said.exit_code == 0, said.output
    assert "30 rows in 3 sessions over 29.000 s" in said.output


def write(folder: Path, body: str) -> str:
    path = folder / "own.py"
    path.write_text(f"from workloads.traces.own import OwnRow\nclass Own:\n def rows(self, path):\n  {body}\n")
    return f"{path}:Own"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("yield OwnRow(2.0, 10); yield OwnRow(1.0, 10)", "tickets.log:2: rows of a plug-in: time_s 1.0 after 2.0"),
        ("yield OwnRow(float('nan'), 10)", "time_s nan is no finite number"),
        ("yield OwnRow(0, 0)", "input_tokens 0 is no whole number of at least 1"),
        ("yield OwnRow(0, 10.5)", "input_tokens 10.5"),
        ("yield OwnRow(0, 10, 11)", "cached_tokens 11 of a prompt of 10"),
        ("yield (0, 10)", "(0, 10) is no OwnRow"),
        ("yield OwnRow(0, 10, session=3)", "session 3 is no text"),
        ("yield OwnRow(0, 10); 1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("return 5", "TypeError"),
        ("return iter(())", "no rows"),
    ],
)
def test_rows_that_cannot_be_are_refused_with_their_number_and_the_value(log, tmp_path, body, said):
    with pytest.raises(TraceError, match=re.escape(said)) as refused:
        list(open_trace(log, write(tmp_path, body)))
    assert "\n" not in str(refused.value)


def test_a_class_without_rows_and_a_file_that_is_nowhere_are_refused(log, tmp_path):
    (tmp_path / "own.py").write_text("class Own: pass\n")
    with pytest.raises(TraceError, match=re.escape("it has no method rows(path)")):
        open_trace(log, f"{tmp_path}/own.py:Own")
    with pytest.raises(SpecError, match=r"workload\.tenants\.0\.source"):
        experiment("nowhere.py:Own", log)


def test_a_sweeps_cell_carries_it_and_the_run_names_it(log):
    found = experiment(f"{EXAMPLE}:TicketLog", log)
    assert found.plugins == {"workload.tenants.0.source": f"{EXAMPLE}:TicketLog"}
    renamed, carried = carry(found)
    ((place, text),) = carried
    assert renamed.workload.tenants[0].source == f"{place}:TicketLog"
    assert text == EXAMPLE.read_bytes()


@given(st.tuples(*[st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)] * 5))
@settings(max_examples=300, deadline=None)
def test_whatever_a_row_holds_it_is_an_entry_or_one_line(values):
    with contextlib.suppress(PluginError):  # its text is one line by its own tests
        entry = _entry(OwnRow(*values), 1)
        assert 0 <= entry.cached_tokens <= entry.input_tokens


def test_the_documented_source_is_the_file_that_runs():
    assert f"```python\n{EXAMPLE.read_text()}```" in (ROOT / "docs/how-to/own-trace.md").read_text()
    assert len(EXAMPLE.read_text().splitlines()) <= 60
