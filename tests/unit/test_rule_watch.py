"""The watch of the circuit rules, against an Open vSwitch that carries nothing, and a switch that does not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from dummy_switch import DummySwitch, dummy_switch

from controllers.core.switching import COOKIE, circuit_cookie, circuit_rule
from emulation.monitor.circuit_rules import FlowTable, RuleWatch, Socket

DROP_ALL = f"cookie={COOKIE:#x},priority=0,actions=drop"
JOINED = frozenset({(1, 2), (2, 1)})


def circuit(in_port: int, out_port: int, cookie: int | None = None) -> str:
    cookie = circuit_cookie(in_port, out_port) if cookie is None else cookie
    return f"cookie={cookie:#x},{circuit_rule(in_port, out_port)}"


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DummySwitch]:
    with dummy_switch(tmp_path_factory.mktemp("ovs"), "plane0", "plane1") as switch:
        yield switch


@pytest.fixture
def joined(switch: DummySwitch) -> DummySwitch:
    """Ports 1 and 2 are joined on plane0, as the controller joins them."""
    switch.ofctl("del-flows", "plane0")
    switch.ofctl("del-groups", "plane0")
    switch.ofctl("del-meters", "plane0")
    for rule in (DROP_ALL, *(circuit(*pair) for pair in JOINED)):
        switch.ofctl("add-flow", "plane0", rule)
    return switch


def read(switch: DummySwitch, bridge: str = "plane0") -> FlowTable:
    watch = RuleWatch({bridge: switch.socket(bridge)})
    watch.patience_s = 30.0
    watch.sample(0.0)
    (reading,) = watch.readings()
    assert reading.began_s <= reading.ended_s
    return reading.table


def test_the_controllers_own_rules_are_circuits(joined: DummySwitch) -> None:
    assert read(joined) == FlowTable(JOINED, drops_all=True)
    assert read(joined, "plane1") == FlowTable(frozenset(), drops_all=False)


def test_rules_that_are_gone_are_not_there(joined: DummySwitch) -> None:
    joined.ofctl("del-flows", "plane0", "in_port=1")
    assert read(joined) == FlowTable(frozenset({(2, 1)}), drops_all=True)
    joined.ofctl("del-flows", "plane0")
    assert read(joined) == FlowTable(frozenset(), drops_all=False)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("priority=200,tcp,in_port=1,tp_dst=7100,actions=drop", "priority=200,tcp,in_port=1,tp_dst=7100,actions=drop"),
        ("priority=7,in_port=3,actions=output:2", "priority=7,in_port=3,actions=output:2"),
        ("table=3,priority=100,in_port=1,actions=output:2", "table=3, priority=100,in_port=1,actions=output:2"),
        (circuit(3, 2, 0), "in port 3, out port 2, table 0, priority 100, cookie 0x0"),
        ("priority=100,in_port=3,actions=output:2", "priority=100,in_port=3,actions=output:2"),
        (circuit(3, 2).replace("01:00:00", "01:01:00"), "dl_src=00:00:00:00:00:00/01:01:00:00:00:00"),
        (circuit(3, 2, COOKIE | 1), f"cookie {COOKIE | 1:#x}"),
        (circuit(3, 2) + ",output:1", "actions=output:2,output:1"),
        ("hard_timeout=900," + circuit(3, 2), "with a timeout or a flag"),
        ("send_flow_rem," + circuit(3, 2), "with a timeout or a flag"),
        ("cookie=0,priority=1,actions=drop", "priority=1,actions=drop"),
    ],
)
def test_a_rule_that_equals_none_of_the_controllers_is_foreign(joined: DummySwitch, rule: str, words: str) -> None:
    joined.ofctl("add-flow", "plane0", rule)
    table = read(joined)
    assert (table.circuits, table.drops_all, len(table.foreign)) == (JOINED, True, 1)
    assert table.foreign[0].startswith("a rule that the controller did not make: ")
    assert words in table.foreign[0]


def test_a_rule_of_the_controllers_that_was_changed_is_foreign_and_missing(joined: DummySwitch) -> None:
    joined.ofctl("mod-flows", "plane0", "priority=0,actions=output:1")
    joined.ofctl("mod-flows", "plane0", "in_port=1,actions=drop")
    table = read(joined)
    assert (table.circuits, table.drops_all) == (frozenset({(2, 1)}), False)
    assert [text.partition(": ")[2].partition(", which")[0] for text in table.foreign] == [
        circuit_rule(1, 2).replace("output:2", "drop"),
        "priority=0,actions=output:1",
    ]


def test_groups_and_meters_are_seen(joined: DummySwitch) -> None:
    joined.ofctl("add-group", "plane0", "group_id=1,type=all,bucket=output:1")
    assert read(joined).foreign == ("a group, and the controller makes none",)
    joined.ofctl("add-meter", "plane0", "meter=1,kbps,band=type=drop,rate=100")
    assert read(joined).foreign[1:] == ("a meter, and the controller makes none",)


def test_a_table_of_hundreds_of_rules_is_read_whole(joined: DummySwitch) -> None:
    pairs = {(port, port + 1) for port in range(10, 3010, 2)}
    many = joined.directory / "many"
    many.write_text("\n".join(circuit(*pair) for pair in pairs))
    joined.ofctl("add-flows", "plane0", str(many))
    assert read(joined).circuits == JOINED | pairs


def test_a_switch_that_does_not_answer_is_named_and_hides_no_other_for_long(
    joined: DummySwitch, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(str(tmp_path / "frozen"))
        frozen.listen()
        asked = Socket(tmp_path / "frozen", tmp_path / "frozen")
        watch = RuleWatch({"plane1": asked, "plane0": joined.socket("plane0")})
        watch.patience_s = 2.0
        assert watch.unread() == ["plane1", "plane0"]
        for now_s in (1.0, 2.0):
            watch.sample(now_s)
    assert watch.unread() == ["plane1"]
    assert {reading.bridge for reading in watch.readings()} == {"plane0"}


def test_the_same_table_is_kept_once(joined: DummySwitch) -> None:
    watch = RuleWatch({"plane0": joined.socket("plane0")})
    watch.patience_s = 30.0
    for now_s in (1.0, 2.0):
        watch.sample(now_s)
    first, second = watch.readings()
    assert first.table is second.table
