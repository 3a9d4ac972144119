"""Traces of any size in every format, with rows as the public ones have them: what a reader keeps of each row shows."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO

import zstandard

START = datetime(2024, 5, 10)
ROWS_AT_ONCE = 1_000


def stamp(seconds: float, end: str = "+00:00") -> str:
    return f"{START + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S.%f}{end}"


def mooncake(n: int) -> str:
    # two fifths of a prompt's blocks were in the one before
    return json.dumps({"timestamp": 300 * n, "input_length": 51_200, "hash_ids": [*range(n * 60, n * 60 + 100)]}) + "\n"


def bailian(n: int) -> str:
    row = {
        "chat_id": n,
        "parent_chat_id": n - 40 if n % 160 >= 40 else -1,
        "timestamp": round(0.05 * n, 3),
        "input_length": 2_400,
        "output_length": 300,
        "type": "text",
        "turn": 1 + n % 160 // 40,
        "hash_ids": [*range(n * 90, n * 90 + 150)],
    }
    return json.dumps(row) + "\n"


def tracelab_round(n: int) -> str:
    session, number = divmod(n, 80)
    at_s = 600 * session + 20 * number
    kinds = ("tool_result", "text", "tool_call", "tool_call")
    row = {
        "session_id": f"claude:{session:08x}-0000-4000-8000-{session:012x}",
        "round_index": number,
        "input_tokens_total": 900 * (number + 1),
        "prefix_tokens": 900 * number,
        "newly_append_tokens": 900,
        "output_tokens": 40,
        "timing_events": [
            {"event_type": kind, "timestamp": stamp(at_s + i, "Z").replace(" ", "T")} for i, kind in enumerate(kinds)
        ],
    }
    return json.dumps(row) + "\n"


def agentx_turn(n: int) -> str:
    session, call = divmod(n, 60)
    tokens = f"{900 * (call + 1)},200,{900 * call},900"
    return f"trace_{session:06d},{call},,0,{20.125 * call},n,claude,{tokens},3.25,10.5\n"


def agentx_session(n: int) -> bytes:
    calls = [
        {"t": 20.125 * k, "type": "n", "in": 1_280 * (k + 1), "out": 200, "hash_ids": [*range(1, 20 * (k + 1) + 1)]}
        for k in range(60)
    ]
    return json.dumps({"id": f"trace_{n:06d}", "block_size": 64, "hash_id_scope": "local", "requests": calls}).encode()


#: kind -> (header, row n) of the formats of lines.
ROWS: dict[str, tuple[str, Callable[[int], str]]] = {
    "mooncake": ("", mooncake),
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        lambda n: f"{stamp(0.02 * n)},{900 + n % 4_000},{n % 300}\n",
    ),
    "agentx-turns": (
        "trace,seq,agent,agent_t0_s,t_s,type,model,in_tokens,out_tokens,cached_tokens,new_tokens,api_time_s,think_time_s\n",
        agentx_turn,
    ),
    "tracelab": (
        "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n",
        lambda n: f"{n // 10},{200 * (n // 10)},{n % 10},{900 * (n % 10)},900,40,1000\n",
    ),
    "tracelab-rounds": ("", tracelab_round),
    "bailian": ("", bailian),
    "burstgpt": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
        lambda n: (
            f"{n // 2},{n // 7},4.25,ChatGPT,{400 + n % 900},{n % 300},{400 + n % 900 + n % 300},Conversation log\n"
        ),
    ),
    "vidur": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n",
        lambda n: f"{0.05 * n:.6f},{100 + n % 7_000},{10 + n % 90}\n",
    ),
    "vidur-lengths": (
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n",
        lambda n: f"{100 + n % 7_000},{100 + n % 90},{200 + n % 7_000 + n % 90},{n % 97 / 7}\n",
    ),
    "splitwise": (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n",
        lambda n: f"{n},2,0,{0.02 * n:.9f},1,{100 + n % 7_000},{10 + n % 90}\n",
    ),
}
KINDS = (*ROWS, "agentx")


def _lines(kind: str) -> Iterator[bytes]:
    header, row = ROWS[kind]
    yield header.encode()
    n = 0
    while True:
        yield "".join(row(i) for i in range(n, n + ROWS_AT_ONCE)).encode()
        n += ROWS_AT_ONCE


def _opened(path: Path, compression: str) -> IO[bytes]:
    if compression == "gzip":
        return gzip.open(path, "wb", compresslevel=1)  # type: ignore[return-value]
    if compression == "zstd":
        return zstandard.open(path, "wb", cctx=zstandard.ZstdCompressor(level=1))
    return path.open("wb")


def write(path: Path, kind: str, megabytes: int, compression: str = "plain") -> Path:
    """A trace of that size before compression, whose name tells nothing."""
    written, limit = 0, megabytes * 10**6
    with _opened(path, compression) as file:
        if kind == "agentx":
            with tarfile.open(fileobj=file, mode="w|") as archive:
                n = 0
                while written < limit:
                    data = agentx_session(n)
                    member = tarfile.TarInfo(f"trace_{n:06d}.json")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
                    written += len(data)
                    n += 1
            return path
        for piece in _lines(kind):
            file.write(piece)
            written += len(piece)
            if written >= limit:
                return path
    raise AssertionError
