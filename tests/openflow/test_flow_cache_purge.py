"""The client of Open vSwitch's control socket, against a server that speaks its protocol."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ryu.lib import hub

from controllers.ryu_app.purge import EMPTY, FlowCaches, Unixctl, UnixctlError, _FlowCache

Serve = Callable[[Callable[[socket.socket, dict[str, Any]], None]], str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """`serve(reply)`: the path of a Unix socket whose requests are given to `reply(connection, request)`."""
    servers: list[socket.socket] = []

    def start(reply: Callable[[socket.socket, dict[str, Any]], None]) -> str:
        path = str(tmp_path / f"{len(servers)}.ctl")
        server = socket.socket(socket.AF_UNIX)
        server.bind(path)
        server.listen()
        servers.append(server)

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    while data := connection.recv(4096):
                        reply(connection, json.loads(data))

        threading.Thread(target=run, daemon=True).start()
        return path

    yield start
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def answer(request: dict[str, Any], result: Any = "", error: Any = None) -> bytes:
    return json.dumps({"id": request["id"], "result": result, "error": error}).encode()


def test_a_call_sends_the_method_and_returns_the_text(serve: Serve) -> None:
    seen = []

    def reply(connection: socket.socket, request: dict[str, Any]) -> None:
        seen.append((request["method"], request["params"]))
        connection.sendall(answer(request, "done\n"))

    client = Unixctl(serve(reply))
    assert client.call("revalidator/purge") == "done\n"
    assert client.call("bond/show", "bond0") == "done\n"
    assert seen == [("revalidator/purge", []), ("bond/show", ["bond0"])]


def test_an_answer_in_pieces_is_put_together(serve: Serve) -> None:
    def reply(connection: socket.socket, request: dict[str, Any]) -> None:
        text = answer(request, "é" * 3)
        for cut in range(0, len(text), 3):
            connection.sendall(text[cut : cut + 3])

    assert Unixctl(serve(reply)).call("version") == "ééé"


def test_a_refused_command_is_an_error_with_the_daemons_words(serve: Serve) -> None:
    path = serve(lambda connection, request: connection.sendall(answer(request, None, '"nope" is not a valid command')))
    with pytest.raises(UnixctlError, match="nope"):
        Unixctl(path).call("nope")


def test_a_silent_daemon_is_an_error_after_the_timeout(serve: Serve) -> None:
    with pytest.raises(UnixctlError, match="timed out"):
        Unixctl(serve(lambda connection, request: None), timeout_s=0.05).call("revalidator/purge")


def test_a_daemon_that_is_not_there_is_an_error_that_names_the_socket(tmp_path: Path) -> None:
    with pytest.raises(UnixctlError, match=r"nobody\.ctl.*is its ovs-vswitchd running"):
        FlowCaches([str(tmp_path / "nobody.ctl")]).purge()


def test_a_connection_the_daemon_closed_is_opened_again_by_the_next_call(serve: Serve) -> None:
    def reply(connection: socket.socket, request: dict[str, Any]) -> None:
        if request["id"] == 1:
            connection.shutdown(socket.SHUT_RDWR)
        else:
            connection.sendall(answer(request, "again"))

    client = Unixctl(serve(reply))
    with pytest.raises(UnixctlError, match="closed by the daemon"):
        client.call("revalidator/purge")
    assert client.call("revalidator/purge") == "again"


def test_one_daemon_that_carries_several_planes_is_purged_once(serve: Serve) -> None:
    calls = []

    def reply(connection: socket.socket, request: dict[str, Any]) -> None:
        calls.append(request["method"])
        connection.sendall(answer(request))

    path = serve(reply)
    FlowCaches([path, path, path]).purge()
    assert calls == [EMPTY]


def test_callers_that_come_during_a_purge_share_the_next_one(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = _FlowCache("/nowhere")
    log: list[str] = []

    may_end = hub.Event()

    def call(method: str) -> None:
        log.append("begin")
        may_end.wait()
        log.append("end")

    monkeypatch.setattr(cache._unixctl, "call", call)
    first = cache.purge()
    hub.sleep(0.001)
    later = [cache.purge(), cache.purge()]
    assert later[0] is later[1] is not first
    hub.sleep(0.001)
    assert log == ["begin"]
    may_end.set()
    first.wait()
    later[0].wait()
    assert log == ["begin", "end", "begin", "end"]  # theirs began after they asked
    hub.sleep(0.001)
    assert log == ["begin", "end", "begin", "end"]
