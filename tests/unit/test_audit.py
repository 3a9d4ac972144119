"""What the packets prove: each kind of violation is found and names its packet; a clean run has none."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pandas as pd
import pytest
from cluster_cases import leaf_spine_paths
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import PcapWriter

from emulation.agents.wire import HEADER_BYTES
from emulation.linux.wall_clock import ClockOffset, ClockPair
from emulation.monitor.capture import Captures, Point
from emulation.plan.fabric_plan import FabricPlan
from emulation.verdict.audit import Segment, audit_circuits, audit_paths, new_bytes, read
from emulation.verdict.packet_audit import audited, unfinished_bytes
from experiments.schema.spec import load
from results.metrics.merge import Frames
from results.records.schema import CIRCUITS, REQUESTS, TRANSFERS

DEMO = Path(__file__).resolve().parents[2] / "experiments" / "demo.yaml"
TAU_S = 0.025
STEADY = ClockPair(ClockOffset(0.0, 1e9), ClockOffset(60.0, 1e9))
APART = leaf_spine_paths(2, 2, uplinks=2)
TOGETHER = leaf_spine_paths(2, 2, uplinks=2, racks="mixed")
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


def circuits(segments, events=EVENTS, transfers=(TRANSFER,), **more):
    return audit_circuits(
        segments, events, transfers, addresses=ADDRESSES, reconfiguration_s=TAU_S, time_dilation=1.0, **more
    )


def paths(segments, transfers=(TRANSFER,), paths=APART, **more):
    """`segments`: by the spine to which they leave the prefills' leaf."""
    captured = {("kl0", f"ks{spine}"): each for spine, each in segments.items()}
    return audit_paths(captured, transfers, addresses=ADDRESSES, paths=paths, **more)


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


def test_what_transfers_delivered_that_did_not_end_is_allowed_for_and_no_more():
    other = segment(99, LIVE_S + 0.05, 5, port=5)
    assert circuits([*DATA, other], unfinished_bytes=1000).violations == []
    (more,) = circuits([*DATA, other], unfinished_bytes=999).violations
    assert more.startswith("11000 bytes were delivered, 10000 were asked for, and at most 999 by")
    assert len(circuits(DATA[:4] + DATA[5:], unfinished_bytes=5000).violations) == 1, "what ended is all there"


def test_what_a_capture_lost_is_a_gap_and_no_violation_but_a_packet_in_the_dark_stays_one():
    stray = segment(99, DARK_FROM_S + 0.001, 5, port=5)
    found = circuits([DATA[0], stray], complete=False)
    assert found.gaps[0] == "2000 bytes were delivered, 10000 were asked for"
    assert [violation.split(":")[0] for violation in found.violations] == ["packet 99 of d0-gpu0.pcap"]
    assert paths({0: [], 1: []}, complete=False).violations == []


def test_retransmitted_bytes_are_counted_apart():
    again = dataclasses.replace(DATA[3], number=50, at_s=LIVE_S + 0.0099)
    found = circuits([*DATA[:9], again, DATA[9]])
    assert (found.violations, found.payload_bytes, found.retransmitted_bytes) == ([], 10_000, 1000)


def test_a_hole_that_is_filled_later_counts_once_and_sequence_numbers_may_wrap():
    wrap = (1 << 32) - 1500
    order = [0, 2, 1, 1, 3]
    segments = [segment(i, i, (wrap + 1000 * index) % (1 << 32)) for i, index in enumerate(order)]
    bringing, fresh, again = new_bytes(segments)
    assert (fresh, again) == (4000, 1000)
    assert [each.number for each in bringing] == [0, 1, 2, 4]


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


def test_what_is_sent_again_in_vain_between_two_transfers_of_a_connection_is_none_of_the_next_ones():
    vain = dataclasses.replace(DATA[9], number=50, at_s=LIVE_S + 0.03)
    again = [segment(60 + n, LIVE_S + 0.1 + 0.001 * n, DATA[9].sequence + 1000 * (1 + n)) for n in range(10)]
    second = TRANSFER | {"request": "b", "first_byte_s": LIVE_S + 0.1002, "last_byte_s": LIVE_S + 0.1092}
    found = circuits([*DATA, vain, *again], transfers=[second, TRANSFER])
    assert (found.violations, found.retransmitted_bytes) == ([], 1000)


def test_a_last_byte_recorded_long_after_its_packet_is_a_violation():
    late = TRANSFER | {"last_byte_s": LIVE_S + 0.0360}
    (violation,) = circuits(DATA, transfers=[late]).violations
    assert violation.startswith("transfer a rank 0: its last packet (packet 10 of d0-gpu0.pcap) came 26.000 ms")


def test_every_flow_of_a_packet_fabric_takes_the_uplink_on_record():
    assert paths({0: [], 1: DATA}).violations == []
    (wrong,) = paths({0: DATA[:1], 1: DATA[1:]}).violations
    assert wrong == "packet 1 of d0-gpu0.pcap: transfer a rank 0 took kl0-ks0, not kl0-ks1-kl1"
    (lost,) = paths({0: [], 1: []}).violations
    assert "none of its packets crossed kl0-ks1" in lost


def test_a_transfer_within_a_rack_crosses_no_uplink_and_has_none_on_record():
    inside = TRANSFER | {"uplink": pd.NA}
    assert paths({0: [], 1: []}, [inside], TOGETHER).violations == []
    (crossed,) = paths({0: DATA[:1], 1: []}, [inside], TOGETHER).violations
    assert crossed.endswith("transfer a rank 0 took kl0-ks0, not its own leaf")
    (recorded,) = paths({0: [], 1: []}, [TRANSFER], TOGETHER).violations
    assert "uplink 1 is on record" in recorded


@pytest.mark.parametrize("missing", ["uplink", "source_port"])
def test_a_transfer_without_its_senders_record_is_a_gap(missing):
    found = paths({0: [], 1: DATA}, [TRANSFER | {missing: pd.NA}])
    assert (found.violations, len(found.gaps)) == ([], 1)


def test_a_request_that_did_not_end_may_have_delivered_all_of_its_kv_and_one_that_was_not_sent_none():
    experiment = load(DEMO)
    row = dict.fromkeys(REQUESTS.columns) | {"arrival_s": 0.0, "new_tokens": 1000, "cached_tokens": 3000, "tenant": "t"}
    rows = [
        row | {"id": "ended", "sent_s": 1.0},
        row | {"id": "stays", "sent_s": 1.0, "migrated": False},
        row | {"id": "moves", "sent_s": 1.0},
        row | {"id": "waits"},
    ]
    ended = {"request": "ended", "rank": 0, "bytes": 1, "emulated_bytes": 1, "first_byte_s": 1.0, "last_byte_s": 2.0}
    transfers = [ended | {"rank": rank} for rank in range(experiment.cluster.gpus_per_instance)]
    frames = Frames(REQUESTS.frame(rows), TRANSFERS.frame(transfers), CIRCUITS.frame([]))
    most = unfinished_bytes(FabricPlan(experiment, experiment.fabrics[1], 1, ()), frames)
    real_bytes = experiment.kv.rank_bytes(1000) + experiment.kv.rank_bytes(4000)
    assert most == pytest.approx(experiment.cluster.gpus_per_instance * (real_bytes * 1e-4 + 4 * HEADER_BYTES), abs=16)


def audit_of(folder, content: bytes, lost, clocks: ClockPair | None = STEADY):
    experiment = load(DEMO)
    plan = FabricPlan(experiment, experiment.fabrics[1], 1, ())
    path = folder / "d0-gpu0.pcap"
    path.write_bytes(content)
    captures = Captures(folder, files={Point("d0", "gpu0", "in"): path}, clocks=clocks)
    frames = Frames(REQUESTS.frame([]), TRANSFERS.frame([]), CIRCUITS.frame([]))
    return audited(plan, plan.cluster(), captures, frames, [], t0_monotonic_s=0.0, lost=lost)


def test_a_capture_that_cannot_be_read_is_said_in_a_sentence(tmp_path):
    audit, (fault,) = audit_of(tmp_path, b"no capture at all, whatever its name", {"d0-gpu0": 0})
    assert audit is None
    assert fault.startswith("the packet audit failed: ")


def test_captures_that_were_not_stopped_cannot_be_read(tmp_path):
    audit, (fault,) = audit_of(tmp_path, b"", {"d0-gpu0": 0}, clocks=None)
    assert audit is None
    assert fault == "the packet audit failed: CaptureError: the captures have not been stopped"


def test_a_clock_that_was_set_is_a_gap(tmp_path):
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 1)
    audit, faults = audit_of(
        tmp_path, header, {"d0-gpu0": 0}, ClockPair(ClockOffset(0.0, 1e9), ClockOffset(60.0, 1e9 + 0.25))
    )
    assert (audit.gaps, faults) == (["the machine's clock was set by 250 ms while packets were stamped by it"], [])


@pytest.mark.parametrize(
    ("lost", "gaps"),
    [
        ({"d0-gpu0": 0}, []),
        ({"d0-gpu0": 7}, ["the capture d0-gpu0 lost 7 packets"]),
        ({}, ["the capture d0-gpu0 did not end in order"]),
    ],
)
def test_what_the_captures_say_they_lost_is_a_gap(tmp_path, lost, gaps):
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 1)  # a capture without a packet
    audit, faults = audit_of(tmp_path, header, lost)
    assert (audit.gaps, faults) == (gaps, [])


def test_a_capture_is_read_in_run_clock_time_and_by_payload(tmp_path):
    path = tmp_path / "d0-gpu0.pcap"
    with PcapWriter(str(path), linktype=1, snaplen=96) as writer:
        for size, flags in ((0, "S"), (1448, "A")):
            packet = Ether() / IP(src="10.64.0.4", dst="10.64.0.8") / TCP(sport=4000, dport=7100, seq=7, flags=flags)
            packet = packet / Raw(b"x" * size) if size else packet
            packet = Ether(bytes(packet))
            packet.time = 1_000_000_012.0
            writer.write(packet)
    (only,) = read(path, clocks=STEADY, t0_monotonic_s=10.0, time_dilation=2.0)
    assert only == Segment("d0-gpu0.pcap", 2, 1.0, "10.64.0.4", 4000, "10.64.0.8", 7, 1448)
