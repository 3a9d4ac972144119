"""What the packets prove: each kind of violation is found and names its packet; a clean run has none."""

from __future__ import annotations

import dataclasses

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import PcapWriter

from emulation.audit import Segment, audit_circuits, audit_paths, new_bytes, read

TAU_S = 0.025
ADDRESSES = {"p0": ["10.64.0.4"], "p1": ["10.64.0.5"], "d0": ["10.64.0.8"], "d1": ["10.64.0.9"]}
STEPS = {
    "remove": 0.0002, "barrier": 0.0005, "purge": 0.0004, "dark_wait": 0.025, "install": 0.0003, "barrier2": 0.0005,
    "purge2": 0.0005,
}  # fmt: skip
LIVE_S = 1.0
INSTALLED_S = LIVE_S - 0.0013
DARK_FROM_S = INSTALLED_S - 0.025
EVENTS = [
    {"event": "window", "window": 3, "state": "dark", "prefill": "p0", "decode": "d0", "request": "a"},
    {"event": "switch", "window": 3, "t_s": LIVE_S, "steps_s": STEPS, "dark_s": sum(STEPS.values())},
]


def segment(number: int, at_s: float, sequence: int, size: int = 1000, source="p0", destination="d0", port=4000):
    return Segment("d0-gpu0.pcap", number, at_s, ADDRESSES[source][0], port, ADDRESSES[destination][0], sequence, size)


DATA = [segment(number, LIVE_S + 0.001 * number, 1000 * number) for number in range(1, 11)]
TRANSFER = {
    "first_byte_s": LIVE_S + 0.0012,
    "request": "a", "rank": 0, "prefill": "p0", "decode": "d0", "emulated_bytes": 10_000, "source_port": 4000,
    "last_byte_s": LIVE_S + 0.0102, "uplink": 1,
}  # fmt: skip


def circuits(segments, events=EVENTS, transfers=(TRANSFER,)):
    return audit_circuits(segments, events, transfers, addresses=ADDRESSES, tau_s=TAU_S, time_dilation=1.0)


def test_a_clean_reconfiguration_has_no_violation_and_its_dark_time_is_known():
    found = circuits(DATA)
    assert found.violations == []
    assert (found.packets, found.payload_bytes, found.retransmitted_bytes) == (10, 10_000, 0)
    assert found.dark_s == pytest.approx([0.025])
    assert found.first_packet_s == pytest.approx([LIVE_S + 0.001 - DARK_FROM_S])
    assert found.byte_delay_s == pytest.approx([0.0002, 0.0002])
    excess_s = {step: seconds - (TAU_S if step == "dark_wait" else 0.0) for step, seconds in STEPS.items()}
    assert {step: values[0] for step, values in found.excess_s.items()} == pytest.approx(excess_s)


def test_a_window_whose_kv_was_not_ready_says_nothing_of_the_dark_as_packets_see_it():
    late = [dataclasses.replace(each, at_s=each.at_s + 0.2) for each in DATA]
    found = circuits(late, transfers=[TRANSFER | {"first_byte_s": LIVE_S + 0.2012, "last_byte_s": LIVE_S + 0.2102}])
    assert (found.violations, found.first_packet_s) == ([], [])


@pytest.mark.parametrize("at_s", [DARK_FROM_S + 0.001, (DARK_FROM_S + INSTALLED_S) / 2, INSTALLED_S - 0.0005])
@pytest.mark.parametrize("route", [("p0", "d0"), ("p1", "d0"), ("p0", "d1")])
def test_a_packet_delivered_into_the_dark_of_either_port_is_named(at_s, route):
    stray = segment(99, at_s, 5, source=route[0], destination=route[1], port=5)
    (violation, *rest) = circuits([*DATA, stray]).violations
    assert violation.startswith(f"packet 99 of d0-gpu0.pcap: 1000 bytes from {ADDRESSES[route[0]][0]}")
    assert "into the dark of window 3 (p0-d0)" in violation
    assert len(rest) == 1, "and its bytes were not asked for"


@pytest.mark.parametrize("at_s", [DARK_FROM_S - 0.0005, INSTALLED_S + 0.0002])
def test_packets_at_the_edges_of_the_dark_are_not_in_it(at_s):
    edge = segment(99, at_s, 5, port=5)
    assert circuits([*DATA, edge], transfers=[TRANSFER | {"emulated_bytes": 11_000}]).violations == []


def test_other_ports_may_carry_packets_while_a_pair_is_dark():
    other = segment(99, DARK_FROM_S + 0.01, 5, source="p1", destination="d1", port=5)
    assert circuits([*DATA, other], transfers=[TRANSFER | {"emulated_bytes": 11_000}]).violations == []


def test_a_dark_time_shorter_than_tau_is_a_violation():
    short = [EVENTS[0], EVENTS[1] | {"steps_s": STEPS | {"dark_wait": 0.0249}}]
    assert circuits(DATA, short).violations == ["window 3: dark for 24.900 ms of 25 ms"]


def test_bytes_that_were_not_delivered_are_missed():
    assert "9000 bytes were delivered, 10000 were asked for" in circuits(DATA[:4] + DATA[5:]).violations


def test_retransmitted_bytes_are_counted_apart():
    again = dataclasses.replace(DATA[3], number=50, at_s=LIVE_S + 0.0099)
    found = circuits([*DATA[:9], again, DATA[9]])
    assert (found.violations, found.payload_bytes, found.retransmitted_bytes) == ([], 10_000, 1000)


def test_a_hole_that_is_filled_later_counts_once_and_sequence_numbers_may_wrap():
    wrap = (1 << 32) - 1500
    order = [0, 2, 1, 1, 3]
    segments = [segment(i, i, (wrap + 1000 * index) % (1 << 32)) for i, index in enumerate(order)]
    assert new_bytes(segments) == (4000, 1000)


def test_a_first_byte_recorded_long_after_its_packet_or_before_it_is_a_violation():
    late = TRANSFER | {"first_byte_s": LIVE_S + 0.0275, "last_byte_s": LIVE_S + 0.0276}
    (violation,) = circuits(DATA, transfers=[late]).violations
    assert violation.startswith("transfer a rank 0: its first packet (packet 1 of d0-gpu0.pcap) came 26.500 ms before")
    early = TRANSFER | {"first_byte_s": LIVE_S + 0.0005}
    assert circuits(DATA, transfers=[early]).violations == ["transfer a rank 0: no packet came before its first byte"]


def test_the_next_transfer_of_a_connection_begins_after_the_one_before_it():
    again = [segment(20 + n, LIVE_S + 0.1 + 0.001 * n, 11_000 + 1000 * n) for n in range(10)]
    second = TRANSFER | {"request": "b", "first_byte_s": LIVE_S + 0.1002, "last_byte_s": LIVE_S + 0.1092}
    assert circuits([*DATA, *again], transfers=[second, TRANSFER]).violations == []
    taking_turns = second | {"first_byte_s": LIVE_S + 0.0052}  # a layer-wise tail behind the next one's head
    assert circuits([*DATA, *again], transfers=[taking_turns, TRANSFER]).violations == []


def test_a_last_byte_recorded_long_after_its_packet_is_a_violation():
    late = TRANSFER | {"last_byte_s": LIVE_S + 0.0360}
    (violation,) = circuits(DATA, transfers=[late]).violations
    assert violation.startswith("transfer a rank 0: its last packet (packet 10 of d0-gpu0.pcap) came 26.000 ms")


def test_every_flow_of_a_packet_fabric_takes_the_uplink_on_record():
    assert audit_paths({0: [], 1: DATA}, [TRANSFER], addresses=ADDRESSES).violations == []
    (wrong,) = audit_paths({0: DATA[:1], 1: DATA[1:]}, [TRANSFER], addresses=ADDRESSES).violations
    assert wrong == "packet 1 of d0-gpu0.pcap: transfer a rank 0 took uplink 0, not 1"
    (lost,) = audit_paths({0: [], 1: []}, [TRANSFER], addresses=ADDRESSES).violations
    assert "none of its packets crossed an uplink" in lost


def test_a_capture_is_read_in_run_clock_time_and_by_payload(tmp_path):
    path = tmp_path / "d0-gpu0.pcap"
    with PcapWriter(str(path), linktype=1, snaplen=96) as writer:
        for size, flags in ((0, "S"), (1448, "A")):
            packet = Ether() / IP(src="10.64.0.4", dst="10.64.0.8") / TCP(sport=4000, dport=7100, seq=7, flags=flags)
            packet = packet / Raw(b"x" * size) if size else packet
            packet = Ether(bytes(packet))
            packet.time = 1_000_000_012.0
            writer.write(packet)
    (only,) = read(path, clock_offset_s=1_000_000_000.0, t0_monotonic_s=10.0, time_dilation=2.0)
    assert only == Segment("d0-gpu0.pcap", 2, 1.0, "10.64.0.4", 4000, "10.64.0.8", 7, 1448)
