"""A thousand files for each loader: what is read is data, what is not is one printable line with the file's name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from economics.price_book import BOOKS
from economics.price_book import load as load_book
from experiments.schema.spec import load as load_spec
from experiments.schema.timing import read_timing
from inputs import json_file, yaml_file
from inputs.errors import InputError
from results.records.artifacts import RunDirectory
from simulation.constants import read_constants

DEMO = Path(__file__).parents[3] / "experiments" / "demo.yaml"
WORDS = [
    "010", "1:30", "1_000", "0x_", "0b1", "0o7", "1e999", "1e-999", ".nan", "-.inf", "1e308", "9" * 90, "9" * 5000,
    "2024-13-45",
    "!!int abc", "!!float x", "!!timestamp x", "!!binary x", "!x y", "&a b", "*a", "<<", "=", "yes", "~", "null", "''",
    '"\\ud800"',
    '"\\U00110000"', '"\\x"', "[", "]", "{", "}", "- ", "? ", ": ", "#", "|", ">", "%YAML 1.1", "---", "...",
    "\t", "\n", "\r", "\x85",
    "\u2028", "\ufeff", "\x00", "\x1b[31m", "true", "-1", "0.5", "a", "NaN", "Infinity", ",", '"', "'",
    "[" * 200, "{a: " * 100,
]  # fmt: skip
SETTINGS = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
TIMING = "t0_ms: 10\na_ms_per_token: 0.2\nb_ms_per_token2: 0.000001\ntp: 4\n"
CONSTANTS = "control_s: 0.001\nreturn_s: 0.002\n"
FIDELITY = '{"measures": [{"name": "x", "unit": "ms", "real": 1.0}], "calibration": {"constants": {"control_s": 1}}}'
SUMMARY = (
    '{"schema": 1, "runs": [{"name": "a", "fabric": "eps", "seed": 1, "substrate": "simulation", "verdict": "valid", '
    '"requests": {"offered": 1, "completed": 1, "failed": 0, "unfinished": 0}, "ttft_s": {"n": 1, "mean": 0.5}}]}'
)
EDITS = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 12), st.sampled_from(WORDS) | st.text(max_size=6)),
    min_size=1,
    max_size=3,
)


def edited(text: str, edits: list[tuple[int, int, str]]) -> bytes:
    """The text with words in the place of a few of its characters; half of the time in place of a whole value."""
    for where, length, word in edits:
        at = where % (len(text) + 1)
        if where % 2 and (colon := text.find(": ", at)) >= 0:
            end = (
                min(i for i in (text.find(mark, colon + 2) for mark in "\n,}") if i >= 0)
                if "\n" in text[colon:]
                else colon + 3
            )
            text = text[: colon + 2] + word + text[end:]
        else:
            text = text[:at] + word + text[at + length :]
    return text.encode("utf-8", "surrogatepass")


READERS = {
    "experiment": (DEMO.read_text(), ".yaml", load_spec),
    "price-book": (BOOKS["B"].read_text(), ".yaml", load_book),
    "timing": (TIMING, ".yaml", read_timing),
    "constants": (CONSTANTS, ".yaml", read_constants),
    "fidelity": (FIDELITY, ".json", read_constants),
    "summary": (SUMMARY, "summary.json", lambda path: RunDirectory(path.parent).summary()),
}


def said(reader, path: Path) -> str:
    """What a reader says against a file, "" where it reads it; anything else that it raises is an error."""
    try:
        reader(path)
    except InputError as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("name", READERS)
def test_a_thousand_files_are_read_or_refused_on_printable_lines(name, tmp_path):
    text, ending, reader = READERS[name]
    path = tmp_path / (ending if not ending.startswith(".") else f"mine{ending}")

    @SETTINGS
    @given(EDITS)
    def tried(edits):
        path.write_bytes(edited(text, edits))
        refused = said(reader, path)
        assert not refused or str(path) in refused
        assert all(line.isprintable() for line in refused.splitlines())

    tried()


@pytest.mark.parametrize("name", READERS)
def test_what_a_reader_is_tried_with_is_read_as_it_is(name, tmp_path):
    text, ending, reader = READERS[name]
    path = tmp_path / (ending if not ending.startswith(".") else f"mine{ending}")
    path.write_text(text)
    reader(path)


@SETTINGS
@given(st.binary(max_size=60))
def test_a_thousand_files_of_bytes_are_yaml_and_json_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(content)
    for reader in (yaml_file.read, json_file.read):
        refused = said(reader, path)
        assert not refused or refused.isprintable()


def test_what_is_read_is_what_another_reader_of_yaml_reads_of_the_files_that_ship():
    for path in [*DEMO.parent.rglob("*.yaml"), *BOOKS.values()]:
        assert yaml_file.read(path).data == yaml_file.parse(yaml_file.dump(yaml.safe_load(path.read_text())), "x")
