"""A controller as a process of its own, on the loopback address, and what is said to it byte by byte."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def read_all(connection: Any) -> bytes:
    """Until the other end closes, or is gone with what it was sent unread."""
    answer = b""
    try:
        while part := connection.recv(65_536):
            answer += part
    except ConnectionResetError:
        pass
    return answer


def read_until(connection: Any, text: bytes) -> bytes:
    """What the other end says, until it has said this."""
    answer = b""
    while text not in answer:
        part = connection.recv(4096)
        assert part, answer
        answer += part
    return answer


class Controller:
    """A controller on the loopback address."""

    def __init__(
        self,
        directory: Path,
        document: dict[str, Any] | str | None,
        *,
        descriptors: int | None = None,
        port: int | None = None,
    ) -> None:
        """descriptors: how many files it may open; port: of the northbound API, by default one that is free."""
        self.log = directory / "controller.jsonl"
        self.port = free_port() if port is None else port
        self.openflow_port = free_port()
        environment = {key: value for key, value in os.environ.items() if key != "HELIOGRAPH_CONTROLLER"}
        if document is not None:
            path = directory / "controller.json"
            path.write_text(document if isinstance(document, str) else json.dumps({**document, "log": str(self.log)}))
            environment["HELIOGRAPH_CONTROLLER"] = str(path)
        listen = ("--ofp-listen-host", "127.0.0.1", "--ofp-tcp-listen-port", str(self.openflow_port))
        listen += ("--wsapi-host", "127.0.0.1", "--wsapi-port", str(self.port))
        limit = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}:{descriptors}"]
        self.process = subprocess.Popen(
            [*limit, sys.executable, "controllers/ryu_app/manager.py", *listen, "controllers/ryu_app/circuit_app.py"],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def connect(self) -> http.client.HTTPConnection:
        deadline_s = time.monotonic() + 30
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            try:
                connection.connect()
            except ConnectionRefusedError:
                assert self.process.poll() is None, self.process.stderr.read()  # type: ignore[union-attr]
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
            else:
                return connection

    def open(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30, (source, 0))

    def say(self, *parts: bytes, end: bool = True, source: str = "127.0.0.1") -> bytes:
        """Everything that it answers to these bytes until it closes; end: nothing more will be said."""
        with self.open(source) as connection:
            for part in parts:
                connection.sendall(part)
            if end:
                connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    def health(self, source: str = "127.0.0.1") -> dict[str, Any]:
        answer = self.say(b"GET /v1/health HTTP/1.1\r\nHost: c\r\n\r\n", source=source)
        return dict(json.loads(answer.partition(b"\r\n\r\n")[2]))

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


PACKET_FABRIC = {
    "fabric": {"kind": "eps", "decode_choice": "least-loaded"},
    "transfer": "pull",
    "rate_bytes_per_s": 45e9,
    "prefills": [f"p{number}" for number in range(4)],
    "decodes": ["d0", "d1", "d2"],
}
