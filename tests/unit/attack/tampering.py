"""A finished run, and what can be done to its files: cut, emptied, removed, replaced, and single values retyped."""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

SPEC = """
name: small
cluster: {prefill_instances: 2, decode_instances: 2, gpus_per_instance: 1, instances_per_rack: 2, link_gbps: 400}
model: {name: llama-3.1-70b, kv_dtype: bf16, tp: 4}
workload:
  window_s: 12
  warmup_s: 1
  tenants: [{name: agentic, source: synthetic-agentic, load: 0.6}]
fabrics:
  - {name: ecmp, kind: eps, uplinks: 1, routing: ecmp}
  - {name: ocs, kind: ocs, reconfiguration_ms: 25}
"""
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 3.5, -0.0, 1e300, -1e300, 10**30, 2**63, "", "x", "nan", "inf", "../../etc", "a\x00b",
    "\x1b[31m[bold]\n", [], [None], {}, {"a": None}, [[1]], "ecmp", "ocs", "eps",
]  # fmt: skip
CELLS = [
    "",
    "x",
    "nan",
    "inf",
    "-1",
    "1e300",
    "1_000",
    "010",
    "99999999999999999999",
    "True",
    "1,2",
    '"',
    "\x00",
    "0.5",
]
FILES = [
    "summary.json", "provenance.json", "config.yaml", "ecmp/seed1/requests.csv", "ecmp/seed1/transfers.csv",
    "ecmp/seed1/fidelity.json", "ocs/seed1/requests.csv", "ocs/seed1/transfers.csv", "ocs/seed1/circuits.csv",
    "ocs/seed1/fidelity.json", "ocs/seed1/controller.jsonl",
]  # fmt: skip
KINDS = ["delete", "empty", "cut", "bytes", "folder", "value", "value", "value", "value", "drop", "drop", "repeat"]
TAMPERED = st.lists(
    st.tuples(st.sampled_from(FILES), st.sampled_from(KINDS), st.integers(0, 10**6), st.integers(0, 10**6)),
    min_size=1,
    max_size=2,
)
FIDELITY = {
    "measures": [{"name": "live circuit to sender told, median", "unit": "ms", "emulated": 1.0, "limit": 2.0,
                  "real": 1.0, "limit_real": 2.0, "exceeded": True, "severity": "warn"}],
    "unscaled": [{"name": "one segment", "unit": "bytes", "emulated": 1448, "real": 1e7, "against": "a transfer",
                  "against_emulated": 1e5, "ratio": 0.01}],
    "audit": {"packets": 5, "violations": [], "dark_ms": {"min": 25.1}, "reconfigurations": 2, "gaps": ["one"],
              "lost_by_the_capture": {"p0": 3}},
    "calibration": {"constants": {"control_s": 0.001}},
}  # fmt: skip


def as_emulated(run: Path) -> None:
    """Let a simulated run say what an emulated one says, so that every reader has something to read."""
    summary = json.loads((run / "summary.json").read_text())
    for entry in summary["runs"]:
        entry["substrate"] = "emulation"
        entry["twin"] = {"ttft_s": {"mean": 1.0, "p50": 1.0, "p90": 2.0, "p95": None}, "mean_ratio": 1.01}
        path = run / entry["name"] / "seed1" / "fidelity.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | FIDELITY))
    (run / "summary.json").write_text(json.dumps(summary))
    events = [{"event": "setup", "pairs": {"p0": "d0"}}, {"event": "clock"}, {"event": "x"}]
    (run / "ocs" / "seed1" / "controller.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))


def tampered(original: Path, copied: Path, edits: list[tuple[str, str, int, int]]) -> None:
    """A copy of a run with the edits in it."""
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(original, copied)
    for name, kind, where, what in edits:
        path = copied / name
        if path.is_file():
            _tamper(path, kind, where, what)


def _tamper(path: Path, kind: str, where: int, what: int) -> None:
    content = path.read_bytes()
    at = where % (len(content) + 1)
    if kind == "delete":
        path.unlink()
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut":
        path.write_bytes(content[:at])
    elif kind == "bytes":
        path.write_bytes(
            content[:at] + [b"\xff", b"\x00", b"\x1b[1m", b"]", b'"', b"\n", b"&a *a"][what % 7] + content[at + 1 :]
        )
    elif path.suffix == ".csv":
        _edit_table(path, kind, where, what)
    else:
        _edit_document(path, kind, where, what)


def _edit_table(path: Path, kind: str, where: int, what: int) -> None:
    rows = list(csv.reader(io.StringIO(path.read_text(errors="replace").replace("\0", ""))))
    if not rows or not rows[0]:
        return
    row, column = rows[where % len(rows)], what % len(rows[0])
    if kind == "value" and column < len(row):
        row[column] = CELLS[(where + what) % len(CELLS)]
    elif kind == "drop" and what % 2:
        rows.remove(row)
    elif kind == "drop":
        rows = [each[:column] + each[column + 1 :] for each in rows]
    elif kind == "repeat":
        rows.append(list(row))
    text = io.StringIO()
    csv.writer(text, lineterminator=os.linesep).writerows(rows)
    path.write_text(text.getvalue())


def _edit_document(path: Path, kind: str, where: int, what: int) -> None:
    text = path.read_text(errors="replace")
    try:
        if path.suffix == ".jsonl":
            document: Any = [json.loads(line) for line in text.splitlines()]
        else:
            document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):  # of an edit before this one
        return
    found = list(places(document))
    if not found:
        return
    *above, key = found[where % len(found)]
    parent = document
    for step in above:
        parent = parent[step]
    if kind == "drop":
        del parent[key]
    elif kind == "repeat" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key]))
    else:
        parent[key] = ODD[what % len(ODD)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(each) + "\n" for each in document))
    else:
        path.write_text(json.dumps(document) if path.suffix == ".json" else yaml.safe_dump(document))


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value of a document."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from places(value, (*at, key))
