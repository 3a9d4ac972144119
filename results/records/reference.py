"""The reference of the artifacts, from the tables and models that write them: `python -m results.records.reference`
rewrites the tables of docs/reference/artifacts.md. A test holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from results.records.schema import BOOLEAN, INTEGER, REAL, STRING, TABLES
from results.records.summary import RequestCounts, RunSummary, Summary, TtftStatistics

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "artifacts.md"
BEGIN, END = "<!-- generated: python -m results.records.reference -->", "<!-- end of the generated part -->"
TYPES = {STRING: "text", INTEGER: "whole number", REAL: "number", BOOLEAN: "`True`, `False`"}
KINDS = {"list": "list", "dict": "mapping", "Literal": "word", "int": "whole number", "float": "number", "str": "text"}
UNITS = {"_s": "s", "_bytes": "bytes", "_bps": "bit/s", "_tokens": "tokens", "_packets": "packets"}
UNIT_OF = {"bytes": "bytes"}
MODELS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("", Summary),
    ("runs.N.", RunSummary),
    ("runs.N.requests.", RequestCounts),
    ("runs.N.ttft_s.", TtftStatistics),
)
MEANINGS = {
    "requests": {
        "id": "of the request; warm-up ids begin with `warmup-`",
        "tenant": "name of the tenant",
        "session": "session of the tenant; empty if the trace has none",
        "arrival_s": "when the request should be sent",
        "new_tokens": "tokens to compute",
        "cached_tokens": "tokens of the prefix that the prefill pool holds",
        "status": "`completed`, `failed` or `unfinished`",
        "reason": "why it is not completed",
        "prefill": "prefill instance",
        "decode": "decode instance",
        "migrated": "whether the KV of the prefix crossed the fabric",
        "sent_s": "when the gateway sent it",
        "received_s": "when the prefill instance had it",
        "prefill_start_s": "start of its prefill",
        "prefill_end_s": "end of its prefill",
        "last_byte_s": "when the decode instance had the last byte of its KV",
        "first_token_s": "when the gateway had its first token",
        "ttft_s": "time to first token, `first_token_s - arrival_s`",
        "queue_s": "part of TTFT: waiting for the prefill instance",
        "prefill_s": "part of TTFT: the prefill",
        "circuit_wait_s": "part of TTFT: time without a live circuit, after the prefill",
        "transfer_exposed_s": "part of TTFT: time with a live circuit or a known decode instance, after the prefill",
        "control_s": "part of TTFT: `received_s - arrival_s`, and after the prefill until the sender has its grant",
        "return_s": "part of TTFT: from the last byte, or the end of the prefill, to the first token",
    },
    "transfers": {
        "request": "id of the request",
        "rank": "GPU of the instance, from 0",
        "prefill": "sender",
        "decode": "receiver",
        "bytes": "real bytes",
        "emulated_bytes": "bytes that crossed, headers of the frame included",
        "first_byte_s": "arrival of the first byte",
        "last_byte_s": "arrival of the last byte",
        "source_port": "TCP source port, where it decides the path",
        "uplink": "number of the uplink or path; missing within a rack",
        "retransmits": "segments that were sent again",
        "rtos": "TCP timeouts; missing before Linux 6.7",
        "shared_s": "how long other GPU NICs used its uplink or downlink too",
        "sharers": "how many others at most",
    },
    "circuits": {
        "window": "number of the booking",
        "request": "id of the request",
        "part": "`head`, `tail` or `all` of its KV",
        "migrated": "whether the prefix of its request crosses",
        "bytes": "real bytes of the part, per rank",
        "prefill": "sender",
        "decode": "receiver",
        "state": "`released`, `refused` or `expired` at the end of a run",
        "start_s": "planned start of the dark time",
        "live_s": "planned start of the transfer",
        "end_s": "planned end",
        "dark_at_s": "when the dark time began",
        "live_at_s": "when the circuit was live",
        "released_at_s": "when the window ended: released, refused or expired",
        "needs_switch": "`False`: the circuit was standing",
        "remove_s": "step of a switch: removal of the old rules sent",
        "barrier_s": "step: the removal is acknowledged",
        "purge_s": "step: the flow cache is emptied",
        "dark_wait_s": "step: the reconfiguration delay",
        "install_s": "step: the new rules sent",
        "barrier2_s": "step: the installation is acknowledged",
        "purge2_s": "step: the flow cache is emptied again",
        "reason": "why it was refused or expired",
    },
    "links": {
        "node": "namespace or switch at this end",
        "interface": "its interface",
        "peer": "the node at the other end",
        "role": "what the link is for",
        "goodput_bps": "rate of TCP payload that it is shaped to, emulated",
        "wire_bps": "rate on the wire that it is shaped to, emulated",
        "tx_bytes": "emulated bytes sent, headers included, drops left out",
        "tx_packets": "packets sent",
        "drops": "GSO packets that its queues dropped; one may be several segments",
        "overlimits": "how often the shaper held a packet back",
        "device_tx_packets": "packets that the device counted",
        "rx_bytes": "emulated bytes received",
        "rx_packets": "packets received",
        "largest_backlog_bytes": "largest sampled backlog of all its queues",
    },
    "summary.json": {
        "schema_version": "1. Written as `schema`",
        "runs": "one entry for each fabric and seed",
        "name": "name of the fabric in the experiment file",
        "fabric": "kind of the fabric: `eps`, `ocs` or `none`",
        "seed": "seed of the arrivals",
        "substrate": "`emulation` (packets) or `simulation` (the twin)",
        "requests": "measured requests by outcome, below",
        "ttft_s": "statistics of TTFT, below",
        "ttft_exposed_share": "circuit wait and exposed transfer, over TTFT",
        "hidden_share": "share of the migrated requests whose last byte came within 10 % of the prefill after its end",
        "slo_attainment": "share of the offered requests within the objective",
        "verdict": "`valid`, `degraded` or `invalid`",
        "reasons": "why it is not `valid`",
        "slo_attainment_by_tenant": "the same for each tenant",
        "ttft_parts_s": "mean of each part of TTFT",
        "migrated_share": "share of the requests whose prefix crossed, where a decode instance was chosen",
        "switches": "reconfigurations, on circuits",
        "reuses": "windows that found their circuit standing",
        "twin": "what the twin predicts for the same requests",
        "notes": "remarks for the reader",
        "accounting": "migrations, bytes, decodes kept, port occupancy, collisions",
        "offered": "all measured requests; completed + failed + unfinished",
        "completed": "requests with a first token",
        "failed": "requests that an instance or the controller gave up",
        "unfinished": "requests that the end of the run cut off",
        "warmup": "requests of the warm-up; no figure includes them",
        "n": "completed requests behind the statistics",
        "mean": "mean",
        "p50": "median",
        "p90": "90th percentile",
        "p95": "95th percentile",
        "p99": "99th percentile",
        "null_reasons": "why a statistic is null: too few requests",
    },
}


def tables() -> str:
    """One Markdown table for each CSV file, and one for `summary.json`."""
    parts = []
    for table in TABLES.values():
        rows = [_row(table.name, name, TYPES[dtype], name) for name, dtype in table.dtypes.items()]
        parts.append(_table(f"{table.name}.csv", rows))
    parts.append(_table("summary.json", list(_summary_rows())))
    return "\n\n".join(parts) + "\n"


def updated(document: str) -> str:
    """A document with its generated part made anew. Raises ValueError where the marks are missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT} has no {BEGIN} ... {END}: put both lines where the tables belong")
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def _table(title: str, rows: list[str]) -> str:
    return "\n".join([f"### {title}", "", "| name | type | unit | meaning |", "|---" * 4 + "|", *rows])


def _row(table: str, name: str, kind: str, shown: str) -> str:
    unit = UNIT_OF.get(name) or next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")
    return f"| `{shown}` | {kind} | {unit} | {MEANINGS[table][name]} |"


def _summary_rows() -> Iterator[str]:
    for prefix, model in MODELS:
        for name, field in model.model_fields.items():
            yield _row("summary.json", name, _kind(field.annotation), f"{prefix}{field.alias or name}")


def _kind(annotation: Any) -> str:
    """What a value is, as JSON has it."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    kind = next((word for name, word in KINDS.items() if re.search(rf"\b{name}\b", text)), "mapping")
    return f"{kind} or null" if "None" in text and kind in ("number", "whole number") else kind


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{DOCUMENT}: {len(re.findall(r'^[|] `', tables(), re.MULTILINE))} columns and keys")
