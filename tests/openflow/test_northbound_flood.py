"""More connections than there are descriptors: a flood costs whoever makes it, agents are served meanwhile, and when
it is over so is its effect."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from controllers.ryu_app.connections import Connection, Connections
from controllers.ryu_app.http_server import MOST_OF_ONE_CLIENT
from tests.openflow.process import PACKET_FABRIC, Controller, read_until

DESCRIPTORS = 128
FLOOD = 1100
#: Who floods, who is an agent of the run, and who comes in the middle of it.
FLOODER, AGENT, NEWCOMER = "127.0.0.2", "127.0.0.3", "127.0.0.4"
STREAM = b"GET /v1/instances/p0/grants HTTP/1.1\r\nHost: c\r\n\r\n"


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    controller = Controller(tmp_path, PACKET_FABRIC, descriptors=DESCRIPTORS)
    try:
        controller.connect().close()
        yield controller
    finally:
        controller.stop()


def flood(controller: Controller, open_ones: ExitStack, said: bytes, source: str = FLOODER) -> None:
    for _ in range(FLOOD):
        connection = open_ones.enter_context(controller.open(source))
        try:
            connection.sendall(said)
        except OSError:
            continue  # refused already


def descriptors(controller: Controller) -> int:
    return int(psutil.Process(controller.process.pid).num_fds())


@pytest.mark.parametrize("said", [b"", b"POST /v1/clock HTTP/1.1\r\nHost: c\r\nContent-Le", STREAM], ids=repr)
def test_a_flood_does_not_starve_the_agents_and_is_over_when_it_is(controller: Controller, said: bytes) -> None:
    kept = http.client.HTTPConnection("127.0.0.1", controller.port, timeout=30, source_address=(AGENT, 0))
    kept.connect()
    sock = kept.sock
    with ExitStack() as open_ones, controller.open(AGENT) as stream:
        stream.sendall(STREAM.replace(b"p0", b"p1"))
        read_until(stream, b"heartbeat")
        for _ in range(2):  # before any flood, and in the middle of it
            kept.request("GET", "/v1/health")
            assert json.loads(kept.getresponse().read())["ready"]
            flood(controller, open_ones, said)
        assert controller.health(NEWCOMER)["ready"], "a client of its own finds room"
        kept.request("GET", "/v1/health")
        assert json.loads(kept.getresponse().read())["ready"]
        assert kept.sock is sock, "the agent's connection was never closed"
        read_until(stream, b"heartbeat")  # nor was its stream
        assert descriptors(controller) < DESCRIPTORS
        if said != STREAM:  # streams never give way, so whoever holds so many of them gets no more
            assert controller.health(FLOODER)["ready"]
    deadline_s = time.monotonic() + 30
    while descriptors(controller) > DESCRIPTORS - MOST_OF_ONE_CLIENT or controller.say(
        b"GET /v1/health HTTP/1.1\r\nHost: c\r\n\r\n", source=FLOODER
    ).split()[1:2] != [b"200"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert controller.process.poll() is None
    assert "fault" not in controller.log.read_text()


def test_whoever_holds_too_many_is_refused_with_the_reason(controller: Controller) -> None:
    with ExitStack() as open_ones:
        for _ in range(MOST_OF_ONE_CLIENT):
            stream = open_ones.enter_context(controller.open(FLOODER))
            stream.sendall(STREAM)
            assert b"200 OK" in stream.recv(15)
        answer = controller.say(source=FLOODER, end=False)
    assert answer.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b'{"error":"127.0.0.2 has 32 connections in use' in answer


def test_a_limit_below_what_the_agents_need_is_one_clear_line(tmp_path: Path) -> None:
    controller = Controller(tmp_path, {**PACKET_FABRIC, "prefills": [f"p{n}" for n in range(50)]}, descriptors=64)
    try:
        _, errors = controller.process.communicate(timeout=60)
    finally:
        controller.stop()
    assert controller.process.returncode == 2
    assert "heliograph controller: at most 64 open files are allowed (RLIMIT_NOFILE), and 50 prefill" in errors


class Opened:
    """Connections by name, each noting that it was closed."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.all = Connections(most, most_of_one)
        self.closed: list[str] = []

    def enter(self, client: str, name: str, *, asked: bool = False) -> Connection | None:
        connection = Connection(client, lambda: self.closed.append(name))
        if not self.all.enter(connection):
            return None
        connection.has_asked = asked
        return connection


def test_who_has_never_asked_gives_way_first_then_who_has_been_idle_longest() -> None:
    opened = Opened(9, 3)
    first = opened.enter("a", "kept", asked=True)
    opened.enter("a", "second", asked=True)
    opened.enter("a", "silent")
    assert first is not None
    self_waits = first
    opened.all.wait(self_waits)
    for name in ("third", "fourth"):
        assert opened.enter("a", name, asked=True)
    assert opened.closed == ["silent", "second"]


def test_who_is_answered_never_gives_way() -> None:
    opened = Opened(9, 1)
    stream = opened.enter("a", "stream", asked=True)
    assert stream is not None
    stream.is_answered = True
    assert opened.enter("a", "another") is None
    assert opened.enter("b", "of another client") is not None
    opened.all.leave(stream)
    assert opened.enter("a", "another") is not None
    assert opened.closed == []


def test_when_all_is_full_whoever_holds_most_gives_way() -> None:
    opened = Opened(4, 3)
    for number in range(3):
        opened.enter("a", f"a{number}")
    opened.enter("b", "b0")
    assert opened.enter("c", "c0") is not None
    assert opened.closed == ["a0"]
    assert len(opened.all) == 5, "the one that is being closed still has its descriptor"


def test_when_whoever_holds_most_is_being_answered_the_next_gives_way() -> None:
    opened = Opened(4, 3)
    for number in range(3):
        stream = opened.enter("a", f"a{number}", asked=True)
        assert stream is not None
        stream.is_answered = True
    opened.enter("b", "b0", asked=True)
    assert opened.enter("c", "c0") is not None
    assert opened.closed == ["b0"]


def test_one_connection_is_left_to_each_of_many_clients() -> None:
    opened = Opened(3, 3)
    for client in "abc":
        opened.enter(client, client)
    opened.enter("a", "a2")
    assert opened.closed == ["a"], "of those that hold as many, the one who wants more"


def test_the_listener_takes_connections_again_after_an_error(tmp_path: Path) -> None:
    """With no descriptor left at all, which the bounds prevent: the OpenFlow port has none."""
    controller = Controller(tmp_path, PACKET_FABRIC, descriptors=DESCRIPTORS)
    try:
        controller.connect().close()
        assert controller.health()["ready"], "so it listens for switches too"
        with ExitStack() as open_ones:
            for _ in range(DESCRIPTORS + 20):
                with suppress(ConnectionError):  # Ryu's own listener has ended by then
                    open_ones.enter_context(socket.create_connection(("127.0.0.1", controller.openflow_port), 30))
            time.sleep(0.5)
        deadline_s = time.monotonic() + 30
        while controller.say(b"GET /v1/health HTTP/1.1\r\nHost: c\r\n\r\n").split()[1:2] != [b"200"]:
            assert time.monotonic() < deadline_s
    finally:
        controller.stop()
