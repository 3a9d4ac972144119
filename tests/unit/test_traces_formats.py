"""Every trace format: recognised by content, read by its own rules, refused with file, line, value and remedy."""

import io
import json
import tarfile

import pytest
import trace_samples
from trace_samples import CALLS, COMPRESSIONS, GAP_S, SAMPLES, SESSIONS, cached, output, tokens

from workloads.traces.formats import SOURCES, open_trace
from workloads.traces.reading import read
from workloads.traces.trace import TraceError


def rows_of(path, source="auto", **options):
    reading = open_trace(path, source, **options)
    return list(reading), reading.report()


@pytest.fixture
def rows(tmp_path):
    """rows(text) -> (rows, report) of a file with that content."""

    def rows(content, source="auto", **options):
        path = tmp_path / "t.trace"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return rows_of(path, source, **options)

    return rows


@pytest.fixture
def refused(rows):
    def refused(content, source="auto"):
        with pytest.raises(TraceError) as error:
            rows(content, source)
        return str(error.value)

    return refused


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_is_recognised_by_its_content_and_read(tmp_path, name, compression):
    source, title, _ = SAMPLES[name]
    found, report = rows_of(trace_samples.write(name, tmp_path, compression))
    assert report.format == title
    assert rows_of(tmp_path / f"{name}.trace", source)[0] == found
    if name == "agentx-one":
        assert len(found) == CALLS / SESSIONS
        return
    assert report.rows_kept == len(found) == CALLS
    assert sorted((r.new_tokens + r.cached_tokens, r.output_tokens) for r in found) == [
        (tokens(i), output(i)) for i in range(CALLS)
    ]


@pytest.mark.parametrize("name", ["mooncake", "azure-2023", "azure-2024", "tracelab-rounds", "bailian", "burstgpt"])
def test_times_are_seconds_from_the_first_row_whatever_the_unit(tmp_path, name):
    found, report = rows_of(trace_samples.write(name, tmp_path))
    assert [r.time_s for r in found] == pytest.approx([GAP_S * i for i in range(CALLS)], abs=1e-9)
    assert report.span_s == pytest.approx(GAP_S * (CALLS - 1))
    assert report.mean_rate_per_s == pytest.approx(report.rows_read / report.span_s)
    assert not report.warnings or name == "tracelab-rounds"


@pytest.mark.parametrize("name", ["agentx-turns", "tracelab", "tracelab-sessions", "tracelab-rounds"])
def test_recorded_prefixes_are_taken_as_they_are(tmp_path, name):
    found, _ = rows_of(trace_samples.write(name, tmp_path))
    by_context = {r.new_tokens + r.cached_tokens: r.cached_tokens for r in found}
    assert by_context == {tokens(i): cached(i) for i in range(CALLS)}


@pytest.mark.parametrize(("name", "size"), [("mooncake", 512), ("bailian", 16), ("agentx", 64)])
def test_prefixes_follow_from_blocks_of_the_formats_size(tmp_path, name, size):
    found, _ = rows_of(trace_samples.write(name, tmp_path))
    by_context = {r.new_tokens + r.cached_tokens: r.cached_tokens for r in found}
    assert by_context == {tokens(i): cached(i) // size * size for i in range(CALLS)}


@pytest.mark.parametrize("name", ["azure-2023", "burstgpt", "vidur", "splitwise", "vidur-lengths"])
def test_without_prefix_information_every_token_is_new_and_the_report_says_so(tmp_path, name):
    found, report = rows_of(trace_samples.write(name, tmp_path))
    assert {r.cached_tokens for r in found} == {0}
    assert "no prefix information: every token is new" in report.lines()


@pytest.mark.parametrize("name", ["agentx", "agentx-turns", "tracelab", "tracelab-rounds", "bailian", "burstgpt"])
def test_calls_of_a_session_share_its_name(tmp_path, name):
    found, report = rows_of(trace_samples.write(name, tmp_path))
    numbers = {}
    for r in found:
        numbers.setdefault(r.session, set()).add((r.new_tokens + r.cached_tokens - 2_000) // 100 % SESSIONS)
    assert len(numbers) == SESSIONS == report.sessions
    assert all(len(of_session) == 1 for of_session in numbers.values())


def test_seven_fractional_digits_of_azure_count(rows):
    found, report = rows(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 23:59:59.9999999,4808,10\n2023-11-17 00:00:00.0000001,3180,8\n2023-11-17 00:00:01,7,8\n"
    )
    assert [r.time_s for r in found] == [0.0, 2e-7, 1.0000001]
    assert any("2023-11-16 23:59:59.999999900 subtracted" in line for line in report.lines())


def test_an_offset_from_utc_moves_the_time(rows):
    found, _ = rows(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 02:00:00+02:00,10,1\n2024-05-10 00:00:03.5+00:00,10,1\n"
    )
    assert found[1].time_s == 3.5


def test_columns_are_found_by_name_whatever_their_order_case_and_company(rows):
    found, _ = rows("id,GeneratedTokens,contexttokens,TIMESTAMP\na,1,77,2024-01-01 00:00:00\n")
    assert (found[0].new_tokens, found[0].output_tokens) == (77, 1)


def test_a_failed_burstgpt_row_is_counted_and_never_replayed(tmp_path):
    found, report = rows_of(trace_samples.write("burstgpt", tmp_path))
    assert report.rows_read == CALLS + 2
    assert report.dropped == {"failed (0 response tokens)": 2}
    assert 700 not in {r.new_tokens for r in found}


def test_bailian_input_length_is_the_whole_prompt_and_its_times_are_seconds(rows):
    first = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 10.5, "input_length": 33, "hash_ids": [5, 6, 7]}
    second = {"chat_id": 2, "parent_chat_id": 1, "timestamp": 12.0, "input_length": 40, "hash_ids": [5, 6, 9]}
    stray = {"chat_id": 3, "parent_chat_id": 99, "timestamp": 13.0, "input_length": 1, "hash_ids": [8]}
    found, _ = rows("".join(json.dumps(row) + "\n" for row in (first, second, stray)))
    assert [(r.time_s, r.new_tokens, r.cached_tokens, r.session) for r in found] == [
        (0.0, 33, 0, "1"),
        (1.5, 8, 32, "1"),
        (2.5, 1, 0, "99"),
    ]


def test_tracelab_input_is_new_tokens_and_a_round_follows_the_answer_and_the_tool(rows):
    found, _ = rows(
        "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
        "0,200,0,0,512,407,100\n0,200,1,576,128,64,0\n1,300,0,0,400,48,80\n"
    )
    # 407 tokens at 40.7 per s are 10 s.
    assert [(r.time_s, r.new_tokens, r.cached_tokens, r.session) for r in found] == [
        (0.0, 512, 0, "0"),
        (pytest.approx(0.1), 400, 0, "1"),
        (pytest.approx(10.1), 128, 576, "0"),
    ]


def test_a_tracelab_round_arrives_with_its_last_input_before_the_answer(rows):
    def one(session, *events):
        row = {"session_id": session, "round_index": 0, "input_tokens_total": 10, "prefix_tokens": 4}
        row |= {"newly_append_tokens": 6, "output_tokens": 1}
        row["timing_events"] = [{"event_type": e, "timestamp": f"2026-06-01T05:40:{s}Z"} for e, s in events]
        return json.dumps(row) + "\n"

    found, _ = rows(
        one("b", ("text", "30.000"), ("tool_result", "50.000"))
        + one(
            "a", ("user_message", "20.000"), ("tool_result", "21.250"), ("text", "40.000"), ("user_message", "45.000")
        )
    )
    assert [(r.session, r.time_s) for r in found] == [("a", 0.0), ("b", 8.75)]


def test_sub_agents_run_beside_their_session_and_share_its_cache(rows):
    call = {"type": "n", "in": 130, "out": 1}
    session = {
        "id": "s",
        "block_size": 64,
        "requests": [
            {"t": 1.0, **call, "hash_ids": [1, 2]},
            {"t": 2.0, "type": "subagent", "requests": [{"t": 0.5, **call, "hash_ids": [1, 3]}]},
            {"t": 2.25, **call, "hash_ids": [1, 2]},
        ],
    }
    found, report = rows(json.dumps(session, indent=1))
    # The last block, of two tokens, has no id: it is never a hit.
    assert [(r.time_s, r.cached_tokens) for r in found] == [(0.0, 0), (1.25, 128), (1.5, 64)]
    assert not report.has_arrival_times
    assert report.mean_rate_per_s is None


def test_equal_block_ids_of_two_agentx_sessions_are_no_hit(tmp_path):
    path = tmp_path / "two.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("a", "b"):
            requests = [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}]
            data = json.dumps({"id": name, "block_size": 64, "requests": requests}).encode()
            member = tarfile.TarInfo(f"{name}.json")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert [r.cached_tokens for r in rows_of(path)[0]] == [0, 0]


def test_a_sub_agents_turns_count_from_its_start(rows):
    found, _ = rows(
        "trace,agent_t0_s,t_s,in_tokens,out_tokens,cached_tokens,new_tokens\n"
        "x,0,5.0,10,1,0,10\nx,134.25,0.0,20,1,0,20\nx,0,9.0,30,1,10,20\n"
    )
    assert [(r.time_s, r.new_tokens) for r in found] == [(0.0, 10), (4.0, 20), (129.25, 20)]


def test_at_least_one_token_is_computed_where_all_are_recorded_as_cached(rows):
    found, _ = rows("trace,t_s,in_tokens,out_tokens,cached_tokens,new_tokens\nx,0,10,1,10,0\n")
    assert (found[0].new_tokens, found[0].cached_tokens) == (1, 9)


def test_rows_over_the_context_limit_are_dropped_and_counted_in_every_format(tmp_path):
    for name in SAMPLES:
        reading = open_trace(trace_samples.write(name, tmp_path), max_context_tokens=2_500)
        kept = list(reading)
        assert kept
        assert all(r.new_tokens + r.cached_tokens <= 2_500 for r in kept), name
        assert "longer than 2500 tokens" in reading.report().dropped, name


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,10,1\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,1\n"
TURNS = "trace,t_s,in_tokens,out_tokens,cached_tokens,new_tokens\nx,0,10,1,0,10\n"
LAB = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n0,0,0,0,5,1,0\n"


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (AZURE + "2023-13-16 18:17:03,10,1\n", 3, "no date and time"),
        (AZURE + "1700158623,10,1\n", 3, "'1700158623' is no date and time"),
        (AZURE + "2023-11-16 18:17:02,10,1\n", 3, "2023-11-16 18:17:02.000000000 comes after 2023-11-16 18:17:03.0"),
        (AZURE + "2023-11-16 18:17:04,-1,1\n", 3, "ContextTokens '-1'"),
        (AZURE + "2023-11-16 18:17:04,10\n", 3, "2 cells where the header has 3"),
        (VIDUR + "nan,10,1\n", 3, "not finite"),
        (VIDUR + "-0.5,10,1\n", 3, "not finite and at least 0"),
        (VIDUR + "inf,10,1\n", 3, "not finite"),
        (VIDUR + "1_0,10,1\n", 3, "no number of seconds"),
        (VIDUR + "1,0,1\n", 3, "num_prefill_tokens '0'"),
        (VIDUR + "1,10.5,1\n", 3, "no whole number"),
        (VIDUR + "1,99999999999999,1\n", 3, "no whole number"),
        (VIDUR + '1,"10,1\n', 3, "not a CSV row"),
        (TURNS + "x,1,10,1,4,5\n", 3, "do not add up to in_tokens 10"),
        (TURNS + "y,1,10,1,0,10\nx,1,10,1,0,10\n", 4, "session x appears again"),
        (LAB + "0,7,1,0,5,1,0\n", 3, "arrival_time 7 ms where session 0 arrived at 0 ms"),
        (LAB + "0,0,0,0,5,1,0\n", 3, "round_idx 0 comes after 0"),
        (LAB + "1,9,0,0,5,1,0\n2,8,0,0,5,1,0\n", 4, "sort the sessions by arrival_time"),
        ("TIMESTAMP,ContextTokens\n", 1, "of no known format"),
        ('{"timestamp": 1}\n', 1, "of no known format"),
        ("\x00\x01\x02", 1, "of no known format"),
    ],
)
def test_a_row_outside_its_format_is_refused_with_file_and_line(refused, content, line, message):
    said = refused(content)
    assert f"t.trace:{line}: " in said
    assert message in said


def test_a_given_source_says_which_column_is_missing(refused):
    assert "no column TIMESTAMP" in refused("arrived_at,num_prefill_tokens\n1,2\n", "azure")
    assert "no timestamp" in refused('{"x": 1}\n', "mooncake")


def test_a_bailian_row_with_blocks_of_another_size_is_refused(refused):
    row = {"chat_id": 1, "timestamp": 1, "input_length": 1000, "hash_ids": [1, 2]}
    assert "63 blocks of 16 tokens" in refused(json.dumps(row) + "\n")


def test_a_damaged_agentx_session_is_refused_with_its_file_in_the_tar_session_and_request(tmp_path):
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as archive:
        data = json.dumps({"id": "a", "block_size": 64, "requests": [{"t": -1, "in": 1, "out": 1, "hash_ids": []}]})
        member = tarfile.TarInfo("in/a.json")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data.encode()))
    with pytest.raises(TraceError, match=r"s\.tar\(in/a\.json\):1: session a, request 1: t -1 seconds is not finite"):
        rows_of(path)


@pytest.mark.parametrize("source", SOURCES)
def test_missing_and_empty_files_are_refused_whatever_the_source(tmp_path, source):
    with pytest.raises(TraceError, match="no such file"):
        rows_of(tmp_path / "nothing", source)
    with pytest.raises(TraceError, match="a directory; give a file"):
        rows_of(tmp_path, source)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(TraceError):
        rows_of(tmp_path / "empty", source)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_compressed_file_that_was_cut_is_refused(tmp_path, compression):
    path = tmp_path / "cut"
    path.write_bytes(COMPRESSIONS[compression](trace_samples.bailian())[:-40])
    with pytest.raises(TraceError, match="is the file complete"):
        rows_of(path)


def test_a_file_without_line_ends_does_not_fill_the_memory(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(COMPRESSIONS["zstd"](AZURE.encode() + b"1" * 40_000_000))
    with pytest.raises(TraceError, match=r":3: a line of over"):
        rows_of(path)


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 10_000, '{"a":' * 100_000])
def test_numbers_and_brackets_without_end_are_refused(refused, value):
    assert "t.trace:1: " in refused('{"timestamp": ' + value + "\n", "mooncake")


def test_an_unknown_source_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="known sources: auto, mooncake, azure"):
        open_trace(trace_samples.write("azure-2023", tmp_path), "azur")


def test_a_trace_of_dropped_rows_only_is_refused_with_the_reasons(refused):
    said = refused("Timestamp,Model,Request tokens,Response tokens\n1,G,10,0\n2,G,10,0\n")
    assert "all 2 rows are dropped (2 failed (0 response tokens))" in said


def test_read_holds_the_whole_trace(tmp_path):
    from workloads.traces import azure

    trace = read(trace_samples.write("azure-2024", tmp_path), azure.FORMAT)
    assert len(trace.rows) == trace.report.rows_read == CALLS
    assert trace.report.complete
