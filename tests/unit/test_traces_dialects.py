"""Keys of dialects that change what a row means are refused by name, in every format that may have them."""

import csv
import io
import json

import pytest
import trace_samples
from trace_samples import SAMPLES

from workloads.traces.formats import open_trace
from workloads.traces.trace import TraceError

COMMON = {
    "delay": 12.5,
    "delay_ms": 3,
    "tool_wait_ms": 20,
    "wait_for": ["r0"],
    "prefix_reset": True,
    "messages": [{"role": "user", "content": "hello"}],
    "text_input": "hello",
    "payload": {"prompt": "hello"},
    "message_mode": "delta",
    "context_mode": "deltas_with_responses",
}
JSON = ("mooncake", "bailian", "tracelab-rounds")
TABLES = ("azure-2023", "azure-2024", "burstgpt", "vidur", "vidur-lengths", "splitwise")
CSV = (*TABLES, "agentx-turns", "tracelab", "tracelab-sessions")


def lines_with(name, key, value, row=3):
    """The sample with the key in one of its rows."""
    text = SAMPLES[name][2]().decode()
    if name in JSON:
        rows = [json.loads(line) for line in text.splitlines()]
        rows[row][key] = value
        if name == "mooncake" and key == "context_mode":
            rows[row]["session_id"] = "x"
        return "".join(json.dumps(each) + "\n" for each in rows), row + 1
    rows = list(csv.reader(io.StringIO(text)))
    for i, cells in enumerate(rows):
        cells.append(key if i == 0 else json.dumps(value) if i == row + 1 else "")
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue(), row + 2


def read(path, content, source="auto"):
    path.write_text(content)
    return list(open_trace(path, source))


@pytest.mark.parametrize("key", COMMON)
@pytest.mark.parametrize("name", [*JSON, *CSV])
def test_a_key_that_changes_a_row_is_refused_with_its_line(tmp_path, name, key):
    content, line = lines_with(name, key, COMMON[key])
    with pytest.raises(TraceError, match=rf"t\.trace:{line}: {key} .*; "):
        read(tmp_path / "t.trace", content)


@pytest.mark.parametrize("key", ["session_id", "block_hash_ids", "hash_ids"])
@pytest.mark.parametrize("name", TABLES)
def test_sessions_and_blocks_that_a_table_has_no_reader_for_are_refused(tmp_path, name, key):
    content, line = lines_with(name, key, "7")
    with pytest.raises(TraceError, match=rf":{line}: {key} .*; "):
        read(tmp_path / "t.trace", content)


@pytest.mark.parametrize("name", [*JSON, *CSV])
def test_keys_that_say_nothing_do_nothing(tmp_path, name):
    plain = read(tmp_path / "t.trace", SAMPLES[name][2]().decode())
    for key, value in (("wait_for", []), ("prefix_reset", False), ("tool_wait_ms", 0), ("messages", None)):
        content, _ = lines_with(name, key, "" if value is None and name in CSV else value)
        assert read(tmp_path / "t.trace", content.replace('""""""', "")) == plain, key
    content, _ = lines_with(name, "note", "anything")
    assert read(tmp_path / "t.trace", content) == plain


@pytest.mark.parametrize(
    ("name", "key", "value", "harmless"),
    [
        ("mooncake", "block_size", 16, 512),
        ("bailian", "block_size", 512, 16),
        ("mooncake", "trace_block_size", 64, 512),
        ("azure-2023", "NumImages", 2, 0),
    ],
)
def test_a_key_of_one_format_is_refused_but_where_it_says_what_holds_anyway(tmp_path, name, key, value, harmless):
    content, line = lines_with(name, key, value)
    with pytest.raises(TraceError, match=rf":{line}: {key} '?{value}'? "):
        read(tmp_path / "t.trace", content)
    content, _ = lines_with(name, key, harmless)
    assert read(tmp_path / "t.trace", content)


def test_splitwise_rows_of_several_prompts_or_of_no_language_model_are_refused(tmp_path):
    header = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
    assert len(read(tmp_path / "t.trace", header + "0,2,0,1,1,4096,32\n")) == 1
    with pytest.raises(TraceError, match=":2: batch_size '4' makes the row several prompts"):
        read(tmp_path / "t.trace", header + "0,2,0,1,4,4096,32\n")
    with pytest.raises(TraceError, match=":2: request_type '1' is no request to a language model"):
        read(tmp_path / "t.trace", header + "0,1,0,1,1,4096,32\n")


@pytest.mark.parametrize("scope", ["global", "per_context"])
def test_agentx_ids_of_another_scope_are_refused(tmp_path, scope):
    session = {**trace_samples.agentx_session(0), "hash_id_scope": scope}
    with pytest.raises(TraceError, match=rf"hash_id_scope '{scope}' gives the block ids another scope"):
        read(tmp_path / "t.trace", json.dumps(session))


def test_agentx_requests_that_wait_are_refused_with_their_number(tmp_path):
    session = trace_samples.agentx_session(0)
    session["requests"][1]["wait_for"] = ["x"]
    with pytest.raises(TraceError, match=r"session trace_0000, request 2: wait_for \['x'\] lets the request wait"):
        read(tmp_path / "t.trace", json.dumps(session))


def test_the_first_turn_of_a_mooncake_session_may_say_that_it_waits_for_nothing(tmp_path):
    first = {"session_id": "a", "timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1], "delay": 0}
    assert len(read(tmp_path / "t.trace", json.dumps(first) + "\n")) == 1
    later = {"session_id": "a", "input_length": 512, "output_length": 1, "hash_ids": [2], "delay": 0}
    with pytest.raises(TraceError, match=r":2: delay 0 lets the request wait for the answer before it; give every row"):
        read(tmp_path / "t.trace", json.dumps(first) + "\n" + json.dumps(later) + "\n")
