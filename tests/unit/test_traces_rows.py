"""Rows of a trace, whatever its format: whole numbers, keys and columns given twice, columns that look like arrivals,
rows that failed, archives that were cut."""

from __future__ import annotations

import gzip
import io
import json
import tarfile

import pytest
import trace_samples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import SAMPLES

from workloads.traces import values
from workloads.traces.formats import format_of, open_trace
from workloads.traces.sniff import csv_columns, json_keys
from workloads.traces.trace import TraceError


@pytest.fixture
def rows(tmp_path):
    def rows(content, source="auto"):
        path = tmp_path / "t.trace"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        reading = open_trace(path, source)
        return list(reading), reading.report()

    return rows


@pytest.fixture
def refused(rows):
    def refused(content, source="auto"):
        with pytest.raises(TraceError) as error:
            rows(content, source)
        return str(error.value).partition("t.trace")[2]

    return refused


# -- whole numbers


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 10**9), st.sampled_from(["{}", "{}.0", "{}.000", "{}e0", "{:e}"]))
def test_a_whole_number_is_one_however_json_and_csv_write_it(number, notation):
    text = notation.format(number)
    if float(text) != number:  # {:e} rounds to seven digits
        return
    assert values.tokens(json.loads(text), "n", "f", 1) == number
    assert values.token_cell(text, "n", "f", 1) == number
    assert type(values.tokens(json.loads(text), "n", "f", 1)) is int


@pytest.mark.parametrize("text", ["655.5", "1e-3", "-1.0", "1e10", "1e400", "9007199254740993.0", "1e300"])
def test_what_is_no_whole_number_of_tokens_is_refused_in_json_and_csv(text):
    for read, value in ((values.tokens, json.loads(text)), (values.token_cell, text)):
        with pytest.raises(TraceError, match="is no whole number of at least 1 token"):
            read(value, "n", "f", 1)


@pytest.mark.parametrize("value", [True, False, None, "12", [12], {}])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(TraceError, match="is no whole number"):
        values.tokens(value, "n", "f", 1)


def test_a_session_has_one_name_whether_its_number_is_written_with_a_point_or_not():
    assert values.name(55.0, "chat_id", "f", 1) == values.name(55, "chat_id", "f", 1) == "55"
    assert values.name(2**53 + 1, "chat_id", "f", 1) == str(2**53 + 1)
    for bad in (55.5, 2.0**53, True, None):
        with pytest.raises(TraceError, match="is no name of a session"):
            values.name(bad, "chat_id", "f", 1)


def floated(value):
    """What pandas makes of whole numbers where a column has a null."""
    if isinstance(value, dict):
        return {key: each if key == "hash_ids" else floated(each) for key, each in value.items()}
    if isinstance(value, list):
        return [floated(each) for each in value]
    return float(value) if type(value) is int else value


@pytest.mark.parametrize("name", [name for name, (_, _, make) in SAMPLES.items() if make()[:1] == b"{"])
def test_a_file_whose_whole_numbers_are_floats_is_read_as_the_same_trace(tmp_path, name):
    path = trace_samples.write(name, tmp_path)
    before = list(open_trace(path))
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(floated(each)) + "\n" for each in documents))
    assert list(open_trace(path)) == before


# -- what decides the format


def test_only_the_keys_of_the_object_itself_decide_the_format(rows):
    row = {"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}
    nested = {"chat_id": 7, "requests": [{"block_size": 1}], "session_id": "x"}
    for extra in (nested, [nested], json.dumps(nested), {"deep": [nested]}):
        found, report = rows(json.dumps({"extra": extra, **row}) + "\n" + json.dumps({**row, "extra": extra}) + "\n")
        assert report.format == "mooncake"
        assert [r.new_tokens for r in found] == [655, 1]


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | KEYS,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(KEYS, each, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(KEYS, JSON, max_size=4),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.sampled_from(["", "\n", "\ufeff"]),
)
def test_the_keys_seen_are_those_of_the_first_object(object_, ascii_, indent, begin):
    text = (begin + json.dumps(object_, ensure_ascii=ascii_, indent=indent)).encode()
    assert json_keys(text + b'\n{"chat_id": 1}') == set(object_)
    # a head that is cut within the object shows some of the keys, and none of another's
    assert json_keys(text[: len(text) // 2]) <= set(object_)


def test_a_header_is_seen_as_the_reader_finds_it():
    assert csv_columns(b'\xef\xbb\xbf\n"A", b ,"c,d"\r\n1,2,3\r\n') == {"a", "b", "c,d"}
    assert csv_columns(b'{"a": 1, "b": 2}\n') == frozenset()


@pytest.mark.parametrize(
    "name", [name for name, (_, _, make) in SAMPLES.items() if b"," in make().partition(b"\n")[0][:80]]
)
@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: b"\n" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.rstrip(b"\n"),
    ],
    ids=["mark", "blank line first", "CRLF", "no end"],
)
def test_a_table_is_the_same_trace_with_a_mark_and_other_line_ends(tmp_path, name, change):
    path = trace_samples.write(name, tmp_path)
    before, form = [r.new_tokens for r in open_trace(path)], format_of(path)
    path.write_bytes(change(path.read_bytes()))
    assert format_of(path) is form
    assert [r.new_tokens for r in open_trace(path)] == before


def test_a_first_row_of_no_format_says_what_separates_it_or_its_encoding(refused):
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,655,52\n"
    assert "it is separated by semicolons" in refused(azure.replace(",", ";"))
    assert "it is separated by tabs" in refused(azure.replace(",", "\t"))
    assert "not UTF-8 but UTF-16LE" in refused(azure.encode("utf-16-le"))
    assert r"line ends of \r alone" in refused(azure.replace("\n", "\r"))
    assert r"line ends of \r alone" in refused(json.dumps({"timestamp": 1}) + "\r{}\r", "mooncake")


# -- given twice, or under another name


def test_a_key_given_twice_is_refused(refused):
    row = '{"timestamp": 0, "input_length": 655, "hash_ids": [46, 47], "input_length": 9}\n'
    assert refused(row) == ":1: the key 'input_length' is given twice; keep one"


def test_a_column_named_twice_is_refused(refused):
    assert "the column 'ContextTokens' is named twice (columns 1 and 3)" in refused(
        "ContextTokens,TIMESTAMP,ContextTokens,GeneratedTokens\n1,2023-11-16 18:15:46.68,4808,10\n"
    )


@pytest.mark.parametrize(
    "name", ["arrival_time", "arrivalTime", "Timestamp", "request_timestamp", "time_s", "start_time"]
)
def test_a_column_that_looks_like_arrivals_is_not_replaced_by_drawn_ones(refused, name):
    said = refused(f"{name},num_prefill_tokens,num_decode_tokens\n0.5,10,1\n")
    assert said.startswith(f":1: the column {name!r} looks like arrival times")
    assert "name it arrived_at, as Vidur does, in seconds, or remove it to have them drawn" in said
    lab = f"session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms,{name}x\n0,0,0,1,1,0,5\n"
    if "arriv" in name or "stamp" in name:
        assert "name it arrival_time, as TraceLab does" in refused(lab)


def test_columns_of_durations_are_no_arrivals(rows):
    found, _ = rows(
        "trace,t_s,in_tokens,out_tokens,cached_tokens,new_tokens,api_time_s,think_time_s,ttft_s\nx,0,10,1,0,10,1,1,1\n"
    )
    assert len(found) == 1


def test_a_burstgpt_row_without_a_prompt_is_dropped_and_counted(rows):
    found, report = rows(
        "Timestamp,Model,Request tokens,Response tokens\n1,G,10,5\n2,G,0,5\n3,G,0,0\n4,G,7,0\n5,G,20,5\n"
    )
    assert [r.new_tokens for r in found] == [10, 20]
    assert report.dropped == {"without a prompt (0 request tokens)": 1, "failed (0 response tokens)": 2}


# -- archives


def archive(count: int = 3, format_: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format_) as tar:
        for i in range(count):
            calls = [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}]
            data = json.dumps({"id": f"s{i}", "block_size": 64, "requests": calls}).encode()
            member = tarfile.TarInfo(f"{'d' * 120}/s{i}.json")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_a_tar_that_was_cut_anywhere_is_refused(rows, refused, format_):
    whole = archive(format_=format_)
    assert len(rows(whole)[0]) == 3
    content = len(whole.rstrip(b"\0"))
    for size in range(512, content, 512):
        assert "is the file complete?" in refused(whole[:size], "agentx")
    assert "is the file complete?" in refused(gzip.compress(whole[: content // 512 * 512]), "agentx")


def test_a_damaged_header_in_the_middle_is_not_the_end(refused):
    whole = bytearray(archive(format_=tarfile.USTAR_FORMAT))
    whole[1024 + 150] ^= 1
    assert "is the file complete?" in refused(bytes(whole))


def test_a_second_tar_behind_the_first_is_not_left_out(refused):
    assert "goes on behind the end of the tar (two joined?)" in refused(archive(1) + archive(2))


def test_a_name_of_megabytes_is_not_read_into_memory(refused):
    member = tarfile.TarInfo("n")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 2**31
    assert "a tar with a name of 2,147,483,648 bytes" in refused(
        member.tobuf(tarfile.GNU_FORMAT) + b"x" * 10_240, "agentx"
    )


def test_sparse_files_are_refused(refused):
    member = tarfile.TarInfo("n.json")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
    assert "a tar with sparse files" in refused(member.tobuf(tarfile.GNU_FORMAT) + b"\0" * 10_240, "agentx")
