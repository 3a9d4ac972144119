"""A thousand hostile conversations with the northbound API, over sockets, beside agents that go on with their work.

Whatever is said, every answer is JSON with a reason and none is of the server's fault, the agents are answered, and
what is refused changes no calendar.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import eventlet
import pytest
from eventlet.green import socket
from ryu.lib import hub

from controllers.ryu_app import northbound
from controllers.ryu_app.connections import Connections
from controllers.ryu_app.http_server import MOST_OF_ONE_CLIENT, HttpServer, NorthboundApplication
from tests.openflow.fabric import Fabric
from tests.openflow.process import read_all, read_until

#: What a refusal may be. 501: a method or a transfer coding that nobody knows.
STATUSES = {200, 400, 404, 405, 408, 409, 411, 413, 414, 417, 429, 431, 501}
EXAMPLES = 1000
AGENT = "127.0.0.3"
#: Seconds ahead at which the agents' windows are booked: none of them begins while the fuzz lasts.
FAR_S = 80_000.0


class Beside:
    """The real server, core and shell over fake switches, and agents that have booked and are listening."""

    def __init__(self, directory: Path) -> None:
        self.fabric = Fabric(directory)
        self.fabric.connect()
        self.fabric.start()
        application = NorthboundApplication()
        northbound.mount(application, self.fabric.shell)
        self.connections = Connections(256, MOST_OF_ONE_CLIENT)
        server = HttpServer(("127.0.0.1", 0), application, self.connections, self.fabric.shell.metrics)
        self.port = server.port
        self._serving = hub.spawn(server.serve_forever)
        self._kept = self.open(AGENT)
        self._streams = [self.open(AGENT) for _ in self.fabric.config.prefills]
        for stream, prefill in zip(self._streams, self.fabric.config.prefills, strict=True):
            stream.sendall(f"GET /v1/instances/{prefill}/grants HTTP/1.1\r\nHost: c\r\n\r\n".encode())
            read_until(stream, b"heartbeat")
        for number, prefill in enumerate(self.fabric.config.prefills):
            at_s = self.fabric.now_s()
            predicted = {"predicted_end_s": at_s + FAR_S, "at_s": at_s}
            assert self.ask(f"far{number}", "admitted", self.admitted(prefill)) == 200
            assert self.ask(f"far{number}", "prefill-started", predicted) == 200
            assert self.ask(f"far{number}", "last-chunk-started", predicted) == 200

    def admitted(self, prefill: str = "p0") -> dict[str, Any]:
        return {
            "prefill": prefill,
            "tenant": "t",
            "session": "s",
            "head_bytes": 1_000_000,
            "tail_bytes": 1000,
            "layer_bytes": 10,
            "predicted_prefill_s": 0.1,
            "migrates": True,
            "at_s": self.fabric.now_s(),
        }

    def open(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30, (source, 0))

    def ask(self, request: str, event: str, body: dict[str, Any]) -> int:
        """The status of an event on the agent's kept connection."""
        text = json.dumps(body).encode()
        head = f"POST /v1/requests/{request}/{event} HTTP/1.1\r\nHost: c\r\nContent-Length: {len(text)}\r\n\r\n"
        self._kept.sendall(head.encode() + text)
        return int(self._kept.recv(65_536).split()[1])

    def calendars(self) -> Any:
        """What is known and booked; windows that began meanwhile have their own clock."""
        core = self.fabric.core
        booked = [window for window in self.fabric.shell.reservations() if window["request"].startswith("far")]
        states = {name: (seen.state, seen.placement) for name, seen in core.requests._requests.items()}
        return len(core.windows), booked, states, dict(core.requests.unfinished)

    def close(self) -> None:
        for connection in (self._kept, *self._streams):
            connection.close()
        hub.kill(self._serving)
        self.fabric.stop()


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    beside = Beside(tmp_path_factory.mktemp("fuzz"))
    yield beside
    beside.close()


NUMBERS = ["0", "-1", "1e999", "NaN", "-Infinity", "1" * 5000, "9" * 99, "1.5", "0x1", "true", "2e53"]
TEXTS = ['"p0"', '"p9"', '""', '"\\u0000"', '"\\ud800"', f'"{"a" * 3000}"', '"\\u001b[2J"', "null", "[]", "{}"]
KEYS = [
    *("prefill", "tenant", "session", "head_bytes", "tail_bytes", "layer_bytes", "predicted_prefill_s", "migrates"),
    *("at_s", "predicted_end_s", "part", "failed", "pairs", "t0_monotonic_s", "excess_s", "__class__", "a"),
]
PATHS = b"""/v1/health /v1/circuits /v1/clock /v1/reservations /metrics /v1/instances/p0/grants /v1/instances/p9/grants
/v1/requests/far0/transfer-done /v1/requests/far0/prefill-started /v1/requests/far1/last-chunk-started
/v1/requests/nobody/transfer-done /v1/requests//admitted /v1/requests/new/admitted /v1/requests/far0/admitted * // c:1
/v1/requests/%2e%2e/admitted /v1/requests/a%2Fb/admitted http://c/v1/health /v1/health?x=%00 /% /%ff /..;/""".split()
HEADERS = (
    rb"""Transfer-Encoding: chunked
Transfer-Encoding: identity
Transfer-Encoding:\x0bchunked
Content-Length: 0
Content-Length: 7, 7
Content-Length: 99999999
Content-Length: 1e3
Content-Length:
content_length: 3
Expect: 100-continue
Expect: x
Connection: close
Connection: Upgrade
Upgrade: h2c
Host: d
 folded
X
: x
Content-Type: \xff; charset=\x80
Content-Type: application/x-www-form-urlencoded
X-HTTP-Method-Override: DELETE
Cookie: a=\xe9
Range: bytes=0-
Accept-Encoding: gzip;q=x""".decode("unicode_escape")
    .encode("latin-1")
    .split(b"\n")
)
METHODS = [*[b"POST", b"GET"] * 8, b"HEAD", b"OPTIONS", b"PUT", b"TRACE", b"CONNECT", b"post", b"PRI", b""]
VERSIONS = [b"HTTP/1.1"] * 40 + [b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.1 ", b"", b"RTSP/1.0"]


class Hostile:
    """What somebody says who knows the API, HTTP and JSON, and means no good; the same for the same seed."""

    def __init__(self, seed: int, now_s: float) -> None:
        self._now_s = now_s
        self._random = random.Random(seed)

    def conversation(self) -> bytes:
        """Up to four requests, and what is none, without a pause."""
        draw = self._random
        return b"".join(
            self._request() if draw.random() < 0.9 else draw.randbytes(draw.randrange(200))
            for _ in range(draw.randint(1, 4))
        )

    def hangs_up(self) -> bool:
        """In the middle of it, without waiting for any answer."""
        return self._random.random() < 0.3

    def _request(self) -> bytes:
        draw = self._random
        end, body = draw.choice([b"\r\n"] * 20 + [b"\n", b"\r"]), self._body()
        method = draw.choice(METHODS) if draw.random() < 0.9 else draw.randbytes(5)
        lines = [b" ".join((method, self._path(), draw.choice(VERSIONS)))]
        lines += [b"Host: c"] * draw.choice([1] * 20 + [0, 2])
        headers = [self._header() for _ in range(draw.choice([0] * 6 + [1, 2]))]
        lines += headers * draw.choice([1] * 9 + [60])
        if draw.random() < 0.9:
            lines.append(b"Content-Length: %d" % (len(body) + draw.choice([0] * 12 + [-1, 1, 70_000])))
        return end.join(lines) + end + end + body

    def _path(self) -> bytes:
        draw = self._random
        tails = [draw.randbytes(draw.randrange(40)), b"a" * draw.randint(8000, 9000)]
        return draw.choice(PATHS) if draw.random() < 0.9 else b"/" + draw.choice(tails)

    def _header(self) -> bytes:
        draw = self._random
        return draw.choice(HEADERS) if draw.random() < 0.9 else draw.choice([draw.randbytes(30), b"X: " + b"b" * 9000])

    def _body(self) -> bytes:
        draw = self._random
        if draw.random() < 0.3:
            return draw.randbytes(draw.randrange(60))
        fields = [f'"{draw.choice(KEYS)}":{self._value()}' for _ in range(draw.choice([0, 1, 1, 2, 5]))]
        if draw.random() < 0.5:  # right but for what is added, or left out
            right = {"prefill": "p0", "tenant": "t", "session": "", "head_bytes": 1, "tail_bytes": 1, "layer_bytes": 1}
            right |= {"predicted_prefill_s": 0.1, "migrates": True, "at_s": self._now_s}
            right |= draw.choice([{}, {}, {"predicted_end_s": self._now_s}])
            keys = draw.sample(sorted(right), len(right) - draw.randrange(3))
            fields += [f"{json.dumps(key)}:{json.dumps(right[key])}" for key in keys]
        return ("{" + ",".join(fields) + "}").encode()

    def _value(self) -> str:
        draw = self._random
        nested = draw.choice(["[", "[]", '{"a":']) * draw.randint(1, 9000)
        return draw.choice([draw.choice(NUMBERS), draw.choice(TEXTS), nested])


def answers(said: bytes) -> list[tuple[int, bytes]]:
    """Status and body of each answer of a connection; of a stream what it began with."""
    found = []
    while said:
        head, separator, rest = said.partition(b"\r\n\r\n")
        if not separator:
            break  # cut off by the other end, which had more to say
        assert re.match(rb"HTTP/1\.1 [1-5]\d\d [A-Z]", head), said[:200]
        status = int(head.split()[1])
        length = re.search(rb"(?im)^content-length: (\d+)", head)
        if status == 100:
            said = rest
            continue
        if length is None:
            return [*found, (status, b"")]
        size = int(length[1])
        if rest.startswith(b"HTTP/1.1 ") or not rest:  # to a HEAD
            size = 0
        found.append((status, rest[:size]))
        said = rest[size:]
    return found


@pytest.mark.parametrize("first_seed", range(0, EXAMPLES, EXAMPLES // 5))
def test_whatever_is_said_nothing_else_happens(beside: Beside, first_seed: int) -> None:
    found: Counter[int] = Counter()
    for seed in range(first_seed, first_seed + EXAMPLES // 5):
        with eventlet.Timeout(60, AssertionError(f"seed {seed}: no answer")):
            found += check(beside, seed)
    assert len(found) >= 6, f"hardly anything was tried: {found}"


def check(beside: Beside, seed: int) -> Counter[int]:
    """One conversation; the statuses of its answers."""
    hostile, before = Hostile(seed, beside.fabric.now_s()), beside.calendars()
    text, hangs_up = hostile.conversation(), hostile.hangs_up()
    with beside.open() as connection, contextlib.suppress(OSError):  # it may be refused before all of it is said
        connection.sendall(text[: len(text) // 2])
        hub.sleep(0)
        connection.sendall(text[len(text) // 2 :])
        if not hangs_up:
            connection.shutdown(socket.SHUT_WR)
    with beside.open() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
        found = answers(read_all(connection))
    for status, body in found:
        assert status in STATUSES, (seed, status, body)
        if status >= 400 and body:
            assert json.loads(body)["error"], (seed, body)
    statuses = Counter(status for status, _ in found)
    beside.fabric.wait(lambda: len(beside.connections) <= 1 + len(beside.fabric.config.prefills))
    if 200 not in statuses:
        assert beside.calendars() == before, seed
    predicted = {"predicted_end_s": beside.fabric.now_s() + FAR_S, "at_s": beside.fabric.now_s()}
    assert beside.ask("far0", "last-chunk-started", predicted) == 200, seed
    assert beside.fabric.shell.fault is None, seed
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1_000_000, "kilobytes"
    return statuses
