"""tc text for one end of a shaped link, and the check that the kernel holds what was asked for.

Goodput is TCP payload; the wire carries 1,514 bytes (Ethernet, IP, TCP with timestamps) for 1,448 of it, which is
what HTB counts, whole GSO packets segment by segment. So HTB's rate is goodput x 1514/1448, always in bits per second.

    fifo       root htb -> one class -> bfifo
    drr        root htb -> one class -> up to 32 leaf classes by source address, each with its own bfifo
    priority   root htb -> one class -> a leaf class for each level of `marks`, and one for what is unmarked

HTB serves leaf classes of one priority by deficit round robin as long as they borrow: their own rate is next to
nothing, their ceiling the link's rate. So as many sources on a link share it equally, and one alone has all of it.
Among classes of different priority the first one that has a packet sends it. Hosts of such links send no TCP timestamps
(`topologies.wiring.UNORDERED_SYSCTLS`), so a segment carries 1,460 bytes there.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from emulation.network import dscp as marks
from topologies.wiring import SOURCE_MASK_BITS

MSS_BYTES = 1448
MSS_WITHOUT_TIMESTAMPS_BYTES = 1460
SEGMENT_BYTES = 1514
GSO_MAX_BYTES = 9000
QUEUES = ("drr", "fifo", "priority")
# Outside these a packet of 9,000 bytes takes over half a second, or a software path cannot keep up.
MIN_GOODPUT_BPS, MAX_GOODPUT_BPS = 150e3, 20e9
# What a KV connection may have under way, payload: time of its link, and at least (docs/decisions/0009). A receiver
# wakes for 32 KB, so half of it is always on its way; in packets it is the same for slower (dilated) links.
MIN_WINDOW_BYTES = 64_000
WINDOW_S = MIN_WINDOW_BYTES * 8 / 36e6
# A queue holds the windows of so many connections, so that a port drops nothing before that many share one queue. One
# level of a priority fabric is shared by all sources: it holds two send buffers (`agents/transfer.py`: 50 ms each).
QUEUE_WINDOWS, PRIORITY_QUEUE_WINDOWS = 4, 8
# Longer than any propagation delay at the largest dilation that a run is made with.
MAX_DELAY_S = 10.0
# A leaf class's queue behind a delay has the handle of the class plus this.
DELAYED = 0x100
# Credit an idle link collects, in time and at least. HTB lets a class go into debt for one packet, so a burst need not
# hold a whole GSO packet; one that does (10.6 KB) lets 2 % of a 546 KB transfer out free, measured at 36 Mbit/s.
BURST_S, MIN_BURST_BYTES = 0.0005, 2 * SEGMENT_BYTES
# A leaf class's own rate: what it sends without borrowing, and so outside the round robin, must not matter.
LEAF_SHARE = 1 / 1000


def window_bytes(goodput_bps: float) -> int:
    """TCP's window of a KV connection over links of this rate, payload, without what propagation delays add."""
    return max(MIN_WINDOW_BYTES, round(goodput_bps / 8 * WINDOW_S))


class ShapingError(ValueError):
    """A rate tc cannot make, or a qdisc that is not what was asked for: says the interface, both values, the remedy."""


class Leaf(NamedTuple):
    """A leaf class: number of its minor id, HTB priority, and the u32 match that leads to it (None: the default)."""

    minor: int
    priority: int
    match: str | None


@dataclass(frozen=True, slots=True)
class Shape:
    """What one end of a link does to what it sends.

    goodput_bps: TCP payload, bits per second. queue: "drr" | "fifo" | "priority". source_mask: source-address bits
    (IPv4, as a 32-bit number) that choose among at most 32 classes of drr. gso_max_bytes: largest packet the senders
    build; the queue holds at least one. delay_s: propagation delay, wall seconds; 0 is none and needs no netem. Raises
    ShapingError on a rate, mask or delay that cannot be made.
    """

    goodput_bps: float
    queue: str = "fifo"
    source_mask: int = 0
    gso_max_bytes: int = GSO_MAX_BYTES
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.goodput_bps) and MIN_GOODPUT_BPS <= self.goodput_bps <= MAX_GOODPUT_BPS):
            raise ShapingError(
                f"goodput of {self.goodput_bps} bit/s: tc and TCP make {MIN_GOODPUT_BPS:g} to {MAX_GOODPUT_BPS:g}; "
                "change scale.rate_scale or scale.time_dilation"
            )
        if self.queue not in QUEUES:
            raise ShapingError(f"queue {self.queue!r}: give {', '.join(QUEUES)}")
        if self.queue == "drr" and not (
            0 < self.source_mask < 1 << 32 and self.source_mask.bit_count() <= SOURCE_MASK_BITS
        ):
            raise ShapingError(
                f"source mask {self.source_mask:#x}: drr needs 1 to {SOURCE_MASK_BITS} bits, "
                f"for at most {1 << SOURCE_MASK_BITS} classes"
            )
        if not MSS_BYTES <= self.gso_max_bytes <= 65_536:
            raise ShapingError(f"gso_max_bytes is {self.gso_max_bytes}: give {MSS_BYTES} to 65536")
        if not 0 <= self.delay_s <= MAX_DELAY_S:
            raise ShapingError(f"delay of {self.delay_s} s: give 0 to {MAX_DELAY_S:g}")

    @property
    def mss_bytes(self) -> int:
        """Payload of a full segment."""
        return MSS_WITHOUT_TIMESTAMPS_BYTES if self.queue == "priority" else MSS_BYTES

    @property
    def wire_bps(self) -> int:
        """Bits per second HTB must count for this goodput; whole bytes, as the kernel keeps them."""
        return round(self.goodput_bps * SEGMENT_BYTES / self.mss_bytes / 8) * 8

    @property
    def gso_wire_bytes(self) -> int:
        """Bytes HTB counts for the largest packet."""
        return math.ceil(self.gso_max_bytes / MSS_BYTES) * SEGMENT_BYTES

    @property
    def burst_bytes(self) -> int:
        """Credit an idle link collects: two segments, or half a millisecond where timers are coarser than that."""
        return max(MIN_BURST_BYTES, round(self.wire_bps / 8 * BURST_S))

    @property
    def window_bytes(self) -> int:
        """TCP's window of a KV connection over such links."""
        return window_bytes(self.goodput_bps)

    @property
    def queue_bytes(self) -> int:
        """Limit of a queue: a queue that cannot take one GSO packet drops it for ever."""
        windows = PRIORITY_QUEUE_WINDOWS if self.queue == "priority" else QUEUE_WINDOWS
        return max(2 * self.gso_wire_bytes, math.ceil(windows * self.window_bytes * SEGMENT_BYTES / MSS_BYTES))

    def _leaves(self) -> list[Leaf]:
        """The leaf classes that share the link, in the order of their minor ids; `fifo` has none but its one queue."""
        if self.queue == "priority":
            marked = [
                Leaf(0x11 + level, level, f"match u32 {marks.tos(level) << 16:#010x} {marks.MASK << 16:#010x} at 0")
                for level in range(marks.LEVELS)
            ]
            return [Leaf(0x10, 0, None), *marked]
        bits = [1 << bit for bit in range(32) if self.source_mask >> bit & 1]
        values = [sum(bit for index, bit in enumerate(bits) if number >> index & 1) for number in range(1 << len(bits))]
        return [
            Leaf(0x10 + number, 0, f"match u32 {value:#010x} {self.source_mask:#010x} at 12")
            for number, value in enumerate(values)
        ]

    def commands(self, interface: str) -> list[str]:
        """`tc -batch` lines for an interface without a qdisc of its own."""
        rate, burst = f"{self.wire_bps}bit", f"{self.burst_bytes}b"
        shared = f"ceil {rate} burst {burst} cburst {burst} quantum {self.gso_wire_bytes}"
        lines = [
            f"qdisc add dev {interface} root handle 1: htb default 10",
            f"class add dev {interface} parent 1: classid 1:1 htb rate {rate} {shared}",
        ]
        if self.queue == "fifo":
            return [
                *lines,
                f"class add dev {interface} parent 1:1 classid 1:10 htb rate {rate} {shared}",
                *self._buffer(interface, 0x10),
            ]
        own = f"{max(8_000, round(self.wire_bps * LEAF_SHARE / 8) * 8)}bit"
        for number, priority, match in self._leaves():
            minor, prio = f"{number:x}", f"prio {priority} " if self.queue == "priority" else ""
            lines += [
                f"class add dev {interface} parent 1:1 classid 1:{minor} htb {prio}rate {own} ceil {rate} "
                f"burst {SEGMENT_BYTES}b cburst {burst} quantum {self.gso_wire_bytes}",
                *self._buffer(interface, number),
            ]
            if match is not None:
                lines.append(f"filter add dev {interface} parent 1: protocol ip prio 1 u32 {match} flowid 1:{minor}")
        return lines

    def _buffer(self, interface: str, minor: int) -> list[str]:
        """The queue of leaf class 1:`minor`, and before it the link's delay.

        A packet waits out the delay first and then for its turn: so the queue's limit counts only what waits for the
        link, as behind a delay of the medium. netem's own limit, in packets, is never met: it could hold the link's
        rate in packets of 64 bytes.
        """
        if not self.delay_s:
            return [f"qdisc add dev {interface} parent 1:{minor:x} handle {minor:x}: bfifo limit {self.queue_bytes}b"]
        packets = 1000 + math.ceil(self.wire_bps / 8 * self.delay_s / 64)
        inner = minor + DELAYED
        return [
            f"qdisc add dev {interface} parent 1:{minor:x} handle {minor:x}: "
            f"netem delay {self.delay_us}us limit {packets}",
            f"qdisc add dev {interface} parent {minor:x}:1 handle {inner:x}: bfifo limit {self.queue_bytes}b",
        ]

    @property
    def delay_us(self) -> int:
        """The delay as netem is told it."""
        return round(self.delay_s * 1e6)

    def check(self, where: str, qdiscs: list[dict[str, Any]], ceilings: dict[str, float]) -> list[str]:
        """What differs between this shape and what the kernel holds; empty when nothing does.

        where: named in each line. qdiscs: as `tc -j qdisc show dev` prints them. ceilings: class id -> bits per
        second (`class_ceilings`).
        """
        leaves = 1 if self.queue == "fifo" else len(self._leaves())
        wrong = []
        roots = [qdisc["kind"] for qdisc in qdiscs if qdisc.get("root")]
        if roots != ["htb"]:
            return [f"{where}: the root qdisc is {', '.join(roots) or 'absent'}, not htb"]
        limits = [qdisc["options"]["limit"] for qdisc in qdiscs if qdisc["kind"] == "bfifo"]
        if limits != [self.queue_bytes] * leaves:
            wrong.append(f"{where}: bfifo limits are {limits} bytes, not {leaves} x {self.queue_bytes}")
        delays_s = [qdisc["options"]["delay"]["delay"] for qdisc in qdiscs if qdisc["kind"] == "netem"]
        wanted_s = [self.delay_us / 1e6] * (leaves if self.delay_s else 0)
        if len(delays_s) != len(wanted_s) or any(abs(found_s - wanted_s[0]) > 1e-6 for found_s in delays_s):
            wrong.append(
                f"{where}: netem delays are {delays_s} s, not {leaves if self.delay_s else 0} x {self.delay_s}"
            )
        for name in ["1:1"] + [f"1:{0x10 + number:x}" for number in range(leaves)]:
            # tc rounds what it prints to a few digits, hence the tolerance.
            if abs(ceilings.get(name, 0.0) - self.wire_bps) > self.wire_bps * 1e-3:
                wrong.append(
                    f"{where}: class {name} has a ceiling of {ceilings.get(name, 0.0):g} bit/s, not {self.wire_bps}"
                )
        return wrong


UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def class_ceilings(text: str) -> dict[str, float]:
    """Class id -> ceiling in bits per second, from `tc class show` (which has no JSON for HTB)."""
    found = re.findall(r"^class htb (\S+) .*?\bceil ([0-9.]+)([KMGT]?)bit", text, re.MULTILINE)
    return {name: float(number) * UNITS[unit] for name, number, unit in found}


def answers(output: str) -> list[list[dict[str, Any]]]:
    """The JSON arrays that `tc -j -batch` prints one after another, one for each line it was given."""
    decoder, position, found = json.JSONDecoder(), 0, []
    while position < len(output):
        if output[position].isspace():
            position += 1
            continue
        value, position = decoder.raw_decode(output, position)
        found.append(value)
    return found
