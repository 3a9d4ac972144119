"""Strings of users through whole commands: in a price book, a trace, an experiment and an artifact."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import cli

ROOT = Path(__file__).resolve().parents[2]
LIN = "".join(f"{second},{1000 + second},10\n" for second in range(20))
KEYS = ["name", "workload.tenants.0.name", "fabrics.0.name", "workload.tenants.0.path"]
#: What a terminal acts on, what rich takes for markup, what reads like a line of ours.
nasty = st.text(
    st.sampled_from("ab1 [/]\\<&>\"'\x00\x07\b\t\n\r\x1b\x7f\x85\x9b\xa0é\u200e\u202e\u2028\u2066\ufeff\U000e0041")
) | st.sampled_from(["[/b]x", "[red]", "\x1b[2J", "x\nheliograph: all is well", "\x9b31m", ":smile:"])


def harmless(*arguments: str) -> str:
    """Run a command; all it printed, which acts on no terminal and is no traceback."""
    done = CliRunner().invoke(cli.app, [*arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 2)
    printed = done.stdout + done.stderr
    bad = [each for each in printed if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert bad == []
    assert not any(line.startswith("heliograph: all is well") for line in printed.splitlines())
    return printed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A book, a trace, an experiment and a run to tamper with."""
    path = tmp_path_factory.mktemp("strings")
    (path / "book.yaml").write_text((ROOT / "economics/books/book_a.yaml").read_text())
    (path / "good.csv").write_text("Timestamp,Request tokens,Response tokens\n" + LIN)
    (path / "e.yaml").write_text(
        """
name: t
cluster: {prefill_instances: 1, decode_instances: 2, gpus_per_instance: 1, instances_per_rack: 2, link_gbps: 400}
model: {name: llama-3.1-70b, kv_dtype: bf16, tp: 4}
workload: {window_s: 10, warmup_s: 1, tenants: [{name: a, source: auto, path: good.csv}]}
fabrics: [{name: ecmp, kind: eps, oversubscription: 2}]
seeds: [1]
"""
    )
    harmless("simulate", str(path / "e.yaml"), "--artifact-dir", str(path / "run"))
    return path


@given(name=nasty, about=nasty)
@settings(max_examples=12)
def test_the_name_of_a_price_book(folder: Path, name: str, about: str) -> None:
    book = yaml.safe_load((folder / "book.yaml").read_text()) | {"name": name or "x", "about": about}
    (folder / "mine.yaml").write_text(yaml.safe_dump(book))
    for more in (["--whole-switches"], ["--json"]):
        harmless("cost", "--gpus", "256", "--book", str(folder / "mine.yaml"), *more)


@given(cells=st.lists(nasty, min_size=3, max_size=3))
@settings(max_examples=30)
def test_the_cells_and_the_columns_of_a_trace(folder: Path, cells: list[str]) -> None:
    row = ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
    for text in (f"Timestamp,Request tokens,Response tokens\n{LIN}{row}\n", f"{row}\n{LIN}"):
        (folder / "t.csv").write_text(text, encoding="utf-8", newline="")
        harmless("trace", str(folder / "t.csv"))
        harmless("fit", str(folder / "t.csv"), "--tp", "4", "--output", str(folder / "never.yaml"))


@given(
    key=st.sampled_from(["name", "workload.tenants.0.name", "fabrics.0.name", "workload.tenants.0.path"]), text=nasty
)
@settings(max_examples=25)
def test_the_strings_of_an_experiment(folder: Path, key: str, text: str) -> None:
    experiment = yaml.safe_load((folder / "e.yaml").read_text())
    *way, last = key.split(".")
    at = experiment
    for step in way:
        at = at[int(step) if step.isdecimal() else step]
    at[last] = text
    (folder / "x.yaml").write_text(yaml.safe_dump(experiment))
    harmless("run", str(folder / "x.yaml"), "--dry-run")
    harmless("sweep", str(folder / "x.yaml"), "--dry-run")


@given(text=nasty)
@settings(max_examples=8)
def test_an_artifact_that_was_tampered_with(folder: Path, text: str) -> None:
    run = folder / "run"
    whole = (run / "summary.json").read_text()
    try:
        summary = json.loads(whole)
        summary["runs"][0] |= {"verdict": "invalid", "reasons": [text], "notes": [text]}
        (run / "summary.json").write_text(json.dumps(summary))
        harmless("compare", str(run), str(run))
        harmless("report", str(run))
        page = (run / "report.html").read_text(encoding="utf-8").split("</script>")[-1]
        assert not {each for each in page if unicodedata.category(each) in ("Cc", "Cf")} - {"\n"}
        assert "<b>" not in text or "&lt;b&gt;" in page
    finally:
        (run / "summary.json").write_text(whole)
