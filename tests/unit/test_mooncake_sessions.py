"""Mooncake rows of sessions: deltas become whole prompts with what came before as their prefix, whole prompts stay."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli import app
from workloads.traces.formats import open_trace
from workloads.traces.trace import TraceError


@pytest.fixture
def read(tmp_path):
    """read(rows) -> (rows as the reader gives them, report)."""

    def read(*rows, source="auto"):
        path = tmp_path / "t.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        reading = open_trace(path, source)
        return list(reading), reading.report()

    return read


def turn(session, at_ms, tokens, answer, ids=None, first_id=0, **more):
    ids = [first_id + i for i in range(-(-tokens // 512))] if ids is None else ids
    return {
        "session_id": session, "timestamp": at_ms, "input_length": tokens, "output_length": answer, "hash_ids": ids,
        **more,
    }  # fmt: skip


def sizes(rows):
    return [(row.new_tokens + row.cached_tokens, row.cached_tokens, row.session) for row in rows]


def test_a_turn_that_is_a_delta_has_all_that_came_before_as_its_prefix(read):
    rows, report = read(turn("x", 0, 4190, 592, first_id=1), turn("x", 9000, 592, 16, [20, 21]))
    assert sizes(rows) == [(4190, 0, "x"), (5374, 4782, "x")]
    assert (report.sessions, report.delta_turns) == (1, 1)
    assert report.token_hit_rate == pytest.approx(4782 / (4190 + 5374))


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(512, 3000), st.integers(0, 900)),
        min_size=1,
        max_size=30,
    )
)
@settings(deadline=None)
def test_any_sessions_of_deltas_add_up(tmp_path_factory, turns):
    path = tmp_path_factory.mktemp("t") / "t.jsonl"
    texts, context, expected = [], {}, []
    for i, (session, tokens, answer) in enumerate(turns):
        texts.append(json.dumps(turn(f"s{session}", 1000 * i, tokens, answer, first_id=100 * i)) + "\n")
        before = context.get(session, 0)
        expected.append((before + tokens, before))
        context[session] = before + tokens + answer
    path.write_text("".join(texts))
    rows = list(open_trace(path, max_context_tokens=10**9))
    assert [(row.new_tokens + row.cached_tokens, row.cached_tokens) for row in rows] == expected


def test_whole_prompts_of_a_session_are_read_as_what_they_are(read):
    rows, report = read(turn("x", 0, 1024, 100, [1, 2]), turn("x", 9000, 1300, 16, [1, 2, 3]))
    assert sizes(rows) == [(1024, 0, "x"), (1300, 1024, "x")]
    assert (report.sessions, report.delta_turns) == (1, 0)


def test_first_turns_share_prefixes_with_other_sessions_and_deltas_do_not(read):
    rows, _ = read(
        turn("a", 0, 1024, 10, [1, 2]), turn("b", 1, 1536, 10, [1, 2, 3]),
        turn("a", 2, 512, 10, [9]), turn("c", 3, 512, 1, [9])
    )  # fmt: skip
    assert [row.cached_tokens for row in rows] == [0, 1024, 1034, 0]


def test_rows_without_a_session_stand_beside_sessions(read):
    alone = {"timestamp": 5, "input_length": 512, "output_length": 1, "hash_ids": [1]}
    rows, report = read(turn("a", 0, 512, 10, [1]), alone, {**alone, "session_id": None, "timestamp": 6})
    assert sizes(rows) == [(512, 0, "a"), (512, 511, ""), (512, 511, "")]
    assert report.sessions == 1


def test_a_file_whose_sessions_contradict_each_other_is_refused_and_the_source_decides(read):
    rows = (
        turn("a", 0, 1024, 100, [1, 2]), turn("a", 1, 512, 10, [7]),
        turn("b", 2, 1024, 10, [3, 4]), turn("b", 3, 1536, 10, [3, 4, 5]),
    )  # fmt: skip
    with pytest.raises(TraceError, match=r":4: .*whole prompts.* line 2 .*mooncake-delta or mooncake-whole"):
        read(*rows)
    assert [size for size, *_ in sizes(read(*rows, source="mooncake-delta")[0])] == [1024, 1636, 1024, 2570]
    assert [size for size, *_ in sizes(read(*rows, source="mooncake-whole")[0])] == [1024, 512, 1024, 1536]


@pytest.mark.parametrize(
    ("mode", "second"), [("deltas_without_responses", 1646), ("message_array_with_responses", 1024)]
)
def test_a_row_may_say_what_it_holds(read, mode, second):
    ids = [1, 2]
    rows, _ = read(turn("a", 0, 522, 100, ids, context_mode=mode), turn("a", 1, 1024, 1, ids, context_mode=mode))
    assert rows[1].new_tokens + rows[1].cached_tokens == second


def test_a_row_that_says_otherwise_than_the_source_or_what_nobody_knows_is_refused(read):
    with pytest.raises(TraceError, match=":1: context_mode deltas_without_responses where the source says"):
        read(turn("a", 0, 10, 1, context_mode="deltas_without_responses"), source="mooncake-whole")
    with pytest.raises(TraceError, match="context_mode 'deltas_with_responses' is unknown"):
        read(turn("a", 0, 10, 1, context_mode="deltas_with_responses"))


def test_a_turn_after_an_answer_of_unknown_length_is_refused_with_the_line_of_the_answer(read):
    with pytest.raises(TraceError, match=r":1: no output_length, and the turn of session a in line 2"):
        read(turn("a", 0, 600, None, [1, 2]), turn("a", 1, 10, 1, [9]))


def test_the_trace_command_shows_sessions_and_hits(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(
        "".join(json.dumps(r) + "\n" for r in (turn("x", 0, 4190, 592), turn("x", 9000, 592, 16, [20, 21])))
    )
    done = CliRunner().invoke(app, ["trace", str(path), "--json"])
    found = json.loads(done.output)
    assert (found["sessions"], found["delta_turns"], found["context_tokens"]["max"]) == (1, 1, 5374)
    assert found["prefix_hit_rate"] == pytest.approx(0.5)
    assert "2 rows in 1 sessions" in CliRunner().invoke(app, ["trace", str(path)]).output
