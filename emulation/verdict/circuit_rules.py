"""What circuit switches held against what should have stood: every difference in a sentence. Pure.

The controller's log says which circuits were laid before the clock, when each reconfiguration began and when it was
over. At any moment the ports that no reconfiguration is at hold exactly the circuit that the last one left there; of
those that one is at, any part of the circuits before and of the one to come may be there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controllers.core.switching import circuit_rule
from emulation.monitor.circuit_rules import TableReading

#: The log's times and ours are of one clock; a reading's ends are not exact to the microsecond.
SLACK_S = 0.001


@dataclass(frozen=True, slots=True)
class Move:
    """One reconfiguration, run-clock seconds: the ports of a pair are at it from `began_s` to `ended_s`."""

    prefill: str
    decode: str
    began_s: float
    ended_s: float


def moves(events: Iterable[Mapping[str, Any]]) -> tuple[dict[str, str], list[Move]]:
    """From the controller's log: the circuits that stood when the clock started, and every reconfiguration since."""
    laid: dict[str, str] = {}
    dark: dict[int, Mapping[str, Any]] = {}
    found: list[Move] = []
    for event in events:
        kind = event.get("event")
        if kind == "setup":
            laid = dict(event["pairs"])
        elif kind == "window" and event["state"] == "dark":
            dark[event["window"]] = event
        elif kind == "switch" and (begun := dark.pop(event["window"], None)):
            found.append(Move(begun["prefill"], begun["decode"], begun["t_s"], event["t_s"]))
    found += [Move(begun["prefill"], begun["decode"], begun["t_s"], math.inf) for begun in dark.values()]
    return laid, found


def differences(
    readings: Sequence[TableReading],
    ports: Mapping[str, Mapping[str, int]],
    events: Iterable[Mapping[str, Any]],
    t0_s: float,
    time_dilation: float,
) -> tuple[list[str], list[str]]:
    """(what was there and should not have been, what was missing), each once, with the moment it was first seen.
    ports: bridge -> instance -> port, as the controller was told."""
    laid, all_moves = moves(events)
    held: dict[str, str] = {}
    lacked: dict[str, str] = {}
    standing, pending = dict(laid), sorted(all_moves, key=lambda move: move.ended_s)
    for reading in sorted(readings, key=lambda reading: reading.began_s):
        began_s, ended_s = ((at_s - t0_s) / time_dilation for at_s in (reading.began_s, reading.ended_s))
        while pending and pending[0].ended_s < began_s - SLACK_S:
            _connect(standing, pending.pop(0))
        moving = [move for move in pending if move.began_s <= ended_s + SLACK_S]
        names = ports[reading.bridge]
        settled, loose = _expected(standing, moving)
        must, may = _both_ways(settled, names), _both_ways(loose, names)
        when = f"{ended_s:.1f} s after the start"
        table = reading.table
        for text in table.foreign:
            key = text.partition(", which counted")[0]  # the same rule again, with another count: the last one is kept
            held[key + reading.bridge] = f"{reading.bridge}: {text}"
        for rule in sorted(table.circuits - must - may):
            held.setdefault(
                f"{reading.bridge}{rule}", f"{reading.bridge}: {circuit_rule(*rule)}, of no circuit, {when}"
            )
        missing = [circuit_rule(*rule) for rule in sorted(must - table.circuits)]
        for text in [*missing, *([] if table.drops_all else ["priority=0,actions=drop"])]:
            lacked.setdefault(f"{reading.bridge}{text}", f"{reading.bridge}: {text}, {when}")
    return list(held.values()), list(lacked.values())


def _connect(standing: dict[str, str], move: Move) -> None:
    for prefill, decode in list(standing.items()):
        if prefill == move.prefill or decode == move.decode:
            del standing[prefill]
    standing[move.prefill] = move.decode


def _expected(
    standing: Mapping[str, str], moving: Sequence[Move]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(circuits that must be there, circuits that may be there)."""
    at_it = {instance for move in moving for instance in (move.prefill, move.decode)}
    settled = [pair for pair in standing.items() if not at_it & set(pair)]
    loose = [pair for pair in standing.items() if at_it & set(pair)]
    return settled, [*loose, *((move.prefill, move.decode) for move in moving)]


def _both_ways(pairs: Iterable[tuple[str, str]], ports: Mapping[str, int]) -> set[tuple[int, int]]:
    carried = [(ports[one], ports[other]) for one, other in pairs if one in ports and other in ports]
    return {*carried, *((out_port, in_port) for in_port, out_port in carried)}
