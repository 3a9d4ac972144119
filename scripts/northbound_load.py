"""Events for a controller at a fixed rate, and how long it took to answer each: one process, JSON in, JSON out.

Reads from standard input `{"host", "port", "t0_monotonic_s", "time_dilation", "senders": [prefill, ...],
"events_per_s", "seconds", "echo": [host, port]}`, rate and seconds by the wall clock, and prints `{"offered",
"answers": {status: n}, "refusals": [text, ...], "latencies_s": [...], "echo_s": [...]}`.

Each sender is one kept connection that carries the four events of a request after another, as an agent's does. A
latency counts from the moment an event was due, not from when it was sent: an answer that is late delays the next one,
and that is part of what a busy controller costs. As a control, something that only sends back what it gets
(`--echo HOST PORT`, run beside the controller) is asked all the while: what the machine adds to anything.

Standard library only, and the kernel's word on priorities: it runs as the agents do.
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from emulation.agents.kernel import set_realtime, set_timer_slack

EVENTS = ("admitted", "prefill-started", "last-chunk-started", "transfer-done")
ECHO_EVERY_S = 0.02
ECHO_BYTES = 300
TIMEOUT_S = 10.0
#: After this, real, the circuit of a sender's first request is live.
FIRST_LIVE_S = 0.5


def lead_s(senders: int, time_dilation: float) -> float:
    """Wall seconds from the start of this process to the first measured event."""
    return 0.5 + senders * FIRST_LIVE_S * time_dilation


def body(event: str, prefill: str, at_s: float) -> dict[str, Any]:
    """An event of a turn with 64K cached tokens and a prefill that is over at once, in real units like every event."""
    if event == "admitted":
        sizes = {"head_bytes": 5_373_952_000, "tail_bytes": 90_112_000, "layer_bytes": 1_126_400}
        whose = {"prefill": prefill, "tenant": "load", "session": "", "migrates": True}
        return {**whose, **sizes, "predicted_prefill_s": 0.19, "at_s": at_s}
    if event == "transfer-done":
        return {"part": "all", "at_s": at_s, "failed": False}
    return {"predicted_end_s": at_s, "at_s": at_s}


class Sender(threading.Thread):
    """One connection and its events, `period_s` apart from `begin_s` (CLOCK_MONOTONIC) on."""

    def __init__(self, load: dict[str, Any], prefill: str, begin_s: float, period_s: float) -> None:
        super().__init__(daemon=True)
        self._load, self._prefill, self._begin_s, self._period_s = load, prefill, begin_s, period_s
        self._connection = http.client.HTTPConnection(load["host"], load["port"], timeout=TIMEOUT_S)
        self._connection.connect()
        assert self._connection.sock is not None
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.latencies_s: list[float] = []
        self.answers: dict[int, int] = {}
        self.refusals: list[str] = []

    def prepare(self) -> None:
        """A first request, unmeasured: its circuit stands from now on, as that of a pair that keeps its decode does."""
        for event in EVENTS:
            if event == "transfer-done":
                time.sleep(FIRST_LIVE_S * self._load["time_dilation"])
            self._post(event, f"load-{self._prefill}-first")
        self.answers.clear()

    def run(self) -> None:
        """Until every event is answered."""
        count = 4 * round(self._load["seconds"] / self._period_s / 4)
        for number in range(count):
            due_s = self._begin_s + number * self._period_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._post(EVENTS[number % 4], f"load-{self._prefill}-{number // 4}")
            self.latencies_s.append(time.monotonic() - due_s)

    def _post(self, event: str, request: str) -> None:
        at_s = (time.monotonic() - self._load["t0_monotonic_s"]) / self._load["time_dilation"]
        text = json.dumps(body(event, self._prefill, at_s))
        self._connection.request("POST", f"/v1/requests/{request}/{event}", text)
        response = self._connection.getresponse()
        said = response.read().decode()
        self.answers[response.status] = self.answers.get(response.status, 0) + 1
        if response.status != 200:
            self.refusals.append(f"{request} {event}: {response.status} {said}")


def echo_latencies(address: tuple[str, int], seconds: float) -> list[float]:
    """Round trips to an echo, due every ECHO_EVERY_S; seconds each."""
    found = []
    with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin_s = time.monotonic()
        for number in range(int(seconds / ECHO_EVERY_S)):
            due_s = begin_s + number * ECHO_EVERY_S
            time.sleep(max(0.0, due_s - time.monotonic()))
            connection.sendall(b"." * ECHO_BYTES)
            left = ECHO_BYTES
            while left:
                if not (said := connection.recv(left)):
                    raise ConnectionError("the echo hung up")
                left -= len(said)
            found.append(time.monotonic() - due_s)
    return found


def serve_echo(host: str, port: int) -> None:
    """Send back whatever comes, until killed. Prints a line when it listens."""
    selector = selectors.DefaultSelector()
    listener = socket.create_server((host, port))
    selector.register(listener, selectors.EVENT_READ)
    print(listener.getsockname()[1], flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ)
                continue
            assert isinstance(key.fileobj, socket.socket)
            if said := key.fileobj.recv(4096):
                key.fileobj.sendall(said)
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()


def offer(load: dict[str, Any]) -> dict[str, Any]:
    """Send the load; what came back."""
    set_realtime()
    set_timer_slack()
    period_s = len(load["senders"]) / load["events_per_s"]
    begin_s = time.monotonic() + lead_s(len(load["senders"]), load["time_dilation"])
    senders = [
        Sender(load, prefill, begin_s + number / load["events_per_s"], period_s)
        for number, prefill in enumerate(load["senders"])
    ]
    for sender in senders:
        sender.prepare()
    time.sleep(max(0.0, begin_s - time.monotonic()))
    for sender in senders:
        sender.start()
    echo_s = echo_latencies((load["echo"][0], load["echo"][1]), load["seconds"])
    for sender in senders:
        sender.join(load["seconds"] + TIMEOUT_S)
    answers: dict[int, int] = {}
    for sender in senders:
        for status, number in sender.answers.items():
            answers[status] = answers.get(status, 0) + number
    return {
        "offered": sum(4 * round(load["seconds"] / period_s / 4) for _ in senders),
        "answers": answers,
        "refusals": [refusal for sender in senders for refusal in sender.refusals][:10],
        "latencies_s": [latency_s for sender in senders for latency_s in sender.latencies_s],
        "echo_s": echo_s,
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--echo"]:
        serve_echo(sys.argv[2], int(sys.argv[3]))
    else:
        json.dump(offer(json.loads(sys.stdin.readline())), sys.stdout)
