"""Files that were read wrongly, or refused with the wrong remedy, through the commands that met them: exit status,
one line, and the value that is right. The inputs are written here; those of ../shared/cases are read where they are."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import app

ROOT = Path(__file__).parents[2]
CASES = next((up / "shared" / "cases" for up in ROOT.parents if (up / "shared" / "cases").is_dir()), ROOT / "nowhere")
BAD_INPUT = 2
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,2162,5\n2024-05-10 00:00:01,100,5\n"
MOONCAKE = {"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}
# the zstd command's frame of three rows, with the window of --long=31
LONG31 = bytes.fromhex("28b52ffd04a8") + b"\x15\x03\0\x22\xc5\x12"


def heliograph(*words, shell: str | None = None) -> tuple[int, str, str]:
    """(exit status, output, errors) of a command; with `shell`, in a process that such a line of bash starts."""
    if shell is None:
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.stdout, result.stderr
    command = ["bash", "-c", shell, sys.executable, str(ROOT / "cli.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def refused(*words, shell: str | None = None) -> str:
    status, output, errors = heliograph(*words, shell=shell)
    assert status == BAD_INPUT, errors
    assert not output
    assert errors.startswith("heliograph: ")
    assert errors.count("\n") == 1
    return errors


@pytest.fixture
def file(tmp_path: Path):
    def file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return file


def case(*parts: str) -> Path:
    path = CASES.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    return path


def test_a_trace_from_a_pipe_is_refused_in_one_line(file):
    path = file("row.jsonl", json.dumps(MOONCAKE) + "\n")
    piped = f'cat {path} | "$0" "$@"'
    for said in (
        refused("trace", shell=f'"$0" "$@" <(cat {path})'),
        refused("trace", "/dev/stdin", shell=piped),
        refused("fit", "/dev/stdin", "--tp", 4, shell=piped),
    ):
        assert "a pipe cannot be read; give a file" in said
    demo = ROOT / "experiments" / "demo.yaml"
    tenant = "workload.tenants=[{name: a, source: auto, path: /dev/stdin}]"
    said = refused("simulate", demo, "--set", tenant, "--dry-run", shell=piped)
    assert "workload.tenants.0.path: /dev/stdin: a pipe cannot be read; give a file" in said


def test_a_file_given_as_standard_input_is_a_file(file):
    path = file("row.jsonl", json.dumps(MOONCAKE) + "\n")
    status, output, _ = heliograph("trace", "/dev/stdin", shell=f'"$0" "$@" < {path}')
    assert status == 0
    assert "/dev/stdin: mooncake, times in ms, 1 rows" in output


def test_nested_keys_decide_no_format(file):
    extra = {"chat_id": 1, "parent_chat_id": -1, "requests": [], "block_size": 64}
    path = file("row.jsonl", json.dumps({"extra": extra, **MOONCAKE}) + "\n")
    status, output, _ = heliograph("trace", path, "--json")
    assert status == 0
    found = json.loads(output)
    assert (found["format"], found["context_tokens"]["max"]) == ("mooncake", 655)


def test_a_column_that_is_not_used_may_be_long(file):
    counts = (100, 50_000, 100)
    rows = [f'2024-05-10 00:00:0{second},{tokens},5,"{"word " * tokens}"\n' for second, tokens in enumerate(counts)]
    path = file("long.csv", "TIMESTAMP,ContextTokens,GeneratedTokens,Prompt\n" + "".join(rows))
    status, output, _ = heliograph("trace", path, "--json")
    found = json.loads(output)
    assert (status, found["rows_read"], found["context_tokens"]["max"]) == (0, 3, 50_000)


def test_json_floats_that_are_whole_are_counts_and_others_are_not(file):
    rows = [{**MOONCAKE, "output_length": 52.0}, {**MOONCAKE, "timestamp": 10, "output_length": None}]
    status, output, _ = heliograph("trace", file("f.jsonl", "".join(json.dumps(row) + "\n" for row in rows)), "--json")
    found = json.loads(output)
    assert (status, found["rows_read"], found["output_tokens"]["max"]) == (0, 2, 52)
    half = file("half.jsonl", json.dumps({**MOONCAKE, "output_length": 655.5}) + "\n")
    assert "half.jsonl:1: output_length 655.5 is no whole number" in refused("trace", half)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (AZURE.replace("2162", "2162,Müller", 1).encode("latin-1"), ":2: not UTF-8 (byte 0xfc"),
        (AZURE.encode("utf-16"), "not UTF-8 but UTF-16; convert it: iconv"),
        (gzip.compress(AZURE.encode(), mtime=0) + b"\r\n", "bytes behind the compressed data"),
        (LONG31, "a window of 2048 MiB (zstd --long=31); unpack it with zstd -d --long=31 it first"),
        (AZURE.replace(",", ";"), "it is separated by semicolons"),
        (AZURE.replace("ContextTokens", "ContextTokens, contexttokens"), "the column 'contexttokens' is named twice"),
    ],
    ids=["Latin-1", "UTF-16", "bytes behind", "window", "semicolons", "twice"],
)
@pytest.mark.parametrize("source", ["auto", "azure"])
def test_the_refusal_names_the_cause_and_the_remedy(file, content, says, source):
    said = refused("trace", file("t.csv", content), "--source", source)
    assert says in said
    assert "is the file complete" not in said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fit-extra-cells/thousands.csv", "thousands.csv:6: 4 cells where the header has 3"),
        ("fit-extra-cells/decimal_comma.csv", "decimal_comma.csv:2: 4 cells where the header has 3"),
    ],
)
def test_case_fit(tmp_path, name, says):
    assert says in refused("fit", case(*name.split("/")), "--tp", 4, "--output", tmp_path / "new.yaml")
    assert not (tmp_path / "new.yaml").exists()


def test_case_fit_bom(tmp_path):
    status, _, errors = heliograph("fit", case("fit-bom", "bom.csv"), "--tp", 4, "--output", tmp_path / "new.yaml")
    assert status == 0, errors
    assert (tmp_path / "new.yaml").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("read-error-messages/long31.zst", "zstd -d --long=31 it first"),
        ("read-error-messages/latin.csv", "not UTF-8"),
        ("read-error-messages/m_crlf.gz", "bytes behind the compressed data"),
        ("read-error-messages/l_utf16.csv", "not UTF-8"),
        ("read-error-messages/l_semi.csv", "separated by semicolons"),
        ("csv-duplicate-column/twice.csv", "'ContextTokens' is named twice"),
    ],
)
def test_case_trace_refused(name, says):
    source = ("--source", "azure") if name.endswith(".csv") else ()
    assert says in refused("trace", *source, case(*name.split("/")))


@pytest.mark.parametrize("name", ["floats.jsonl", "floats.csv"])
def test_case_integral_floats(name):
    status, output, errors = heliograph("trace", case("json-integral-float", name), "--json")
    assert status == 0, errors
    assert json.loads(output)["output_tokens"]["max"] == 52
