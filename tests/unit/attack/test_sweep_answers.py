"""What a worker answers may be anything: a result of its cell, or one line and nothing written."""

from __future__ import annotations

import copy
import io
import json
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import DEFINITION, SPEC, of_any_version, quiet

from sweeps import execute as sweep_execute
from sweeps.answer import MOST_FILES, answer, read_answer
from sweeps.axes import SweepError
from sweeps.cell import Cell, CellError
from sweeps.execute import execute, unfinished
from sweeps.grid import GridDirectory, cells_of
from sweeps.workers import workers

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> tuple[Cell, dict[str, Any]]:
    """A cell and its true answer."""
    path = tmp_path_factory.mktemp("asked") / "small.yaml"
    path.write_text(SPEC)
    [cell, *_] = of_any_version(cells_of(path, [], sets=["seeds=[1]"]))
    return cell, answer(cell)


def files_of(said: dict[str, Any]) -> Files:
    with zipfile.ZipFile(io.BytesIO(said["files"])) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for name, content in files:
            archive.writestr(name, content)
    return buffer.getvalue()


def test_a_true_answer_is_what_the_worker_computed(asked):
    cell, said = asked
    result = read_answer(cell, said)
    assert result.figures == json.loads(said["figures"])
    assert result.files == said["files"]


def figures(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], None]:
    def changed(said: dict[str, Any]) -> None:
        document = json.loads(said["figures"])
        change(document)
        said["figures"] = json.dumps(document)

    return changed


def file(name: str, content: bytes | None) -> Callable[[dict[str, Any]], None]:
    """A file in the place of another, or none."""

    def changed(said: dict[str, Any]) -> None:
        files = {key: value for key, value in files_of(said).items() if key != name}
        said["files"] = packed([*files.items(), *([] if content is None else [(name, content)])])

    return changed


def bomb(said: dict[str, Any]) -> None:
    """A small archive whose directory says what it would be."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", b"\0" * 1000)
    said["files"] = buffer.getvalue().replace((1000).to_bytes(4, "little"), (0xFFFFFFF0).to_bytes(4, "little"))


REQUESTS = "ecmp/seed1/requests.csv"
LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no figures": lambda said: said.pop("figures"),
    "figures that are no text": lambda said: said.update(figures={"summary": {}}),
    "figures that are no JSON": lambda said: said.update(figures="{"),
    "nesting": lambda said: said.update(figures="[" * 100_000),
    "a long number": lambda said: said.update(figures="1" * 100_000),
    "not a number": figures(lambda found: found["summary"]["ttft_s"].update(mean=float("nan"))),
    "not a number in a tenant": figures(lambda found: found["tenants"]["agentic"].update(ttft_mean_s=float("nan"))),
    "infinite": lambda said: said.update(figures=said["figures"].replace('"mean": ', '"mean": 1e999, "was": ')),
    "text for a number": figures(lambda found: found["tenants"]["agentic"].update(offered="many")),
    "a list for a tenant": figures(lambda found: found["tenants"].update(agentic=[1])),
    "a verdict of its own": figures(lambda found: found["summary"].update(verdict="splendid")),
    "another fabric": figures(lambda found: found["summary"].update(name="ocs")),
    "another seed": figures(lambda found: found["summary"].update(seed=2)),
    "packets where none were": figures(lambda found: found["summary"].update(substrate="emulation")),
    "a key more": figures(lambda found: found.update(path="/etc")),
    "no summary": figures(lambda found: found.pop("summary")),
    "negative counts": figures(lambda found: found["summary"]["requests"].update(offered=-1)),
    "a worker without a name": lambda said: said.update(worker=None),
    "escape codes": lambda said: said.update(worker="\x1b[2Jgood"),
    "a name of a megabyte": lambda said: said.update(worker="w" * 1_000_000),
    "no time": lambda said: said.update(wall_s=float("nan")),
    "a time before it began": lambda said: said.update(wall_s=-1.0),
    "no files": lambda said: said.update(files=b""),
    "files that are text": lambda said: said.update(files="PK"),
    "files that are no archive": lambda said: said.update(files=b"PK\x03\x04garbage"),
    "half an archive": lambda said: said.update(files=said["files"][: len(said["files"]) // 2]),
    "a broken file": lambda said: said.update(files=said["files"].replace(said["files"][400:404], b"\0\0\0\0", 1)),
    "a path above": file("../outside", b"x"),
    "a path from the root": file("/tmp/outside", b"x"),
    "a path in the middle": file("ecmp/../../outside", b"x"),
    "a backslash": file("..\\outside", b"x"),
    "a hidden file": file(".bashrc", b"x"),
    "a line end in a name": file("a\nb", b"x"),
    "a long name": file("a" * 5000, b"x"),
    "deep folders": file("a/" * 50 + "b", b"x"),
    "its own last file": file("cell.json", b"{}"),
    "a file as a folder": file(f"{REQUESTS}/x", b"x"),
    "a name twice": lambda said: said.update(files=packed([*files_of(said).items(), ("summary.json", b"{}")])),
    "many files": lambda said: said.update(files=packed([(f"f{i}", b"") for i in range(MOST_FILES + 1)])),
    "a bomb": bomb,
    "no summary.json": file("summary.json", None),
    "a summary of another": file("summary.json", b'{"schema": 1, "runs": []}'),
    "no requests": file(REQUESTS, None),
    "a table of nothing": file(REQUESTS, b""),
    "a table of text": file(REQUESTS, b"id,arrival_s\nr0,soon\n"),
    "bytes for a table": file(REQUESTS, bytes(range(256)) * 8),
    "a list": lambda said: said.update(failed=["a", "b"]),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_one_line_that_can_be_shown(asked, lie):
    cell, said = asked
    said = copy.deepcopy(said)
    LIES[lie](said)
    with pytest.raises(CellError) as refused:
        read_answer(cell, said)
    text = str(refused.value)
    assert text.isprintable(), text
    assert len(text) < 5000


@pytest.mark.parametrize("said", [None, 1, "figures", b"", [], {}, {"worker": "w"}, (1, 2), {1: 2}])
def test_what_is_no_answer_is_one_line_too(asked, said):
    cell, _ = asked
    with pytest.raises(CellError):
        read_answer(cell, said)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300)
@given(data=st.data())
def test_a_value_in_the_place_of_any_other_is_taken_whole_or_refused(asked, data):
    """Never a traceback; and what is taken can be written and shown: it is finite and of this cell."""
    cell, said = asked
    document = json.loads(said["figures"])
    node, path = document, []
    while isinstance(node, dict) and node and (not path or data.draw(st.booleans())):
        path.append(data.draw(st.sampled_from(sorted(node))))
        node = node[path[-1]]
    above = document
    for key in path[:-1]:
        above = above[key]
    above[path[-1]] = data.draw(JSON)
    try:
        result = read_answer(replace(cell, keep="figures"), said | {"figures": json.dumps(document), "files": b""})
    except CellError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert refusal.isprintable()
    if refusal:
        return
    json.dumps(result.figures, allow_nan=False)
    assert result.figures["summary"]["name"] == cell.fabric


def test_a_result_that_is_no_plain_value_is_not_unpickled_and_is_that_cell_s_failure(asked, tmp_path, monkeypatch):
    cell, _ = asked
    directory = GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / "grid")
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (Path.touch, (ran,))

    monkeypatch.setattr(sweep_execute, "answer", lambda cell, sweep: [Evil()])
    with workers(1) as client:
        done = execute([cell], directory, client, quiet())
    assert not ran.exists()
    assert list(done.failures) == [cell.path]
    assert done.failures[cell.path].isprintable()
    assert unfinished([cell], directory) == [cell]


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"digest": 1}', "[" * 100_000, "nonsense"])
def test_a_cell_json_that_was_torn_or_edited_is_computed_again(asked, tmp_path, text):
    cell, said = asked
    directory = GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / "grid")
    directory.keep(cell, read_answer(cell, said))
    written = directory.path / "cells" / cell.path / "cell.json"
    found = json.loads(written.read_text())
    assert (directory.outcome(cell) or pytest.fail("not kept")).summary == json.loads(said["figures"])["summary"]
    for broken in (text, json.dumps(found | {"summary": {}}), json.dumps(found | {"tenants": None, "wall_s": "long"})):
        written.write_text(broken)
        assert directory.outcome(cell) is None
    written.write_text(json.dumps(found))
    assert directory.outcome(cell) is not None


@pytest.mark.parametrize("text", ["[]", "null", "1", "[" * 100_000, "{"])
def test_a_sweep_json_that_is_none_is_refused_in_one_line(tmp_path, text):
    GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / "grid")
    (tmp_path / "grid" / "sweep.json").write_text(text)
    with pytest.raises(SweepError, match="name a new --artifact-dir"):
        GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / "grid")


def test_a_link_in_a_grid_s_directory_leads_nowhere(asked, tmp_path):
    cell, said = asked
    directory = GridDirectory.create_or_resume("sweep", DEFINITION, tmp_path / "grid")
    outside = tmp_path / "outside"
    outside.mkdir()
    (directory.path / "cells").symlink_to(outside)
    with pytest.raises(SweepError, match="leads outside of"):
        directory.keep(cell, read_answer(cell, said))
    assert not [path for path in outside.rglob("*") if path.is_file()]
