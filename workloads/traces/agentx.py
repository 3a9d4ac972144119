"""AgentX / weka: one JSON object per agent session, in a file of its own or many in a tar (plain, gzip or zstd).

    {"id": "trace_0001", "block_size": 64, "hash_id_scope": "local", "requests": [
       {"t": 0.0, "type": "n", "in": 19584, "out": 268, "hash_ids": [1, 2, ...], "think_time": 0.0, ...},
       {"t": 160.9, "type": "subagent", "requests": [{"t": 0.0, ...}, ...]}]}

* `t` is in **seconds** from the session's start; a sub-agent's requests count from the sub-agent's. Its calls belong to
  the session and run beside it.
* `hash_ids` has one id per **full** block of `block_size` tokens (floor(in / block_size)), meant within the session.
* There are no arrival times of sessions. Ids that mean more or less than a session (`hash_id_scope` other than local)
  are refused: across sessions, whose order is not recorded, or only within a sub-agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from inputs.text_file import At, decoded, open_bytes, refuse_encoding, refusing, without_mark
from workloads.traces import dialects, values
from workloads.traces.prefixes import SessionNames
from workloads.traces.reading import Format
from workloads.traces.session_rows import MAX_CALLS, from_first
from workloads.traces.sniff import is_tar, json_keys
from workloads.traces.tar import members
from workloads.traces.text import as_trace, head, parse_json
from workloads.traces.trace import Entry, TraceError

_MAX_DEPTH: Final = 8
_DIALECTS: Final = {
    **dialects.COMMON,
    "hash_id_scope": dialects.Meaning(
        "gives the block ids another scope than the session and its sub-agents",
        "number the blocks of each session anew and write local",
        ("local",),
    ),
}
# The largest session of the corpus is a few megabytes.
_MAX_SESSION_BYTES: Final = 32 * 2**20


def entries(path: Path) -> Iterator[Entry]:
    names = SessionNames()
    for where, text in _documents(path):
        document = parse_json(text, where, 1)
        if not isinstance(document, dict):
            raise TraceError(where, 1, f"a {type(document).__name__} where the format has an object per session")
        id_, block_size, requests = values.needed(
            document, ("id", "block_size", "requests"), "AgentX session", where, 1
        )
        dialects.refuse(document, _DIALECTS, where, 1)
        session = values.name(id_, "id", where, 1)
        if not names.add(session):
            raise TraceError(where, 1, f"session {session} appears twice; remove one")
        block_tokens = values.tokens(block_size, "block_size", where, 1)
        calls = sorted(_calls(requests, 0.0, session, block_tokens, where, 0), key=lambda call: call.time)
        if len(calls) > MAX_CALLS:
            raise TraceError(where, 1, f"session {session} has over {MAX_CALLS} calls; is it one session?")
        yield from from_first(calls)


def _calls(requests: Any, start_s: float, session: str, block_tokens: int, where: str, depth: int) -> Iterator[Entry]:
    if not isinstance(requests, list):
        raise TraceError(where, 1, f"session {session}: requests is no list")
    if depth > _MAX_DEPTH:
        raise TraceError(where, 1, f"session {session}: sub-agents nested over {_MAX_DEPTH} deep")
    for number, request in enumerate(requests, 1):
        at = f"{where}:1: session {session}, request {number}"
        if not isinstance(request, dict):
            raise TraceError(at, None, f"a {type(request).__name__} where the format has an object")
        dialects.refuse(request, _DIALECTS, at, None)
        nested = "requests" in request
        keys = ("t", "requests") if nested else ("t", "in", "out", "hash_ids")
        found = values.needed(request, keys, "sub-agent" if nested else "request", at, None)
        time_s = start_s + values.time(found[0], "t", "seconds", at, None)
        if nested:
            yield from _calls(found[1], time_s, session, block_tokens, where, depth + 1)
            continue
        input_tokens = values.tokens(found[1], "in", at, None)
        output_tokens = values.tokens(found[2], "out", at, None, least=0)
        ids = values.blocks(found[3], input_tokens, block_tokens, at, None, partial=False)
        yield Entry(number, time_s, input_tokens, output_tokens, blocks=ids, block_tokens=block_tokens, session=session)


def _documents(path: Path) -> Iterator[tuple[str, str]]:
    """(name for messages, text) of each session in the file, one at a time."""
    tar = is_tar(head(path, 512))
    with as_trace(), refusing(At(path)), open_bytes(path) as file:
        if not tar:
            yield str(path), _text(file.read(_MAX_SESSION_BYTES + 1), str(path))
            return
        for member, content in members(file, _MAX_SESSION_BYTES):
            if member.endswith(".json"):
                name = f"{path}({member[:100]})"
                yield name, _text(content, name)


def _text(data: bytes, where: str) -> str:
    if len(data) > _MAX_SESSION_BYTES:
        raise TraceError(where, 1, f"a session of over {_MAX_SESSION_BYTES} bytes; the format has a file per session")
    with refusing(At(where)):
        refuse_encoding(data[:4096])
        return decoded(without_mark(data), False)


FORMAT: Final = Format(
    "agentx",
    "agentx sessions",
    "s",
    1.0,
    entries,
    lambda start: is_tar(start) or (json_keys(start) >= {"requests", "block_size"}),
    prefixes="blocks",
    sessions=True,
    arrival_times=False,
)
