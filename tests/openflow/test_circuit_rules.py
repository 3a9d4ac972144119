"""The messages of a reconfiguration, applied to a flow table one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ryu.ofproto import ofproto_protocol, ofproto_v1_3

from controllers.core import switching
from controllers.core.switching import Crossbar, PlanePorts, PortInUse
from tests.openflow.fake_switch import FlowTable

PREFILLS = [f"p{number}" for number in range(5)]
DECODES = [f"d{number}" for number in range(4)]
PLANES = [
    PlanePorts("plane0", 1, "", {name: port for port, name in enumerate([*PREFILLS, *DECODES], start=1)}),
    PlanePorts("plane1", 2, "", {name: port for port, name in enumerate([*DECODES, *PREFILLS], start=101)}),
]
DATAPATH: Any = ofproto_protocol.ProtocolDesc(version=ofproto_v1_3.OFP_VERSION)


def cleared() -> FlowTable:
    table = FlowTable()
    for message in switching.clearing(DATAPATH):
        table.apply(message)
    return table


def assert_no_shared_port(table: FlowTable) -> None:
    inputs = [source for source, _ in table.circuits()]
    outputs = [sink for _, sink in table.circuits()]
    assert len(set(inputs)) == len(inputs)
    assert len(set(outputs)) == len(outputs)
    # a port that is an input of one circuit and an output of another would be in two circuits
    assert all(dict(table.circuits()).get(sink, source) == source for source, sink in table.circuits())


def assert_joins_exactly(table: FlowTable, plane: PlanePorts, circuits: dict[str, str]) -> None:
    ports = {(plane.ports[prefill], plane.ports[decode]) for prefill, decode in circuits.items()}
    assert set(table.circuits()) == ports | {(sink, source) for source, sink in ports}


def test_a_cleared_table_drops_everything() -> None:
    table = cleared()
    assert [table.out_ports(port) for port in range(1, 20)] == [()] * 19
    assert len(table.rules) == 1


def test_clearing_takes_away_what_others_left() -> None:
    table = cleared()
    foreign = DATAPATH.ofproto_parser.OFPFlowMod(
        DATAPATH,
        priority=7,
        match=DATAPATH.ofproto_parser.OFPMatch(in_port=3),
        instructions=[
            DATAPATH.ofproto_parser.OFPInstructionActions(
                ofproto_v1_3.OFPIT_APPLY_ACTIONS, [DATAPATH.ofproto_parser.OFPActionOutput(9)]
            )
        ],
    )
    table.apply(foreign)
    assert table.out_ports(3) == (9,)
    for message in switching.clearing(DATAPATH):
        table.apply(message)
    assert table.out_ports(3) == ()


def test_a_circuits_rule_looks_at_more_than_its_port_and_leaves_no_frame_out() -> None:
    """Where it looked at the port alone, Open vSwitch 3.3.0 to 3.5.0 would pass TCP on with unfinished checksums."""
    messages = switching.installation(DATAPATH, PLANES[0], [("p0", "d0")])
    assert [dict(message.match.items()) for message in messages] == [
        # the bit of a group, which no frame has in the address it comes from
        {"in_port": port, "eth_src": ("00:00:00:00:00:00", "01:00:00:00:00:00")}
        for port in (PLANES[0].ports["p0"], PLANES[0].ports["d0"])
    ]


@pytest.mark.parametrize("seed", range(8))
def test_random_reconfigurations_never_share_a_port_and_leave_bystanders_alone(seed: int) -> None:
    rng = random.Random(seed)
    crossbar = Crossbar()
    tables = {plane.dpid: cleared() for plane in PLANES}
    for first_window in range(0, 400, 4):
        count = rng.randint(1, 3)
        pairs = list(zip(rng.sample(PREFILLS, count), rng.sample(DECODES, count), strict=True))
        for window, pair in enumerate(pairs, start=first_window):
            crossbar.begin(window, pair)
        bystanders = crossbar.standing()
        for plane in PLANES:
            table = tables[plane.dpid]
            for message in switching.removal(DATAPATH, plane, pairs):
                table.apply(message)
                assert_no_shared_port(table)
            for pair in pairs:
                assert not any(table.mentions(plane.ports[instance]) for instance in pair)
                assert [table.out_ports(plane.ports[instance]) for instance in pair] == [(), ()]
            assert_joins_exactly(table, plane, bystanders)
        for plane in PLANES:
            table = tables[plane.dpid]
            for message in switching.installation(DATAPATH, plane, pairs):
                table.apply(message)
                assert_no_shared_port(table)
            assert_joins_exactly(table, plane, {**bystanders, **dict(pairs)})
        for window, pair in enumerate(pairs, start=first_window):
            crossbar.finish(window, pair)


def test_a_reconfiguration_that_takes_both_ports_from_others_deletes_four_rules() -> None:
    plane, table = PLANES[0], cleared()
    for message in switching.installation(DATAPATH, plane, [("p0", "d1"), ("p1", "d0"), ("p2", "d2")]):
        table.apply(message)
    assert len(table.circuits()) == 6
    for message in switching.removal(DATAPATH, plane, [("p0", "d0")]):
        table.apply(message)
    assert_joins_exactly(table, plane, {"p2": "d2"})


def test_the_guard_refuses_to_tear_a_circuit_in_use() -> None:
    crossbar = Crossbar()
    crossbar.begin(1, ("p0", "d0"))
    crossbar.finish(1, ("p0", "d0"))
    crossbar.use(1, ("p0", "d0"))
    with pytest.raises(PortInUse, match="would tear circuit p0-d0, in use by window 1"):
        crossbar.begin(2, ("p1", "d0"))
    crossbar.release(1, ("p0", "d0"))
    assert crossbar.begin(2, ("p1", "d0")) == [("p0", "d0")]
    assert crossbar.standing() == {}


def test_the_guard_refuses_a_port_that_is_dark_for_another_window() -> None:
    crossbar = Crossbar()
    crossbar.begin(1, ("p0", "d0"))
    with pytest.raises(PortInUse, match="d0 is dark for window 1"):
        crossbar.begin(2, ("p1", "d0"))
    crossbar.abandon(1)
    crossbar.begin(2, ("p1", "d0"))
    with pytest.raises(PortInUse, match="does not own its ports"):
        crossbar.finish(1, ("p0", "d0"))


def test_the_guard_refuses_to_use_a_circuit_that_does_not_stand() -> None:
    crossbar = Crossbar()
    crossbar.replace({"p0": "d1"})
    with pytest.raises(PortInUse, match="circuit p0-d0 does not stand; p0 is joined to d1"):
        crossbar.use(1, ("p0", "d0"))


def test_a_plane_joins_only_the_pairs_of_its_half_of_the_nodes() -> None:
    half = PlanePorts("plane0", 1, "", {"p0": 1, "d0": 3})
    table = cleared()
    for message in switching.removal(DATAPATH, half, [("p0", "d0"), ("p1", "d1")]):
        table.apply(message)
    for message in switching.installation(DATAPATH, half, [("p0", "d0"), ("p1", "d1")]):
        table.apply(message)
    assert_joins_exactly(table, half, {"p0": "d0"})
