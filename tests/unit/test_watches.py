"""What looks at a run while its clock is on: /proc, rtnetlink, stopped processes, foreign CPU, circuit rules."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time

import pytest

from controllers.core.switching import circuit_rule
from emulation.linux import procfs
from emulation.linux.procfs import CoreTimes, ProcessTimes
from emulation.linux.rtnetlink import MESSAGE, NEIGHBOUR, TRAFFIC_CONTROL, attributes, messages
from emulation.monitor import machine
from emulation.monitor.changes import configuration, described
from emulation.monitor.circuit_rules import in_words
from emulation.monitor.machine import MachineWatch, StoppedProcesses
from emulation.monitor.sampler import Sampler

STAT = """\
cpu  300 0 100 500 10 0 20 30 0 0
cpu0 200 0 50 250 5 0 10 30 0 0
cpu1 100 0 50 250 5 0 10 0 0 0
intr 1 2 3
"""


def test_cores_are_read_with_interrupts_as_work_and_disk_waits_as_idle():
    tick_s = 1 / procfs.TICKS_PER_S
    assert procfs.parse_cores(STAT) == [
        CoreTimes(pytest.approx(260 * tick_s), pytest.approx(255 * tick_s), pytest.approx(30 * tick_s)),
        CoreTimes(pytest.approx(160 * tick_s), pytest.approx(255 * tick_s), 0.0),
    ]


def test_times_states_and_memory_are_read():
    assert procfs.parse_schedstat("1500000000 250000000 77\n") == ProcessTimes(1.5, 0.25)
    assert procfs.parse_state("12 (a) b (c) T 1 2 3") == "T"
    assert procfs.parse_available_bytes("MemTotal: 9 kB\nMemAvailable:  2048 kB\n") == 2**21


def test_our_own_process_has_run_and_one_that_is_gone_has_not():
    times = procfs.process_times(os.getpid())
    assert times is not None
    assert times.run_s > 0
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert procfs.process_times(gone.pid) is None
    assert not procfs.is_stopped(gone.pid)
    assert procfs.children(gone.pid) == []


def test_a_process_that_was_stopped_for_a_while_is_named_with_how_long():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        watch = StoppedProcesses({"p0": child.pid})
        watch.sample(10.0)
        os.kill(child.pid, signal.SIGSTOP)
        deadline_s = time.monotonic() + 30
        while not procfs.is_stopped(child.pid):
            assert time.monotonic() < deadline_s
        watch.sample(10.1)
        watch.sample(10.2)
        assert [(stop.name, stop.at_s) for stop in watch.stops()] == [("p0", 10.1)], "while it lasts"
        os.kill(child.pid, signal.SIGCONT)
        while procfs.is_stopped(child.pid):
            assert time.monotonic() < deadline_s
        watch.sample(10.3)
        (stop,) = watch.stops()
        assert (stop.name, stop.at_s, stop.seconds) == ("p0", 10.1, pytest.approx(0.2))
    finally:
        child.kill()
        child.wait()


def test_cpu_that_is_not_the_runs_own_is_foreign(monkeypatch):
    """Two cores for 10 s: one busy all the time, 4 s of it ours, 1 s stolen from the other."""
    readings = [
        ([CoreTimes(0, 0, 0), CoreTimes(0, 0, 0)], {7: ProcessTimes(1.0, 0.0), 8: ProcessTimes(5.0, 1.0)}, 300),
        ([CoreTimes(10, 0, 0), CoreTimes(0, 9, 1)], {7: ProcessTimes(2.0, 0.5), 8: ProcessTimes(8.0, 3.0)}, 200),
    ]
    now: list = []
    monkeypatch.setattr(procfs, "kernel_packet_threads", list)
    monkeypatch.setattr(procfs, "cores", lambda: now[0][0])
    monkeypatch.setattr(procfs, "process_times", lambda pid: now[0][1].get(pid))
    monkeypatch.setattr(procfs, "available_bytes", lambda: now[0][2])
    watch = MachineWatch({"ovs-vswitchd": {"ovs-vswitchd": 7}, "the agents": {"p0": 8, "gone": 9}})
    for number, reading in enumerate(readings):
        now[:] = [reading]
        watch.sample(100.0 + 10 * number)
    use = watch.use()
    assert use is not None
    assert list(use.cores_percent) == [100.0, 0.0]
    assert (use.all_cores_percent, use.full_core_percent, use.steal_percent) == (50.0, 100.0, 5.0)
    assert use.foreign_percent == pytest.approx(30.0)
    assert use.process_percent == pytest.approx({"ovs-vswitchd": 10.0, "the agents": 30.0})
    assert use.waiting_percent == pytest.approx({"ovs-vswitchd": 5.0, "the agents": 20.0})
    assert use.least_available_memory_bytes == 200
    assert machine.MachineWatch({}).use() is None


class Counted:
    """A watch that notes when it looked."""

    def __init__(self, period_s: float, fails_after: int = 10**9):
        self.period_s, self.fails_after, self.at_s = period_s, fails_after, []

    def sample(self, now_s: float) -> None:
        self.at_s.append(now_s)
        if len(self.at_s) > self.fails_after:
            raise OSError("no more")


def test_a_watch_that_fails_costs_the_others_nothing_and_is_noted():
    often, broken = Counted(0.01), Counted(0.01, fails_after=2)
    sampler = Sampler([often, broken])
    with sampler:
        deadline_s = time.monotonic() + 30
        while len(often.at_s) < 8:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
    assert len(broken.at_s) == 3
    cost = sampler.cost()
    assert cost.failures == ("Counted: no more",)
    assert 0 < cost.cpu_percent < 100
    assert cost.longest_gap_s > 0
    assert all(later - sooner >= 0.009 for sooner, later in zip(often.at_s, often.at_s[1:-1], strict=False))


class Dear(Counted):
    """A watch whose look takes 5 ms of a core."""

    def sample(self, now_s: float) -> None:
        super().sample(now_s)
        began_s = time.thread_time()
        while time.thread_time() - began_s < 0.005:
            pass


def test_a_watch_whose_look_is_dear_looks_less_often():
    dear, cheap = Dear(0.01), Counted(0.01)
    with Sampler([dear, cheap]):
        deadline_s = time.monotonic() + 30
        while len(cheap.at_s) < 20:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
    # the second look is due half a second after the first; the last one is the look at the end
    gaps_s = [later - sooner for sooner, later in zip(dear.at_s[:-1], dear.at_s[1:-1], strict=False)]
    assert all(gap_s >= 0.49 for gap_s in gaps_s)


def traffic(kind: int, index: int, rest: bytes = b"") -> bytes:
    payload = TRAFFIC_CONTROL.pack(0, index, 0x10010, 0xFFFFFFFF, 0) + rest
    return MESSAGE.pack(MESSAGE.size + len(payload), kind, 0, 0, 0) + payload


def test_announcements_of_the_kernel_are_put_in_words():
    address = struct.pack("=BBBBi", 2, 24, 0, 0, 3)
    datagram = traffic(40, 3) + traffic(37, 4) + traffic(36, 99)
    datagram += MESSAGE.pack(MESSAGE.size + len(address), 20, 0, 0, 0) + address
    datagram += MESSAGE.pack(MESSAGE.size + 12, 24, 0, 0, 0) + bytes(12)
    datagram += traffic(2, 3)  # an error is no announcement
    assert described(datagram, "p0", {3: "gpu0", 4: "host"}, {}) == [
        ("p0 gpu0", "a class was set"),
        ("p0 host", "a qdisc was deleted"),
        ("p0 ?", "a qdisc was set"),
        ("p0 gpu0", "an address was added"),
        ("p0", "a route was added"),
    ]


def test_neighbours_that_were_set_by_hand_are_watched_and_those_that_the_kernel_learns_are_not():
    def told(kind: int, address: bytes, state: int) -> bytes:
        payload = NEIGHBOUR.pack(3, state) + struct.pack("=HH4s", 8, 1, address)
        return MESSAGE.pack(MESSAGE.size + len(payload), kind, 0, 0, 0) + payload

    permanent, reachable, failed = 0x80, 0x02, 0x20
    by_hand = {(3, b"\x0a\0\0\1")}
    said = [(28, b"\x0a\0\0\2", reachable), (29, b"\x0a\0\0\2", failed)]
    assert described(b"".join(told(*each) for each in said), "p0", {3: "gpu0"}, {}, by_hand) == []
    said = [(28, b"\x0a\0\0\1", failed), (29, b"\x0a\0\0\1", failed), (28, b"\x0a\0\0\3", permanent)]
    assert described(b"".join(told(*each) for each in said), "p0", {3: "gpu0"}, {}, by_hand) == [
        ("p0 gpu0", "a neighbour was set"),
        ("p0 gpu0", "a neighbour was set"),
    ]
    assert by_hand == {(3, b"\x0a\0\0\3")}


def test_a_link_that_is_configured_as_before_has_not_changed():
    def link(flags: int, mtu: int = 9000) -> bytes:
        payload = struct.pack("=BxHiII", 0, 1, 3, flags, 0) + struct.pack("=HHI", 8, 4, mtu)
        return MESSAGE.pack(MESSAGE.size + len(payload), 16, 0, 0, 0) + payload

    up, running, captured = 0x1003, 0x11043, 0x11143
    known = dict([configuration(next(messages(link(up)))[1])])
    assert described(link(running) + link(captured) + link(up), "p0", {3: "gpu0"}, known) == []
    found = described(link(running, 1500) + link(running & ~1, 1500) + link(running, 9000), "p0", {3: "gpu0"}, known)
    assert found == [("p0 gpu0", "a link was set")] * 3


def test_attributes_are_padded_to_four_bytes_and_may_be_nested():
    text = struct.pack("=HH6sxx", 10, 1, b"bfifo\0") + struct.pack("=HHI", 8, 7 | 0x8000, 60_000)
    (kind, payload), *rest = messages(traffic(36, 3, text))
    found = attributes(payload[TRAFFIC_CONTROL.size :])
    assert (kind, rest) == (36, [])
    assert (bytes(found[1]), struct.unpack("=I", found[7])) == (b"bfifo\0", (60_000,))


#: As `ovs-appctl bridge/dump-flows` prints them: Open vSwitch 3.1, and 3.5, which adds the cookies that are not 0.
RULES = f"""\
duration=9s, n_packets=12, n_bytes=900, {circuit_rule(1, 2)}
duration=9s, n_packets=8, n_bytes=700, {circuit_rule(2, 1)}
duration=9s, n_packets=3, n_bytes=180, priority=0,actions=drop
table_id=254, duration=1s, n_packets=0, n_bytes=0, priority=2,recirc_id=0,actions=drop
table_id=254, duration=1s, n_packets=0, n_bytes=0, priority=0,reg0=0x1,actions=controller(reason=)
"""
RULES_WITH_COOKIES = f"""\
cookie=0x4847000000010002, duration=0s, n_packets=19, n_bytes=21259, {circuit_rule(1, 2)}
cookie=0x4847000000000000, duration=1s, n_packets=1, n_bytes=74, priority=0,actions=drop
table_id=254, duration=1s, n_packets=0, n_bytes=0, priority=2,recirc_id=0,actions=drop
cookie=0x1, table_id=254, duration=1s, n_packets=0, n_bytes=0, priority=1,actions=drop
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "duration=1s, n_packets=5, n_bytes=0, priority=200,tcp,in_port=1,tp_dst=7100,actions=drop",
            "priority=200,tcp,in_port=1,tp_dst=7100,actions=drop, which counted 5 packets",
        ),
        ("duration=1s, n_packets=5, n_bytes=0, actions=drop", "actions=drop, which counted 5 packets"),
        (
            "table_id=3, duration=1s, n_packets=5, n_bytes=0, priority=0,actions=drop",
            "table=3, priority=0,actions=drop, which counted 5 packets",
        ),
        (
            "cookie=0x7, table_id=3, duration=1s, n_packets=5, n_bytes=9, n_offload_packets=0, n_offload_bytes=0, "
            "priority=0,actions=drop",
            "table=3, priority=0,actions=drop, which counted 5 packets",
        ),
    ],
)
def test_a_rule_of_somebody_else_is_in_words_with_what_it_matched(line: str, words: str) -> None:
    assert in_words(RULES) == in_words(RULES_WITH_COOKIES) == []
    assert in_words(f"{line}\n{RULES}") == in_words(f"{line}\n{RULES_WITH_COOKIES}") == [words]
