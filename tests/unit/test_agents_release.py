"""Which bytes of a transfer are released when, the source ports it leaves from, and the clock that drives it."""

import asyncio
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.agents.clock import AgentClock, ClockNotStarted, Lateness, new_event_loop
from emulation.agents.kernel import TcpCounters, parse_tcp_info
from emulation.agents.kv_connections import SourcePorts
from emulation.agents.outgoing import OutgoingTransfer
from emulation.agents.transfer import SEGMENT_BYTES, Frame, released_bytes
from emulation.agents.wire import HEADER_BYTES, KvPart
from emulation.scale import ScaleModel
from workloads.flow_hash import hashed_uplink
from workloads.kv import kv_model
from workloads.prefill import TIMINGS
from workloads.serving import KvStream, TransferMode

TIMING, KV, SCALE = TIMINGS["h100-tp4"], kv_model("llama-3.1-70b", tp=4), ScaleModel(1e-4)


@dataclass
class ScriptedConnection:
    """Takes what is released and acknowledges when told to."""

    frames: list[Frame] = field(default_factory=list)
    released: dict[str, int] = field(default_factory=dict)
    withdrawn: list[Frame] = field(default_factory=list)
    usable: bool = True

    def counters(self) -> TcpCounters:
        return TcpCounters(0, 0, 100)

    def enqueue(self, frame: Frame) -> None:
        self.frames.append(frame)

    def release(self, frame: Frame, upto_bytes: int) -> None:
        self.released[frame.header.part.label] = upto_bytes

    def withdraw(self, frame: Frame) -> None:
        self.withdrawn.append(frame)

    def acknowledge(self, number: int) -> None:
        self.frames[number].done = True
        self.frames[number].on_done(self.frames[number])


@dataclass
class ScriptedClock:
    """Virtual time: remembers the one timer that is armed."""

    time_s: float = 0.0
    armed_s: float | None = None

    def now_s(self) -> float:
        return self.time_s

    def at(self, run_s: float, callback: Callable[[float], None]) -> "ScriptedClock":
        self.armed_s, self._callback = run_s, callback
        return self

    def cancel(self) -> None:
        self.armed_s = None

    def run_to_end(self) -> list[float]:
        """Fire timer after timer; when they fired."""
        fired = []
        while self.armed_s is not None:
            self.time_s = self.armed_s
            self.armed_s = None
            fired.append(self.time_s)
            self._callback(self.time_s)
        return fired


class Bench:
    """A transfer of `new` and `cached` tokens whose prefill starts at 10 s."""

    def __init__(self, mode: TransferMode, new: int, cached: int, ranks: int = 1) -> None:
        plan = TIMING.plan(new, cached, KV.layers)
        self.stream = KvStream(plan, KV, mode, 10.0)
        self.clock = ScriptedClock(10.0)
        self.connections = [ScriptedConnection() for _ in range(ranks)]
        self.done: list[str] = []
        self.lost: list[str] = []
        self.transfer = OutgoingTransfer(
            3,
            self.stream,
            clock=self.clock,  # type: ignore[arg-type]
            scale=SCALE,
            on_part_done=lambda part: self.done.append(part.label),
            on_lost=self.lost.append,
        )

    def send(self, part: KvPart) -> None:
        self.transfer.send(part, self.connections)  # type: ignore[arg-type]


def test_pull_releases_everything_at_the_end_of_the_prefill_and_nothing_before() -> None:
    bench = Bench("pull", 1100, 65_600)
    bench.send(KvPart.ALL)
    assert bench.connections[0].released == {"all": 0}
    assert bench.clock.run_to_end() == [pytest.approx(10.190868, abs=1e-6)]
    assert bench.connections[0].released == {"all": 546_406}


def test_layerwise_releases_the_head_at_once_and_the_tail_by_segments() -> None:
    bench = Bench("layerwise", 1100, 65_600)
    bench.send(KvPart.HEAD)
    bench.send(KvPart.TAIL)
    assert bench.connections[0].released == {"head": 537_395, "tail": 0}
    fired = bench.clock.run_to_end()
    # A layer is 112.64 emulated bytes: 13 make a segment, the tail is six segments and its rest.
    layer_s = bench.stream.plan.duration_s / 80
    assert fired == pytest.approx([10 + layer_s * n for n in (13, 26, 39, 52, 65, 78, 80)], abs=1e-6)
    assert bench.connections[0].released == {"head": 537_395, "tail": 9011}


@given(st.integers(1, 5000), st.integers(0, 100_000), st.sampled_from(["pull", "layerwise"]))
def test_nothing_is_released_before_it_exists_and_the_parts_add_up(new: int, cached: int, mode: TransferMode) -> None:
    bench = Bench(mode, new, cached)
    for part in bench.transfer.parts:
        bench.send(part)
    while bench.clock.armed_s is not None:
        released = sum(bench.connections[0].released.values())
        existing = SCALE.emulated_bytes(bench.stream.bytes_at(bench.clock.time_s))
        # a frame is never shorter than its header, so a head of a few bytes is sent as one
        short_head = max(HEADER_BYTES - SCALE.emulated_bytes(bench.stream.head_bytes), 0) if mode == "layerwise" else 0
        assert released <= max(existing + short_head, HEADER_BYTES)
        bench.clock.time_s, bench.clock.armed_s = bench.clock.armed_s, None
        bench.clock._callback(bench.clock.time_s)
    assert sum(bench.connections[0].released.values()) == bench.transfer.emulated_bytes
    padding = HEADER_BYTES * len(bench.transfer.parts)
    assert 0 <= bench.transfer.emulated_bytes - SCALE.emulated_bytes(bench.stream.total_bytes) <= padding


def test_the_end_of_the_prefill_is_when_its_last_layer_was_released() -> None:
    bench = Bench("layerwise", 7, 0)
    bench.send(KvPart.TAIL)
    assert bench.transfer.end_actual_s is None
    bench.clock.run_to_end()
    assert bench.transfer.end_actual_s == 10 + bench.stream.plan.duration_s
    bench.transfer.advance(99.0)
    assert bench.transfer.end_actual_s == 10 + bench.stream.plan.duration_s


def test_rounding_to_whole_bytes_does_not_complete_a_tail_a_layer_early() -> None:
    # 7 tokens are 57.34 emulated bytes; after 79 of 80 layers 56.63, which is 57 rounded as well.
    bench = Bench("layerwise", 7, 0)
    bench.send(KvPart.TAIL)
    assert bench.clock.run_to_end() == [10 + bench.stream.plan.duration_s]
    assert bench.connections[0].released == {"tail": 57}


def test_the_tail_waits_for_its_own_permission() -> None:
    bench = Bench("layerwise", 1100, 65_600)
    bench.send(KvPart.HEAD)
    assert bench.clock.armed_s is None
    bench.clock.time_s = 10.15
    bench.send(KvPart.TAIL)
    # 62 of 80 layers have ended: 62 x 112.64 B are four whole segments.
    assert bench.connections[0].released["tail"] == 4 * SEGMENT_BYTES


def test_a_part_is_done_once_when_the_last_rank_is() -> None:
    bench = Bench("pull", 100, 1000, ranks=3)
    bench.send(KvPart.ALL)
    bench.clock.run_to_end()
    for rank in (2, 0):
        bench.connections[rank].acknowledge(0)
    assert bench.done == []
    assert not bench.transfer.complete
    bench.connections[1].acknowledge(0)
    assert bench.done == ["all"]
    assert bench.transfer.complete


def test_without_ranks_a_part_is_done_when_it_exists() -> None:
    bench = Bench("layerwise", 100, 1000, ranks=0)
    for part in (KvPart.HEAD, KvPart.TAIL):
        bench.send(part)
    assert bench.done == ["head"]
    assert bench.clock.run_to_end() == [pytest.approx(10 + TIMING.duration_s(100, 1000))]
    assert bench.done == ["head", "tail"]


def test_an_aborted_transfer_takes_its_frames_back_and_stays_silent() -> None:
    bench = Bench("pull", 100, 1000, ranks=2)
    bench.send(KvPart.ALL)
    bench.transfer.abort()
    assert [len(connection.withdrawn) for connection in bench.connections] == [1, 1]
    frame = bench.connections[0].frames[0]
    frame.on_lost(frame, "cut")
    bench.connections[0].acknowledge(0)
    assert (bench.done, bench.lost) == ([], [])


@pytest.mark.parametrize(
    ("existing", "size", "released"),
    [(0, 5000, 0), (1447, 5000, 0), (1448, 5000, 1448), (4999, 5000, 4344), (24, 24, 24)],
)
def test_release_goes_by_whole_segments_until_the_end(existing: int, size: int, released: int) -> None:
    assert released_bytes(existing, size) == released


def test_source_ports_of_an_uplink_are_used_in_turn() -> None:
    ports = SourcePorts([[1, 2, 3], [11]])
    assert [ports.take(0)[0] for _ in range(4)] == [1, 2, 3, 1]
    assert ports.take(0, 2) == [2, 3]
    assert ports.take(1) == [11]
    with pytest.raises(ValueError, match="uplink 0 has no source port"):
        SourcePorts([[]]).take(0)


def test_the_hash_repeats_for_a_seed_and_spreads_evenly_over_the_uplinks() -> None:
    flows = [(f"agentic-{i:06d}", "0") for i in range(4000)]
    uplinks = [hashed_uplink(1, flow, 4) for flow in flows]
    assert uplinks == [hashed_uplink(1, flow, 4) for flow in flows]
    assert uplinks != [hashed_uplink(2, flow, 4) for flow in flows]
    # Binomial: 1,000 +- 27 each; five standard deviations.
    assert all(abs(uplinks.count(uplink) - 1000) < 137 for uplink in range(4))


def test_tcp_info_of_a_new_kernel_has_timeouts_and_that_of_an_old_one_has_none() -> None:
    raw = bytearray(248)
    struct.pack_into("=I", raw, 68, 1500)
    struct.pack_into("=I", raw, 100, 7)
    struct.pack_into("=H", raw, 240, 2)
    assert parse_tcp_info(bytes(raw)) == TcpCounters(7, 2, 1500)
    assert parse_tcp_info(bytes(raw[:232])) == TcpCounters(7, None, 1500)
    assert TcpCounters(7, 2, 1500).since(TcpCounters(3, 2, 900)) == TcpCounters(4, 0, 1500)
    with pytest.raises(ValueError, match="tcp_info of 92 bytes is too short"):
        parse_tcp_info(bytes(raw[:92]))


def test_lateness_names_nearest_ranks_and_nothing_where_nothing_was_timed() -> None:
    lateness = Lateness()
    assert lateness.summary() == {"n": 0, "p50": None, "p99": None, "max": None}
    for value in range(100, 0, -1):
        lateness.add(float(value))
    assert lateness.summary() == {"n": 100, "p50": 50.0, "p99": 99.0, "max": 100.0}


def test_timers_are_never_early_and_the_clock_has_no_time_before_its_start() -> None:
    clock = AgentClock(2.0)
    with pytest.raises(ClockNotStarted):
        clock.now_s()

    async def fire() -> list[tuple[float, float, float]]:
        clock.start(time.monotonic())
        fired: list[tuple[float, float, float]] = []
        done = asyncio.Event()
        for number in range(20):
            at_s = 0.0013 * number

            def note(now_s: float, at_s: float = at_s) -> None:
                fired.append((at_s, now_s, clock.now_s()))
                if len(fired) == 20:
                    done.set()

            clock.at(at_s, note)
        await asyncio.wait_for(done.wait(), 60)
        return fired

    loop = new_event_loop()
    try:
        fired = loop.run_until_complete(fire())
    finally:
        loop.close()
    assert [at_s for at_s, _, _ in fired] == sorted(at_s for at_s, _, _ in fired)
    assert all(at_s <= now_s for at_s, now_s, _ in fired)
    assert all(at_s <= read_s + 1e-9 for at_s, _, read_s in fired)
    assert clock.lateness.summary()["n"] == 20
