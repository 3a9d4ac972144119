"""What circuit switches held against the controller's log: nothing more, nothing less, and no alarm without cause."""

from __future__ import annotations

import random
from typing import Any

import pytest

from controllers.core.switching import circuit_rule
from emulation.monitor.circuit_rules import FlowTable, TableReading
from emulation.verdict.circuit_rules import differences

PORTS = {"p0": 1, "p1": 2, "d0": 5, "d1": 6}
PLANES = {"plane0": PORTS}
T0_S = 100.0
SETUP = {"event": "setup", "pairs": {"p0": "d0", "p1": "d1"}}
STANDING = ((1, 5), (5, 1), (2, 6), (6, 2))


def table(*circuits: tuple[int, int], drops_all: bool = True, foreign: tuple[str, ...] = ()) -> FlowTable:
    return FlowTable(frozenset(circuits), drops_all, foreign)


def reading(at_s: float, found: FlowTable, took_s: float = 0.002) -> TableReading:
    """At a run-clock time."""
    return TableReading("plane0", T0_S + at_s, T0_S + at_s + took_s, found)


def move(window: int, prefill: str, decode: str, began_s: float, ended_s: float) -> list[dict[str, Any]]:
    begun = {"event": "window", "window": window, "state": "dark", "prefill": prefill, "decode": decode, "t_s": began_s}
    return [begun, {"event": "switch", "window": window, "t_s": ended_s}]


def found(*readings: TableReading, events: list[dict[str, Any]] | None = None) -> tuple[list[str], list[str]]:
    return differences(readings, PLANES, [SETUP, *(events or [])], T0_S, 1.0)


def test_what_was_laid_before_the_clock_stands() -> None:
    assert found(reading(1.0, table(*STANDING))) == ([], [])


def test_a_table_that_is_empty_lacks_every_rule_once_and_says_when() -> None:
    empty = table(drops_all=False)
    held, lacked = found(reading(1.0, table(*STANDING)), reading(2.0, empty), reading(3.0, empty))
    assert held == []
    assert lacked == [
        f"plane0: {circuit_rule(1, 5)}, 2.0 s after the start",
        f"plane0: {circuit_rule(2, 6)}, 2.0 s after the start",
        f"plane0: {circuit_rule(5, 1)}, 2.0 s after the start",
        f"plane0: {circuit_rule(6, 2)}, 2.0 s after the start",
        "plane0: priority=0,actions=drop, 2.0 s after the start",
    ]


def test_the_drop_all_rule_alone_is_missed() -> None:
    lacked = found(reading(1.0, table(*STANDING, drops_all=False)))[1]
    assert lacked == ["plane0: priority=0,actions=drop, 1.0 s after the start"]


def test_a_circuit_that_nobody_asked_for_is_named() -> None:
    held, lacked = found(reading(1.0, table(*STANDING, (1, 6))))
    assert (held, lacked) == (
        [f"plane0: {circuit_rule(1, 6)}, of no circuit, 1.0 s after the start"],
        [],
    )


def test_what_is_foreign_is_named_once_with_what_it_counted_last() -> None:
    rule = "a rule that the controller did not make: priority=200,actions=drop, which counted {} packets"
    readings = [reading(at_s, table(*STANDING, foreign=(rule.format(at_s),))) for at_s in (1, 2)]
    assert found(*readings)[0] == [f"plane0: {rule.format(2)}"]


@pytest.mark.parametrize("circuits", [STANDING, STANDING[2:], (), ((1, 6),), ((1, 6), (6, 1)), ((1, 5), (2, 6))])
def test_while_ports_are_moved_their_rules_may_come_and_go(circuits: tuple[tuple[int, int], ...]) -> None:
    moved = move(1, "p0", "d1", 1.0, 1.03)
    for at_s in (0.999, 1.01, 1.029):
        assert found(reading(at_s, table(*circuits)), events=moved) == ([], [])


def test_once_ports_are_moved_the_old_circuits_are_gone_and_the_new_one_stands() -> None:
    moved = move(1, "p0", "d1", 1.0, 1.03)
    assert found(reading(1.1, table((1, 6), (6, 1))), events=moved) == ([], [])
    held, lacked = found(reading(1.1, table(*STANDING)), events=moved)
    assert len(held) == 4
    assert len(lacked) == 2


def test_ports_that_are_not_moved_keep_theirs_meanwhile() -> None:
    moved = move(1, "p0", "d0", 1.0, 1.03)
    assert found(reading(1.01, table((2, 6), (6, 2))), events=moved) == ([], [])
    assert len(found(reading(1.01, table()), events=moved)[1]) == 2


def test_a_move_that_never_ended_may_leave_anything_of_its_ports() -> None:
    begun = move(1, "p0", "d0", 1.0, 1.03)[:1]
    assert found(reading(9.0, table((2, 6), (6, 2))), events=begun) == ([], [])


def test_a_dilated_clock_is_run_time() -> None:
    moved = move(1, "p0", "d1", 1.0, 1.03)
    readings = [TableReading("plane0", T0_S + 2.01, T0_S + 2.012, table())]
    assert differences(readings, PLANES, [SETUP, *moved], T0_S, 2.0) == ([], [])


@pytest.mark.parametrize("seed", range(20))
def test_hundreds_of_moves_read_at_any_moment_raise_no_alarm(seed: int) -> None:
    """A switch that does as the controller says, at any moment within each reconfiguration."""
    draw = random.Random(seed)
    rules, events, readings, now_s = set(STANDING), [SETUP], [], 0.5
    ports = dict(PORTS)

    def look(at_s: float) -> None:
        readings.append(reading(at_s, table(*rules), took_s=0.0001))

    for window in range(300):
        pair = draw.choice(["p0", "p1"]), draw.choice(["d0", "d1"])
        began_s, ended_s = now_s, now_s + 0.03
        events += move(window, *pair, began_s, ended_s)
        look(began_s - draw.random() * 0.01)
        ends = {ports[name] for name in pair}
        look(began_s + 0.001)
        rules = {rule for rule in rules if not ends & set(rule)}
        look(began_s + 0.01)
        joined = tuple(ports[name] for name in pair)
        rules |= {joined, joined[::-1]}  # type: ignore[arg-type]
        look(ended_s - 0.001)
        now_s = ended_s + draw.random() * 0.05
        look(ended_s + 0.0001)
    assert differences(readings, PLANES, events, T0_S, 1.0) == ([], [])
    rules.discard(next(iter(rules)))
    look(now_s + 1.0)
    assert len(differences(readings, PLANES, events, T0_S, 1.0)[1]) == 1
