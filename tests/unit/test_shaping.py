"""Shapes turn goodput into what tc must be told, and see what tc holds instead."""

import ipaddress
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.agents.transfer import SEND_BUFFER_S
from emulation.network import dscp as marks
from emulation.network.shaping import Shape, ShapingError, answers, class_ceilings

DEMO = Shape(36e6)


def test_the_wire_carries_1514_bytes_for_1448_of_payload():
    assert DEMO.wire_bps == pytest.approx(36e6 * 1514 / 1448, abs=8)


def test_a_queue_takes_the_windows_of_four_connections_as_they_look_on_the_wire():
    assert DEMO.window_bytes == 64_000
    segments = math.ceil(4 * DEMO.window_bytes / 1448)
    assert 0 <= segments * 1514 - DEMO.queue_bytes < 1514


@given(st.floats(150e3, 20e9), st.integers(1448, 65_536))
def test_the_queue_holds_whole_packets_and_the_burst_two_segments_at_any_rate(goodput_bps, gso_max_bytes):
    shape = Shape(goodput_bps, gso_max_bytes=gso_max_bytes)
    packet_bytes = math.ceil(gso_max_bytes / 1448) * 1514
    assert shape.queue_bytes >= 2 * packet_bytes
    assert shape.burst_bytes >= 2 * 1514
    assert shape.wire_bps % 8 == 0


def test_a_link_ten_times_as_fast_keeps_its_queueing_delay():
    fast = Shape(360e6)
    assert fast.queue_bytes / fast.wire_bps == pytest.approx(DEMO.queue_bytes / DEMO.wire_bps, rel=1e-3)


def test_every_rate_is_told_in_bits_and_every_size_in_bytes():
    for line in Shape(36e6, "drr", 0xF).commands("gpu0"):
        words = line.split()
        for key, unit in (("rate", "bit"), ("ceil", "bit"), ("burst", "b"), ("cburst", "b"), ("limit", "b")):
            if key in words:
                value = words[words.index(key) + 1]
                assert value.removesuffix(unit).isdigit(), f"{key} {value} in {line}"


@pytest.mark.parametrize("mask", [0xF, 0x3 << 16 | 0x3, 0x1 << 16 | 0x7])
def test_drr_has_a_class_and_a_queue_for_each_value_of_the_masked_source(mask):
    lines = Shape(36e6, "drr", mask).commands("ks0")
    filters = [line.split() for line in lines if line.startswith("filter")]
    values = {int(words[words.index("u32", words.index("match")) + 1], 16) for words in filters}
    flows = {words[-1] for words in filters}
    leaves = {line.split()[line.split().index("classid") + 1] for line in lines if line.startswith("class")} - {"1:1"}
    assert len(values) == len(flows) == 16
    assert flows == leaves
    for source in ("10.64.0.4", "10.67.0.200", "10.65.3.7"):
        assert int(ipaddress.IPv4Address(source)) & mask in values


def test_priority_has_a_class_for_each_level_in_order_and_what_is_unmarked_goes_with_the_first():
    lines = [line.split() for line in Shape(36e6, "priority").commands("ks0")]
    priority = {}
    for words in lines:
        if words[0] == "class" and "prio" in words:
            priority[words[words.index("classid") + 1]] = int(words[words.index("prio") + 1])
    marked = {}
    for words in lines:
        if words[0] == "filter":
            value, mask = (int(word, 16) for word in words[words.index("u32", words.index("match")) + 1 :][:2])
            marked[value, mask] = priority.pop(words[-1])
    for level in range(marks.LEVELS):
        header = 0x4500_0000 | marks.tos(level) << 16 | 0x05DC  # version, field, length; ECN's bits are nobody's
        for ecn in (0, 1 << 16):
            assert [prio for (value, mask), prio in marked.items() if (header | ecn) & mask == value] == [level]
    assert priority == {"1:10": 0}
    assert [words[-1] for words in lines[:1]] == ["10"], "unmarked packets go to class 1:10"


def test_without_timestamps_a_segment_carries_1460_bytes():
    assert Shape(36e6, "priority").wire_bps == pytest.approx(36e6 * 1514 / 1460, abs=8)


def test_a_queue_that_is_not_served_holds_what_two_send_buffers_let_out():
    shape = Shape(360e6, "priority")
    assert shape.queue_bytes >= 2 * SEND_BUFFER_S * shape.goodput_bps / 8


def test_there_are_as_many_levels_as_the_kernel_has_priorities():
    for level in (-1, 8):
        with pytest.raises(ValueError, match="give 0 to 7"):
            marks.tos(level)


def test_a_fifo_has_one_class_and_one_queue():
    assert [line.split()[0] for line in DEMO.commands("gpu0")] == ["qdisc", "class", "class", "qdisc"]


@pytest.mark.parametrize("goodput_bps", [0, -36e6, math.nan, math.inf, 1.0, 1e12])
def test_a_rate_that_cannot_be_made_is_refused_with_its_value(goodput_bps):
    with pytest.raises(ShapingError, match=str(goodput_bps).split("e", maxsplit=1)[0]):
        Shape(goodput_bps)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"queue": "red"}, "queue 'red'"),
        ({"queue": "drr"}, "source mask 0x0"),
        ({"queue": "drr", "source_mask": 0x3F}, "source mask 0x3f"),
        ({"gso_max_bytes": 100}, "gso_max_bytes is 100"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(options, complaint):
    with pytest.raises(ShapingError, match=complaint):
        Shape(36e6, **options)


def held(shape: Shape) -> tuple[list[dict], dict[str, float]]:
    """What the kernel reports when it holds the shape."""
    qdiscs = [
        {"kind": "htb", "root": True, "options": {}},
        {"kind": "bfifo", "options": {"limit": shape.queue_bytes}},
    ]
    return qdiscs, {"1:1": shape.wire_bps, "1:10": shape.wire_bps}


def test_a_kernel_that_holds_the_shape_passes():
    assert DEMO.check("p0 gpu0", *held(DEMO)) == []


def test_a_missing_qdisc_a_wrong_rate_and_a_wrong_limit_are_each_named():
    qdiscs, ceilings = held(DEMO)
    assert "noqueue, not htb" in DEMO.check("p0 gpu0", [{"kind": "noqueue", "root": True}], {})[0]
    assert "absent, not htb" in DEMO.check("p0 gpu0", [], {})[0]
    (wrong,) = DEMO.check("p0 gpu0", qdiscs, ceilings | {"1:10": 1e9})
    assert "class 1:10" in wrong
    assert "1e+09" in wrong
    assert str(DEMO.wire_bps) in wrong
    (wrong,) = DEMO.check("p0 gpu0", [qdiscs[0], {"kind": "bfifo", "options": {"limit": 1}}], ceilings)
    assert wrong.startswith("p0 gpu0: bfifo limits are [1]")


def test_ceilings_are_read_in_any_unit_tc_prints():
    text = (
        "class htb 1:11 parent 1:1 leaf 11: prio 0 rate 37640bit ceil 37640Kbit burst 1513b cburst 10591b \n"
        "class htb 1:1 root rate 1Gbit ceil 1.5Gbit burst 1b cburst 1b\n"
    )
    assert class_ceilings(text) == {"1:11": 37_640_000.0, "1:1": 1.5e9}


def test_answers_come_one_after_another():
    assert answers('[{"kind":"htb"}]\n\n[]\n[1, 2]') == [[{"kind": "htb"}], [], [1, 2]]
    assert answers("") == []
