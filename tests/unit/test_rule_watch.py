"""The watch of the circuit rules, against a control socket that answers, and one that does not."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulation.monitor.circuit_rules import RuleWatch

DROP_ALL = "duration=9s, n_packets=3, n_bytes=180, priority=0,actions=drop\n"


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Two control sockets: `frozen` takes connections and says nothing, `lively` answers."""
    servers = {name: socket.socket(socket.AF_UNIX) for name in ("frozen", "lively")}
    for name, server in servers.items():
        server.bind(str(tmp_path / name))
        server.listen()

    def answer() -> None:
        while True:
            try:
                connection, _ = servers["lively"].accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(json.dumps({"id": 0, "result": DROP_ALL, "error": None}).encode())

    threading.Thread(target=answer, daemon=True).start()
    yield {name: tmp_path / name for name in servers}
    for server in servers.values():
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def test_a_switch_that_does_not_answer_is_named_and_hides_no_other_for_long(sockets: dict[str, Path]) -> None:
    watch = RuleWatch({"plane0": sockets["frozen"], "plane1": sockets["lively"]})
    watch.patience_s = 0.3
    assert watch.unread() == ["plane0", "plane1"]
    for now_s in (1.0, 2.0):
        watch.sample(now_s)
    assert watch.unread() == ["plane0"]
    assert watch.faults() == []
