"""Circuits over their whole life, on fake switches whose flow cache lags as Open vSwitch's does."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ryu.lib import hub

from controllers.core import switching
from controllers.core.demand import Demand, EventError
from controllers.ryu_app.fabric_shell import Conflict
from controllers.ryu_app.reconfiguration import STEPS
from tests.openflow.fabric import Fabric
from tests.openflow.fake_switch import FakeDatapath

Build = Callable[..., Fabric]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    made: list[Fabric] = []

    def make(**settings: Any) -> Fabric:
        made.append(Fabric(tmp_path, **settings))
        made[-1].connect()
        return made[-1]

    yield make
    for fabric in made:
        fabric.stop()


def test_a_plane_is_ready_only_when_its_table_is_cleared_and_confirmed(build: Build) -> None:
    fabric = build(planes=2)
    assert [switch.history for switch in fabric.switches] == [["delete", "add", "barrier", *["purge"] * 2]] * 2
    assert fabric.shell.health() == {"ready": True, "datapaths": 2, "fault": None}


def test_a_reconfiguration_removes_waits_and_installs_in_that_order_on_every_plane(build: Build) -> None:
    fabric = build(planes=2, reconfiguration_s=0.02)
    for switch in fabric.switches:
        switch.history.clear()
    fabric.start()
    fabric.ask("r1", "p0")
    assert fabric.state("r1") == "dark"  # and the event was answered before any barrier
    assert [switch.history for switch in fabric.switches] == [[], []]
    fabric.wait(lambda: fabric.state("r1") == "live")
    # the barrier in the dark wakes the switch for what comes, and nobody waits for it
    expected = [*["delete"] * 4, "barrier", "purge", "barrier", *["add"] * 2, "barrier", "purge"]
    assert [switch.history for switch in fabric.switches] == [expected, expected]
    (line,) = fabric.events("switch")
    assert list(line["steps_s"]) == list(STEPS)
    assert line["steps_s"]["dark_wait"] >= 0.02
    assert line["dark_s"] == pytest.approx(sum(line["steps_s"].values()))
    assert [window["state"] for window in fabric.events("window")] == ["booked", "dark", "live"]


def test_a_pair_that_is_joined_again_is_sent_what_it_was_sent_before(build: Build) -> None:
    fabric = build()
    plane = fabric.switches[0]
    sent: list[list[int]] = []
    for pair in (("p0", "d0"), ("p0", "d1"), ("p0", "d0")):
        fabric.datapaths.wait(fabric.datapaths.send_for_pairs(switching.removal, [pair]))
        fabric.datapaths.wait(fabric.datapaths.send_for_pairs(switching.installation, [pair]))
        sent.append(sorted(out for _, out in plane.table.circuits()))
    assert sent[0] == sent[2] != sent[1]


def test_a_dilated_clock_stretches_the_delay(build: Build) -> None:
    fabric = build(reconfiguration_s=0.004, time_dilation=5)
    fabric.start()
    started_s = time.monotonic()
    fabric.ask("r1", "p0")
    fabric.wait(lambda: fabric.state("r1") == "live")
    assert time.monotonic() - started_s >= 0.02
    (line,) = fabric.events("switch")
    assert line["steps_s"]["dark_wait"] >= 0.004  # reported in real seconds of the cluster
    assert line["dark_s"] * 5 <= time.monotonic() - started_s


def test_the_circuit_is_live_only_when_packets_cross_every_plane(build: Build) -> None:
    fabric = build(planes=3)
    fabric.start()
    stream = fabric.shell.listen("p0")
    next(stream)  # heartbeat
    for port in fabric.ports.values():
        for switch in fabric.switches:
            switch.forward(port)  # a drop is cached
    decode = fabric.ask("r1", "p0")
    granted = next(stream)
    assert f'"decode":"{decode}"' in granted.decode()
    ports = fabric.ports["p0"], fabric.ports[decode]
    assert [(switch.forward(ports[0]), switch.forward(ports[1])) for switch in fabric.switches] == [
        ((ports[1],), (ports[0],))
    ] * 3


def test_a_standing_circuit_is_reused_at_once_and_without_a_message(build: Build) -> None:
    fabric = build()
    fabric.start()
    fabric.ask("r1", "p0")
    fabric.wait(lambda: fabric.state("r1") == "live")
    fabric.shell.transfer_done("r1", "all", fabric.now_s(), failed=False)
    before = [list(switch.history) for switch in fabric.switches]
    fabric.ask("r2", "p0")
    assert fabric.state("r2") == "live"
    hub.sleep(0.01)
    assert [switch.history for switch in fabric.switches] == before
    assert len(fabric.events("switch")) == 1


def test_a_listener_that_comes_late_hears_what_is_live(build: Build) -> None:
    fabric = build()
    fabric.start()
    fabric.ask("r1", "p0")
    fabric.wait(lambda: fabric.state("r1") == "live")
    stream = fabric.shell.listen("p0")
    assert "heartbeat" in next(stream).decode()
    assert '"request":"r1"' in next(stream).decode()


def test_several_circuits_are_dark_at_once_and_none_waits_for_another(build: Build) -> None:
    fabric = build(reconfiguration_s=0.05, decode_choice="round-robin")
    fabric.start()
    for number in range(3):
        fabric.ask(f"r{number}", f"p{number}")
    assert [fabric.state(f"r{number}") for number in range(3)] == ["dark"] * 3
    fabric.wait(lambda: all(fabric.state(f"r{number}") == "live" for number in range(3)))
    switches = fabric.events("switch")
    assert len(switches) == 3
    # the last one begins before the first one ends
    assert max(line["t_s"] - line["dark_s"] for line in switches) < min(line["t_s"] for line in switches)


@pytest.mark.parametrize(("seed", "reuse"), [(1, True), (2, True), (3, False), (4, False)])
def test_random_traffic_never_shares_a_port_and_packets_see_the_whole_delay(
    build: Build, seed: int, reuse: bool
) -> None:
    rng = random.Random(seed)
    fabric = build(prefills=4, decodes=3, planes=2, reconfiguration_s=0.004, reuse=reuse, decode_choice="random")

    def check(switch: FakeDatapath) -> None:
        circuits = dict(switch.table.circuits())
        assert len(circuits) == len(switch.table.circuits()) == len(set(circuits.values()))
        for source, sink in circuits.items():
            assert circuits.get(sink, source) == source

    for switch in fabric.switches:
        switch.after_each = lambda switch=switch: check(switch)
    fabric.start()
    fabric.probe()
    requests = [f"r{number}" for number in range(120)]
    open_requests: list[str] = []
    for request in requests:
        fabric.ask(request, f"p{rng.randrange(4)}", head_bytes=rng.randrange(100_000, 2_000_000))
        open_requests.append(request)
        if rng.random() < 0.1:
            victim = rng.choice(open_requests)
            open_requests.remove(victim)
            fabric.shell.transfer_done(victim, "all", fabric.now_s(), failed=True)
        while len(open_requests) > 5 or (open_requests and request == requests[-1]):
            hub.sleep(0.001)
            for done in [name for name in open_requests if fabric.state(name) == "live"]:
                open_requests.remove(done)
                fabric.shell.transfer_done(done, "all", fabric.now_s(), failed=False)
    fabric.wait(lambda: not fabric.shell.circuits()["dark"])
    hub.sleep(0.002)
    assert fabric.shell.fault is None
    assert fabric.shell.reservations() == []
    assert len(fabric.events("switch")) > 30
    dark_s = fabric.dark_times_s()
    assert len(dark_s) > 30
    assert min(dark_s) >= fabric.reconfiguration_s
    standing = {(fabric.ports[p], fabric.ports[d]) for p, d in fabric.shell.circuits()["standing"].items()}
    for switch in fabric.switches:
        assert {tuple(sorted(circuit)) for circuit in switch.table.circuits()} == {tuple(sorted(c)) for c in standing}


def test_a_request_that_dies_in_the_dark_ends_with_its_switch(build: Build) -> None:
    fabric = build(reconfiguration_s=0.02)
    fabric.start()
    decode = fabric.ask("r1", "p0")
    fabric.shell.transfer_done("r1", "all", fabric.now_s(), failed=True)
    fabric.wait(lambda: fabric.state("r1") == "expired")
    assert fabric.shell.circuits() == {"standing": {"p0": decode}, "dark": {}}
    assert fabric.shell.fault is None


# -- faults


def test_a_lost_plane_refuses_the_windows_in_the_dark_and_ends_the_run_invalid(build: Build) -> None:
    fabric = build(planes=2, reconfiguration_s=0.3)
    fabric.start()
    fabric.ask("r1", "p0")
    hub.sleep(0.005)
    fabric.lose(fabric.switches[1])
    assert fabric.shell.health() == {"ready": False, "datapaths": 1, "fault": "plane1: connection lost"}
    fabric.wait(lambda: fabric.state("r1") == "refused")
    assert "plane1" in fabric.events("window")[-1]["reason"]
    assert fabric.events("fault")[0]["reason"] == "plane1: connection lost"


def test_after_a_fault_no_window_hangs(build: Build) -> None:
    fabric = build(planes=1)
    fabric.start()
    fabric.lose(fabric.switches[0])
    fabric.ask("r1", "p0")
    assert fabric.state("r1") == "refused"


def test_a_barrier_that_is_never_answered_is_a_fault_with_a_reason(build: Build) -> None:
    fabric = build(planes=2, barrier_timeout_s=0.05)
    fabric.start()
    fabric.switches[0].mute = True
    fabric.ask("r1", "p0")
    fabric.wait(lambda: fabric.state("r1") == "refused")
    assert "plane0: no barrier reply in time" in fabric.shell.health()["fault"]


def test_a_refused_message_is_a_fault(build: Build) -> None:
    fabric = build(planes=1, latency_s=0.05)
    fabric.start()
    fabric.ask("r1", "p0")
    hub.sleep(0.001)
    fabric.datapaths.refused(fabric.switches[0], "refused a message: OpenFlow error type 5 code 1")
    fabric.wait(lambda: fabric.state("r1") == "refused")
    assert "error type 5" in fabric.shell.health()["fault"]


def test_a_purge_that_fails_is_a_fault(build: Build) -> None:
    fabric = build(planes=1)
    fabric.start()
    fabric.caches.broken = True
    fabric.ask("r1", "p0")
    fabric.wait(lambda: fabric.state("r1") == "refused")
    assert "upcall/enable-megaflows" in fabric.shell.health()["fault"]


def test_an_exception_in_the_core_is_a_fault_and_is_logged(
    build: Build, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = build(planes=1)
    fabric.start()

    def broken(window_id: int, now_s: float) -> None:
        raise RuntimeError("no such mirror")

    monkeypatch.setattr(fabric.core, "live", broken)
    fabric.ask("r1", "p0")
    fabric.wait(lambda: fabric.shell.fault is not None)
    assert "no such mirror" in fabric.shell.health()["fault"]
    assert "no such mirror" in caplog.text
    caplog.clear()


def test_a_plane_that_reconnects_before_the_clock_is_cleared_again(build: Build) -> None:
    fabric = build(planes=1)
    fabric.shell.set_circuits({"p0": "d0"})
    fabric.lose(fabric.switches[0])
    assert not fabric.shell.ready
    fabric.connect_one(fabric.switches[0])
    fabric.wait(lambda: fabric.shell.ready)
    assert fabric.switches[0].table.circuits() == []
    assert fabric.shell.circuits()["standing"] == {}


def test_a_reply_to_a_barrier_of_a_dead_connection_is_ignored(build: Build) -> None:
    fabric = build(planes=1)
    old = fabric.switches[0]
    barriers = fabric.datapaths.send(lambda datapath, plane: [])
    fabric.lose(old)
    with pytest.raises(Exception, match="plane0: connection lost"):
        fabric.datapaths.wait(barriers)
    new = FakeDatapath(1, fabric.datapaths.answered)
    fabric.switches.append(new)
    fabric.connect_one(new)
    fabric.datapaths.answered(old, 1)
    fabric.wait(lambda: fabric.shell.ready)


# -- before the clock


def test_circuits_laid_by_hand_stand_at_once_and_replace_all(build: Build) -> None:
    fabric = build(reconfiguration_s=10.0)
    fabric.shell.set_circuits({"p0": "d1", "p1": "d0"})
    fabric.shell.set_circuits({"p2": "d1"})
    assert fabric.shell.circuits()["standing"] == {"p2": "d1"}
    p2, d1 = fabric.ports["p2"], fabric.ports["d1"]
    assert [set(switch.table.circuits()) for switch in fabric.switches] == [{(p2, d1), (d1, p2)}] * 2
    assert [line["pairs"] for line in fabric.events("setup")] == [{"p0": "d1", "p1": "d0"}, {"p2": "d1"}]
    fabric.start()
    with pytest.raises(Conflict, match="only before the clock runs"):
        fabric.shell.set_circuits({"p0": "d0"})


def test_circuits_laid_by_hand_are_known_to_the_reservations(build: Build) -> None:
    fabric = build(reconfiguration_s=10.0)
    fabric.shell.set_circuits({"p0": "d2"})
    fabric.start()
    assert fabric.ask("r1", "p0") == "d2"
    assert fabric.state("r1") == "live"


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ({"p0": "d9"}, "'p0' cannot reach 'd9'"),
        ({"q0": "d0"}, "it is no prefill instance"),
        ({"p0": "d0", "p1": "d0"}, "at most one circuit"),
    ],
)
def test_impossible_circuits_are_refused(build: Build, pairs: dict[str, str], reason: str) -> None:
    with pytest.raises(EventError, match=reason):
        build().shell.set_circuits(pairs)


def test_an_excess_given_with_the_clock_is_planned_for(build: Build) -> None:
    fabric = build(reconfiguration_s=0.02)
    fabric.shell.start_clock(time.monotonic(), 0.005)
    fabric.ask("r1", "p0")
    (window,) = fabric.shell.reservations()
    assert window["live_s"] - window["start_s"] == pytest.approx(0.025)


def test_a_plane_that_connects_anew_while_the_clock_runs_is_a_fault_and_keeps_its_rules(build: Build) -> None:
    """Its old connection may die after the new one stands: clearing the table would tear circuits that are in use."""
    fabric = build(planes=2)
    fabric.start()
    fabric.ask("r1", "p0")
    fabric.wait(lambda: fabric.state("r1") == "live")
    rules = [sorted(switch.table.circuits()) for switch in fabric.switches]
    fabric.shell.plane_connected(1)
    assert fabric.shell.fault == "datapath 1: connected anew while the clock ran"
    assert [sorted(switch.table.circuits()) for switch in fabric.switches] == rules


@pytest.mark.parametrize("state", ["booked", "dark", "live"])
def test_when_its_last_listener_has_gone_a_sender_holds_nothing(build: Build, state: str) -> None:
    fabric = build(decodes=1, reconfiguration_s=0.05)
    fabric.start()
    streams = [fabric.shell.listen("p0"), fabric.shell.listen("p0")]
    if state == "booked":
        fabric.ask("r9", "p1", head_bytes=1_000_000_000)
    fabric.ask("r0", "p0", head_bytes=1_000_000_000)
    fabric.wait(lambda: fabric.state("r0") == state)
    streams[0].close()
    streams[0].close()
    assert fabric.state("r0") == state, "another listens still"
    streams[1].close()
    fabric.wait(lambda: fabric.state("r0") == "expired")
    assert "r0" not in {window["request"] for window in fabric.shell.reservations()}
    assert fabric.core.requests.unfinished["d0"] == (1 if state == "booked" else 0)
    (line,) = fabric.events("sender-lost")
    assert (line["prefill"], line["requests"]) == ("p0", ["r0"])
    assert "p0 is gone" in fabric.events("window")[-1]["reason"]
    assert fabric.shell.health()["fault"] is None


def test_a_sender_that_listens_again_is_served_again(build: Build) -> None:
    """Only its ear was lost: what it had not asked for yet goes on."""
    fabric = build()
    fabric.start()
    stream = fabric.shell.listen("p0")
    fabric.shell.admitted(Demand("r0", "t", "", "p0", 1_000_000, 0, 0, 0.0, True), fabric.now_s())
    stream.close()
    with pytest.raises(StopIteration):
        next(stream)
    fabric.shell.listen("p0")
    fabric.shell.prefill_started("r0", fabric.now_s(), fabric.now_s())
    assert fabric.shell.last_chunk_started("r0", fabric.now_s(), fabric.now_s()) is not None
    fabric.wait(lambda: fabric.state("r0") == "live")


def test_a_listener_that_waits_for_a_line_is_woken_when_its_stream_is_closed(build: Build) -> None:
    fabric = build()
    stream = fabric.shell.listen("p0")
    heard: list[bytes] = []
    reader = hub.spawn(lambda: heard.extend(stream))
    hub.sleep(0.005)
    stream.close()
    hub.joinall([reader])
    assert len(heard) == 1  # one that waited for the next heartbeat would have heard it too
