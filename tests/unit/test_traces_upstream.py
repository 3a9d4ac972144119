"""The published files that the readers claim, held against counts made here from their raw rows, without our readers.

They are not shipped. The list in docs/reference/workloads.md says where each is from; they are looked for in
../shared/data, or below HELIOGRAPH_TRACES, by the names below, and a file that is not there is skipped.
"""

import csv
import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from workloads.traces.formats import open_trace

DATA = Path(os.environ.get("HELIOGRAPH_TRACES", Path(__file__).parents[3] / "shared" / "data"))
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "workloads.md"


def content(path):
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def json_lines(path):
    return [json.loads(line) for line in content(path).splitlines() if line.strip()]


def csv_rows(path):
    return list(csv.DictReader(io.StringIO(content(path).decode())))


def cached_by_blocks(prompts, size):
    """Cached tokens of (tokens, block ids) in order: leading blocks that some prompt before had, but one token."""
    seen, cached = set(), 0
    for tokens, ids in prompts:
        hits = next((i for i, block in enumerate(ids) if block not in seen), len(ids))
        cached += min(hits * size, tokens - 1)
        seen.update(ids)
    return cached


def blocks(size):
    def count(path):
        rows = json_lines(path)
        cached = cached_by_blocks([(row["input_length"], row["hash_ids"]) for row in rows], size)
        return len(rows), sum(row["input_length"] for row in rows), cached

    return count


def column(name):
    def count(path):
        rows = csv_rows(path)
        return len(rows), sum(int(row[name]) for row in rows), None

    return count


def answered_burstgpt(path):
    rows = [row for row in csv_rows(path) if int(row["Response tokens"])]
    return len(rows), sum(int(row["Request tokens"]) for row in rows), None


def turns(path):
    rows = csv_rows(path)
    # at least one token of a prompt is computed
    cached = sum(min(int(row["cached_tokens"]), int(row["in_tokens"]) - 1) for row in rows)
    return len(rows), sum(int(row["in_tokens"]) for row in rows), cached


def flat(requests, start_s=0.0):
    for request in requests:
        at_s = start_s + request["t"]
        if "requests" in request:
            yield from flat(request["requests"], at_s)
        else:
            yield at_s, request["in"], request["hash_ids"]


def agentx(path):
    data, sessions = content(path), []
    if data.lstrip()[:1] == b"{":
        sessions = [json.loads(data)]
    else:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = [member for member in archive if member.name.endswith(".json")]
            sessions = [json.loads(archive.extractfile(member).read()) for member in members]
    calls = [sorted(flat(session["requests"]), key=lambda call: call[0]) for session in sessions]
    found = [
        cached_by_blocks([call[1:] for call in of], session["block_size"])
        for of, session in zip(calls, sessions, strict=True)
    ]
    return sum(map(len, calls)), sum(call[1] for of in calls for call in of), sum(found)


def replay_csv(path):
    rows = csv_rows(path)
    prefixes = [int(row["prefix_len"]) for row in rows]
    return len(rows), sum(prefixes) + sum(int(row["input_len"]) for row in rows), sum(prefixes)


def rounds(path):
    rows = json_lines(path)
    return len(rows), sum(row["input_tokens_total"] for row in rows), sum(row["prefix_tokens"] for row in rows)


#: (repository, its file, where it is looked for, its count: rows, input tokens, cached tokens)
FILES = [
    (
        "kvcache-ai/Mooncake",
        "FAST25-release/traces/conversation_trace.jsonl",
        "mooncake/conversation_trace.jsonl.gz",
        blocks(512),
    ),
    (
        "kvcache-ai/Mooncake",
        "FAST25-release/traces/synthetic_trace.jsonl",
        "mooncake/synthetic_trace.jsonl",
        blocks(512),
    ),
    (
        "kvcache-ai/Mooncake",
        "FAST25-release/traces/toolagent_trace.jsonl",
        "mooncake/toolagent_trace.jsonl",
        blocks(512),
    ),
    (
        "kvcache-ai/Mooncake",
        "FAST25-release/arxiv-trace/mooncake_trace.jsonl",
        "mooncake/mooncake_trace.jsonl",
        blocks(512),
    ),
    (
        "Azure/AzurePublicDataset",
        "data/AzureLLMInferenceTrace_code.csv",
        "azure/AzureLLMInferenceTrace_2023_code.csv.gz",
        column("ContextTokens"),
    ),
    (
        "Azure/AzurePublicDataset",
        "data/AzureLLMInferenceTrace_conv.csv",
        "azure/AzureLLMInferenceTrace_2023_conv.csv.gz",
        column("ContextTokens"),
    ),
    (
        "callanjfox/kv-cache-tester",
        "traces/trace_0026.json",
        "kv-cache-tester/trace_0026.json",
        agentx,
    ),
    (
        "callanjfox/kv-cache-tester",
        "traces/",
        "kv-cache-tester/raw_sample_40_traces_ctx_le_128k.tar.gz",
        agentx,
    ),
    (
        "callanjfox/kv-cache-tester",
        "traces/ as a table of turns",
        "kv-cache-tester/turns.csv.gz",
        turns,
    ),
    (
        "uw-syfi/TraceLab",
        "replay/examples/multi_session_example.csv",
        "tracelab/replay_example_multi_session_example.csv",
        replay_csv,
    ),
    (
        "uw-syfi/TraceLab",
        "replay/examples/multi_session_large.csv",
        "tracelab/replay_example_multi_session_large.csv",
        replay_csv,
    ),
    (
        "uw-syfi/TraceLab",
        "replay/examples/session_workload_example.csv",
        "tracelab/replay_example_session_workload_example.csv",
        replay_csv,
    ),
    (
        "uw-syfi/TraceLab",
        "example_sessions/derived/round_trace.jsonl",
        "tracelab/round_trace.jsonl",
        rounds,
    ),
    (
        "uw-syfi/TraceLab",
        "example_sessions/sanitized/round_trace.jsonl",
        "tracelab/round_trace_slim.jsonl",
        rounds,
    ),
    (
        "alibaba-edu/qwen-bailian-usagetraces-anon",
        "qwen_traceA_blksz_16.jsonl",
        "bailian/qwen_traceA_blksz_16.jsonl",
        blocks(16),
    ),
    (
        "alibaba-edu/qwen-bailian-usagetraces-anon",
        "qwen_traceB_blksz_16.jsonl",
        "bailian/qwen_traceB_blksz_16.jsonl",
        blocks(16),
    ),
    (
        "HPMLL/BurstGPT",
        "data/BurstGPT_1.csv",
        "burstgpt/BurstGPT_1.csv",
        answered_burstgpt,
    ),
    (
        "microsoft/vidur",
        "data/processed_traces/splitwise_code.csv",
        "vidur/splitwise_code.csv",
        column("num_prefill_tokens"),
    ),
    (
        "microsoft/vidur",
        "data/processed_traces/splitwise_conv.csv",
        "vidur/splitwise_conv.csv",
        column("num_prefill_tokens"),
    ),
    (
        "microsoft/vidur",
        "data/processed_traces/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
        "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
        column("num_prefill_tokens"),
    ),
    (
        "Mutinifni/splitwise-sim",
        "traces/test_trace.csv",
        "splitwise-sim/test_trace.csv",
        column("prompt_size"),
    ),
]


@pytest.mark.parametrize(("repository", "file", "local", "count"), FILES, ids=[local for _, _, local, _ in FILES])
def test_a_published_file_is_read_as_its_raw_rows_count(repository, file, local, count):
    path = DATA / local
    if not path.exists():
        pytest.skip(f"{file} of {repository} is not on this machine (looked for {path})")
    reading = open_trace(path, max_context_tokens=10**9)
    rows = list(reading)
    read, tokens, cached = count(path)
    assert len(rows) == read
    assert sum(row.new_tokens + row.cached_tokens for row in rows) == tokens
    assert sum(row.cached_tokens for row in rows) == (cached or 0)
    assert reading.report().token_hit_rate == pytest.approx((cached or 0) / tokens)
    assert (reading.report().prefixes == "none") == (cached is None)


def test_the_documentation_lists_every_file():
    text = DOCS.read_text()
    for repository, file, _, _ in FILES:
        assert repository in text
        assert file.partition(" as ")[0] in text
