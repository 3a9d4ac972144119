"""From what the agents and the controller wrote down to the tables of one run. Pure: records in, data frames out.
How TTFT is split is in ``results/metrics/ttft_parts.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pandas as pd

from results.metrics.ttft_parts import FabricKind, ttft_parts
from results.records.schema import CIRCUITS, REQUESTS, STATUSES, SWITCH_STEPS, TRANSFERS

# Agents share one monotonic clock, but write times rounded to a microsecond.
CLOCK_SLACK_S = 2e-6


@dataclass(slots=True)
class Frames:
    """The tables of one run. ``unaccounted``: offered requests that no gateway record speaks of (they count as
    unfinished).

    ``inconsistencies`` lists, in words, records that contradict each other or are missing; none is repaired.
    """

    requests: pd.DataFrame
    transfers: pd.DataFrame
    circuits: pd.DataFrame
    unaccounted: int = 0
    inconsistencies: list[str] = field(default_factory=list)


def merge(
    records: Iterable[Mapping[str, Any]],
    controller_events: Iterable[Mapping[str, Any]],
    requests: Sequence[Mapping[str, Any]],
    *,
    kind: FabricKind,
    rate_scale: float = 1.0,
    ranks: int | None = None,
) -> Frames:
    """Join agent records, controller events and the offered requests (dictionaries of ``Request`` fields) into tables.

    Every offered request appears once, in the order given. ``rate_scale`` turns the emulated bytes of a transfer
    record into real ones where the record does not hold both; ``ranks`` is how many transfers a request must have
    (None: not checked). Raises ValueError for an unknown kind, a request offered twice or a record without ``of`` or
    ``id``.
    """
    if kind not in ("eps", "ocs", "none"):
        raise ValueError(f"fabric kind {kind!r}: expected eps, ocs or none")
    book = _Book(records, [str(request["id"]) for request in requests])
    rows = []
    for request in requests:
        rows.append(_request_row(request, book, kind, ranks))
    return Frames(
        requests=REQUESTS.frame(rows),
        transfers=TRANSFERS.frame(_transfer_rows(book, rate_scale)),
        circuits=circuits_frame(controller_events),
        unaccounted=sum(1 for request in requests if str(request["id"]) not in book.gateway),
        inconsistencies=book.inconsistencies,
    )


class _Book:
    """Agent records by kind and request id; a second record of the same thing is noted and the first one kept."""

    def __init__(self, records: Iterable[Mapping[str, Any]], offered: Sequence[str]) -> None:
        self.gateway: dict[str, Mapping[str, Any]] = {}
        self.prefill: dict[str, Mapping[str, Any]] = {}
        self.transfers: dict[str, dict[int, Mapping[str, Any]]] = {}
        self.senders: dict[tuple[str, int], Mapping[str, Any]] = {}
        self.inconsistencies: list[str] = []
        known = set(offered)
        if len(known) < len(offered):
            twice = [name for name, times in Counter(offered).items() if times > 1]
            raise ValueError(f"offered twice: {', '.join(twice[:5])}; ids of requests must be unique")
        for record in records:
            if record.get("type", "record") != "record":
                continue
            try:
                of, name = record["of"], str(record["id"])
            except KeyError as error:
                raise ValueError(f"agent record without {error}: {dict(record)}") from error
            if name not in known:
                self.note(name, f"a {of} record, but it was never offered")
            elif of == "request":
                self._keep(self.gateway, name, record, of, name)
            elif of == "prefill":
                self._keep(self.prefill, name, record, of, name)
            elif of == "transfer":
                self._keep(self.transfers.setdefault(name, {}), int(record["rank"]), record, of, name)
            elif of == "sender":
                self._keep(self.senders, (name, int(record["rank"])), record, of, name)
            else:
                self.note(name, f"a record of unknown kind {of!r}")

    def _keep(
        self, place: dict[Any, Mapping[str, Any]], key: Any, record: Mapping[str, Any], of: str, name: str
    ) -> None:
        if key in place:
            self.note(name, f"two {of} records")
        else:
            place[key] = record

    def note(self, name: str, what: str) -> None:
        self.inconsistencies.append(f"request {name}: {what}")


def _request_row(request: Mapping[str, Any], book: _Book, kind: FabricKind, ranks: int | None) -> dict[str, Any]:
    name = str(request["id"])
    gateway = book.gateway.get(name, {})
    prefill = book.prefill.get(name, {})
    transfers = book.transfers.get(name, {})
    status = gateway.get("status", "unfinished")
    reason = gateway.get("reason") or ""
    if not gateway:
        reason = "unaccounted for: no record of it from the gateway"
    elif status not in STATUSES:
        book.note(name, f"status {status!r}, expected {', '.join(STATUSES)}")
        status, reason = "unfinished", f"unknown status {status!r}"
    elif status == "completed" and gateway.get("first_token_s") is None:
        book.note(name, "completed without a first token")
        status, reason = "unfinished", "reported as completed, without the time of a first token"

    end_s = _actual(prefill, "end")
    arrived = [t["last_byte_s"] for t in transfers.values() if t.get("last_byte_s") is not None]
    last_byte_s = max(arrived) if arrived else None
    if kind == "none":
        last_byte_s = end_s
    row: dict[str, Any] = {
        "id": name,
        "tenant": request["tenant"],
        "session": request.get("session") or "",
        "arrival_s": float(request["arrival_s"]),
        "new_tokens": request["new_tokens"],
        "cached_tokens": request["cached_tokens"],
        "status": status,
        "reason": reason,
        "prefill": prefill.get("prefill") or gateway.get("prefill") or "",
        "decode": prefill.get("decode") or next((t["decode"] for t in transfers.values() if t.get("decode")), ""),
        "migrated": prefill.get("head_moves"),
        "sent_s": gateway.get("sent_s"),
        "received_s": prefill.get("received_s"),
        "prefill_start_s": _actual(prefill, "start"),
        "prefill_end_s": end_s,
        "last_byte_s": last_byte_s,
        "first_token_s": gateway.get("first_token_s"),
    }
    if status != "completed":
        return row
    row["ttft_s"] = row["first_token_s"] - row["arrival_s"]
    needed = ("received_s", "prefill_start_s", "prefill_end_s", "last_byte_s")
    if missing := [key for key in needed if row[key] is None]:
        book.note(name, f"completed, but no record holds its {', '.join(missing)}")
        return row
    if kind != "none" and ranks is not None and len(arrived) != ranks:
        book.note(name, f"completed with {len(arrived)} of {ranks} ranks on record")
        return row
    times = [row[key] for key in ("arrival_s", "received_s", "prefill_start_s", "prefill_end_s")]
    times += [max(row["last_byte_s"], row["prefill_end_s"]), row["first_token_s"]]
    if any(later < earlier - CLOCK_SLACK_S for earlier, later in pairwise(times)):
        book.note(name, f"times run backwards: arrival, received, start, end, last byte, first token = {times}")
    told_live = prefill.get("told_live") or []
    if kind == "ocs" and not told_live:
        book.note(name, "its KV crossed circuits, but its sender was never told of a live one")
    row.update(ttft_parts(*times, kind=kind, told_live=told_live, decided_s=prefill.get("decided_s")))
    return row


def _actual(prefill: Mapping[str, Any], edge: str) -> float | None:
    """The time it really happened where the record has it, else the planned one (the simulation has no timers that
    are late).
    """
    actual = prefill.get(f"{edge}_actual_s")
    return actual if actual is not None else prefill.get(f"{edge}_s")


def _transfer_rows(book: _Book, rate_scale: float) -> list[dict[str, Any]]:
    rows = []
    for name, by_rank in book.transfers.items():
        prefill = book.prefill.get(name, {}).get("prefill") or book.gateway.get(name, {}).get("prefill") or ""
        for rank, record in sorted(by_rank.items()):
            sender, seen = book.senders.get((name, rank)), record
            if sender is not None:  # a simulation has none
                # The receiver's word goes before the sender's; only the sender knows its uplink and TCP's counters.
                seen = {key: value for each in (sender, record) for key, value in each.items() if value is not None}
            emulated = seen.get("emulated_bytes")
            port = str(seen.get("connection") or "").rpartition(":")[2]
            rows.append(
                {
                    "request": name,
                    "rank": rank,
                    "prefill": prefill,
                    "decode": record.get("decode") or "",
                    "bytes": round(seen["bytes"] / rate_scale) if emulated is None else seen["bytes"],
                    "emulated_bytes": seen["bytes"] if emulated is None else emulated,
                    "first_byte_s": record.get("first_byte_s"),
                    "last_byte_s": record.get("last_byte_s"),
                    "source_port": int(port) if port.isdecimal() else seen.get("source_port"),
                    "uplink": seen.get("uplink"),
                    "retransmits": seen.get("retransmits"),
                    "rtos": seen.get("rtos"),
                }
            )
    return rows


def circuits_frame(controller_events: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per window: its last state and plan, when it was dark, live and over, and the steps of its switch.

    ``released_at_s`` is when it ended, be it released, expired or refused.
    """
    windows: dict[int, dict[str, Any]] = {}
    for event in controller_events:
        if event.get("event") == "window":
            row = windows.setdefault(int(event["window"]), {"window": int(event["window"])})
            for key in ("request", "part", "prefill", "decode", "state", "start_s", "live_s", "end_s", "reason"):
                if event.get(key) is not None:
                    row[key] = event[key]
            reached = {
                "dark": "dark_at_s",
                "live": "live_at_s",
                "released": "released_at_s",
                "expired": "released_at_s",
                "refused": "released_at_s",
            }
            if event["state"] in reached:
                row.setdefault(reached[event["state"]], event["t_s"])
            # A window that was dark did switch, whatever a later event says of the circuit that stands by then.
            row["needs_switch"] = bool(event.get("needs_switch")) or "dark_at_s" in row
        elif event.get("event") == "switch":
            row = windows.setdefault(int(event["window"]), {"window": int(event["window"])})
            row.update({f"{step}_s": event.get("steps_s", {}).get(step) for step in SWITCH_STEPS})
    return CIRCUITS.frame(windows[key] for key in sorted(windows))
