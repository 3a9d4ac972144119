"""A small good file of every trace format, written as the public ones are: for readers, fuzzing and packet runs.

All hold the same 60 calls, two a second, in 12 sessions that take turns. A call has 2,000 + 100 * its number tokens.
"""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import zstandard

CALLS, SESSIONS, GAP_S = 60, 12, 0.5
START = datetime(2024, 5, 10, 12, 0, 0)


def tokens(i: int) -> int:
    return 2_000 + 100 * i


def output(i: int) -> int:
    return 10 + i


def blocks(i: int, size: int, *, partial: bool) -> list[int]:
    """A session's prompts grow: a call's blocks begin with those of the call before it, but for its last."""
    count = -(-tokens(i) // size) if partial else tokens(i) // size
    base = 10_000 * (i % SESSIONS)
    full = tokens(i) // size
    return [base + k for k in range(full)] + [base + 9_000 + i] * (count - full)


def cached(i: int) -> int:
    return tokens(i - SESSIONS) if i >= SESSIONS else 0


def _jsonl(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _csv(header: str, rows: list[str]) -> bytes:
    return "\n".join([header, *rows, ""]).encode()


def mooncake() -> bytes:
    return _jsonl(
        [
            {
                "timestamp": round(1e3 * GAP_S * i),
                "input_length": tokens(i),
                "output_length": output(i),
                "hash_ids": blocks(i, 512, partial=True),
            }
            for i in range(CALLS)
        ]
    )


def azure_2023() -> bytes:
    stamps = [START + i * timedelta(seconds=GAP_S) for i in range(CALLS)]
    rows = [f"{stamp:%Y-%m-%d %H:%M:%S.%f}0,{tokens(i)},{output(i)}" for i, stamp in enumerate(stamps)]
    return _csv("TIMESTAMP,ContextTokens,GeneratedTokens", rows)


def azure_2024() -> bytes:
    stamps = [START + i * timedelta(seconds=GAP_S) for i in range(CALLS)]
    # as published: a whole second is written without its fraction
    rows = [f"{stamp}+00:00,{tokens(i)},{output(i)}" for i, stamp in enumerate(stamps)]
    return _csv("TIMESTAMP,ContextTokens,GeneratedTokens", rows)


def agentx_session(session: int) -> dict:
    calls = [
        {
            "t": GAP_S * (i - session),
            "type": "n",
            "in": tokens(i),
            "out": output(i),
            "hash_ids": blocks(i, 64, partial=False),
            "think_time": 1.0,
        }
        for i in range(session, CALLS, SESSIONS)
    ]
    # The last two calls are a sub-agent's: their times count from its start.
    start_s = calls[-2]["t"]
    for call in calls[-2:]:
        call["t"] -= start_s
    agent = {"t": start_s, "type": "subagent", "agent_id": "agent_001", "requests": calls[-2:]}
    return {
        "id": f"trace_{session:04d}",
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [*calls[:-2], agent],
    }


def agentx() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for session in range(SESSIONS):
            data = json.dumps(agentx_session(session)).encode()
            member = tarfile.TarInfo(f"trace_{session:04d}.json")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def agentx_one() -> bytes:
    return json.dumps(agentx_session(0)).encode()


def _in_sessions() -> list[tuple[int, int, int]]:
    """(session, round, call) with the calls of a session together."""
    return [(s, k, i) for s in range(SESSIONS) for k, i in enumerate(range(s, CALLS, SESSIONS))]


def agentx_turns() -> bytes:
    rows = [
        f"trace_{s:04d},{k},,0,{GAP_S * (i - s)},n,m,{tokens(i)},{output(i)},{cached(i)},{tokens(i) - cached(i)}"
        for s, k, i in _in_sessions()
    ]
    header = "trace,seq,agent,agent_t0_s,t_s,type,model,in_tokens,out_tokens,cached_tokens,new_tokens"
    return _csv(header, rows)


def tracelab() -> bytes:
    rows = [
        f"{s},{round(1e3 * GAP_S * s)},{k},{cached(i)},{tokens(i) - cached(i)},{output(i)},1000"
        for s, k, i in _in_sessions()
    ]
    return _csv("session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms", rows)


def tracelab_sessions() -> bytes:
    rows = [f"{s},{k},{cached(i)},{tokens(i) - cached(i)},{output(i)},1000" for s, k, i in _in_sessions()]
    return _csv("session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms", rows)


def tracelab_rounds() -> bytes:
    def stamp(i: int, after_s: float) -> str:
        return f"{START + timedelta(seconds=GAP_S * i + after_s):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"

    return _jsonl(
        [
            {
                "session_id": f"claude:{s}",
                "round_index": k,
                "input_tokens_total": tokens(i),
                "prefix_tokens": cached(i),
                "newly_append_tokens": tokens(i) - cached(i),
                "output_tokens": output(i),
                "timing_events": [
                    {"event_type": "tool_result", "timestamp": stamp(i, -0.25)},
                    {"event_type": "tool_result", "timestamp": stamp(i, 0)},
                    {"event_type": "text", "timestamp": stamp(i, 0.2)},
                    {"event_type": "tool_result", "timestamp": stamp(i, 0.3)},
                ],
            }
            for s, k, i in _in_sessions()
        ]
    )


def bailian() -> bytes:
    return _jsonl(
        [
            {
                "chat_id": i,
                "parent_chat_id": i - SESSIONS if i >= SESSIONS else -1,
                "timestamp": GAP_S * i,
                "input_length": tokens(i),
                "output_length": output(i),
                "type": "text",
                "turn": 1 + i // SESSIONS,
                "hash_ids": blocks(i, 16, partial=True),
            }
            for i in range(CALLS)
        ]
    )


def burstgpt() -> bytes:
    rows = [
        f"{GAP_S * i},{i % SESSIONS},1.5,ChatGPT,{tokens(i)},{output(i)},{tokens(i) + output(i)},Conversation log"
        for i in range(CALLS)
    ]
    rows.insert(7, "3.0,,,GPT-4,700,0,700,API log")
    rows.insert(7, "3.0,,,ChatGPT,0,0,0,Conversation log")
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    return _csv(header, rows)


def vidur() -> bytes:
    rows = [f"{GAP_S * i},{tokens(i)},{output(i)}" for i in range(CALLS)]
    return _csv("arrived_at,num_prefill_tokens,num_decode_tokens", rows)


def vidur_lengths() -> bytes:
    rows = [f"{tokens(i)},{output(i)},{tokens(i) + output(i)},{tokens(i) / output(i)}" for i in range(CALLS)]
    return _csv("num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio", rows)


def splitwise() -> bytes:
    rows = [f"{i},2,0,{GAP_S * i},1,{tokens(i)},{output(i)}" for i in range(CALLS)]
    return _csv("request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size", rows)


#: name of the sample -> (source, title of its format, content)
SAMPLES: dict[str, tuple[str, str, Callable[[], bytes]]] = {
    "mooncake": ("mooncake", "mooncake", mooncake),
    "azure-2023": ("azure", "azure", azure_2023),
    "azure-2024": ("azure", "azure", azure_2024),
    "agentx": ("agentx", "agentx sessions", agentx),
    "agentx-one": ("agentx", "agentx sessions", agentx_one),
    "agentx-turns": ("agentx", "agentx turns", agentx_turns),
    "tracelab": ("tracelab", "tracelab replay", tracelab),
    "tracelab-sessions": ("tracelab", "tracelab sessions", tracelab_sessions),
    "tracelab-rounds": ("tracelab", "tracelab rounds", tracelab_rounds),
    "bailian": ("bailian", "bailian", bailian),
    "burstgpt": ("burstgpt", "burstgpt", burstgpt),
    "vidur": ("vidur", "vidur", vidur),
    "vidur-lengths": ("vidur", "vidur lengths", vidur_lengths),
    "splitwise": ("splitwise", "splitwise", splitwise),
}
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
}


def write(name: str, folder: Path, compression: str = "plain") -> Path:
    """The sample as a file whose name tells nothing of its format."""
    path = folder / f"{name}.trace"
    path.write_bytes(COMPRESSIONS[compression](SAMPLES[name][2]()))
    return path
