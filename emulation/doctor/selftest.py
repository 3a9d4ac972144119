"""Self-test of the client: TTFT as the gateway measures it, against a stub that answers after a delay it knows.

The real gateway agent, on loopback, in a process of its own and in real time as in a run; the stub stands for prefill
and decode instances at once, reads its own clock when a request arrives and when the first token leaves, and so knows
its delay exactly. What the gateway measures beyond it is the client's error: its timer, its two sends and receipts. No
root is needed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from emulation.agents.config import load_config
from emulation.agents.gateway import GatewayAgent
from emulation.agents.kernel import set_realtime, set_timer_slack
from emulation.agents.wire import LineSplitter, encode_line
from emulation.verdict.measures import percentile
from process.interrupts import ignore
from workloads.kv import kv_model
from workloads.prefill import TIMINGS
from workloads.request import Request

GATEWAY_IP, PREFILL_IP, DECODE_IP = "127.86.0.1", "127.86.1.1", "127.86.2.1"
DELAY_S, REQUESTS, SPACING_S = 0.050, 50, 0.012
COUNTDOWN_S, PATIENCE_S = 0.2, 10.0


class SelfTestError(RuntimeError):
    """The self-test did not get through: says why."""


@dataclass(frozen=True, slots=True)
class ClientError:
    """Of TTFT measured minus the stub's true delay, seconds, over `requests` requests."""

    requests: int
    median_s: float
    p99_s: float
    largest_s: float

    def sentence(self) -> str:
        """In words."""
        return (
            f"the client measures a stub of known delay {self.median_s * 1e3:.2f} ms too long (median; p99 "
            f"{self.p99_s * 1e3:.2f} ms, most {self.largest_s * 1e3:.2f} ms; {self.requests} requests)"
        )


def client_error(*, delay_s: float = DELAY_S, requests: int = REQUESTS, spacing_s: float = SPACING_S) -> ClientError:
    """Run it; takes requests x spacing_s and half a second. Raises SelfTestError."""
    offered = [
        Request(f"self-{number:03d}", "t", "", 0.05 + number * spacing_s, 1, 0, False, 1.0)
        for number in range(requests)
    ]
    with tempfile.TemporaryDirectory(prefix="heliograph-") as directory:
        file = Path(directory) / "requests.jsonl"
        file.write_text("".join(json.dumps(asdict(request)) + "\n" for request in offered))
        stub = _Stub(delay_s)
        try:
            measured_s = dict(_measure(_config(file, stub.port)))
        finally:
            stub.close()
    missing = [request.id for request in offered if request.id not in measured_s or request.id not in stub.delays_s]
    if missing:
        raise SelfTestError(f"{len(missing)} of {requests} requests were not answered ({missing[0]}, ...){stub.fault}")
    errors_s = [measured_s[request.id] - stub.delays_s[request.id] for request in offered]
    return ClientError(requests, median(errors_s), percentile(errors_s, 99) or 0.0, max(errors_s))


def _config(requests_file: Path, port: int) -> dict[str, Any]:
    instance = {"namespace": "", "gpu_ips": []}
    return {
        "run_clock": {"time_dilation": 1},
        "scale": {"rate_scale": 1e-4, "time_dilation": 1},
        "transfer": "pull",
        "fabric_kind": "none",
        "congestion_control": "cubic",
        "kv_rate_bytes_per_s": 45e9,
        "model": asdict(kv_model("llama-3.1-70b", tp=4)),
        "timing": asdict(TIMINGS["h100-tp4"]),
        "controller": {"host": GATEWAY_IP, "port": 1},
        "drain_s": 2,
        "instances": [
            {"name": "p0", "role": "prefill", "host_ip": PREFILL_IP, **instance},
            {"name": "d0", "role": "decode", "host_ip": DECODE_IP, **instance},
        ],
        "gateway": {"name": "gw", "namespace": "", "host_ip": GATEWAY_IP},
        "tenants": {"t": {"prefills": ["p0"], "decodes": ["d0"]}},
        "ports": {"request": port, "kv": port},
        "requests_file": str(requests_file),
    }


def _measure(config: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(request, TTFT as the gateway measures it), in the order of their first tokens."""
    ours, theirs = socket.socketpair()
    child = multiprocessing.get_context("fork").Process(target=_be_gateway, args=(config, ours, theirs), daemon=True)
    child.start()
    theirs.close()
    ours.settimeout(PATIENCE_S)
    lines = LineSplitter()
    try:
        while piece := ours.recv(65536):
            for message in lines.feed(piece):
                if message["type"] == "ready":
                    ours.sendall(encode_line({"type": "start", "t0_monotonic_s": time.monotonic() + COUNTDOWN_S}))
                elif message["type"] == "error":
                    raise SelfTestError(f"{message['where']}: {message['text']}")
                elif message["type"] == "record" and message["status"] == "completed":
                    yield message["id"], message["first_token_s"] - message["arrival_s"]
    except TimeoutError as error:
        raise SelfTestError(f"the gateway has said nothing for {PATIENCE_S:g} s") from error
    except OSError as error:  # it ended with our line unread, or before we wrote it
        raise SelfTestError(f"the gateway has ended: {error.strerror}") from error
    finally:
        ours.close()
        child.join(2.0)
        child.kill()


def _be_gateway(config: Mapping[str, Any], ours: socket.socket, theirs: socket.socket) -> None:
    ignore()  # it ends with its parent's end of the pair
    ours.close()
    set_timer_slack()
    agent = GatewayAgent("gw", load_config(config))
    agent.realtime = set_realtime()
    os._exit(agent.run(theirs))


@dataclass
class _Stub:
    """Answers every request after a delay, in a thread; `delays_s`: request -> from its arrival here to its answer."""

    delay_s: float
    delays_s: dict[str, float] = field(default_factory=dict)
    fault: str = ""

    def __post_init__(self) -> None:
        self._listeners: list[socket.socket] = []
        self.port = 0  # the kernel's choice for the first, and the same for the second
        for ip in (PREFILL_IP, DECODE_IP):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.bind((ip, self.port))
            except OSError as error:
                raise SelfTestError(f"cannot listen on {ip}:{self.port}: {error.strerror}") from error
            listener.listen(1)
            self.port = listener.getsockname()[1]
            self._listeners.append(listener)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="stub", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(2.0)
        for listener in self._listeners:
            listener.close()

    def _serve(self) -> None:
        set_timer_slack()
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        try:
            self._answer()
        except (OSError, ValueError, KeyError) as error:
            self.fault = f"; the stub: {error}"

    def _answer(self) -> None:
        links = []
        for listener in self._listeners:
            listener.settimeout(PATIENCE_S)
            link, _ = listener.accept()
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            links.append(link)
        requests, tokens = links
        lines = LineSplitter()
        waiting: list[tuple[float, str]] = []
        with selectors.SelectSelector() as selector:
            selector.register(requests, selectors.EVENT_READ)
            while not self._stop.is_set():
                wait_s = waiting[0][0] + self.delay_s - time.monotonic() if waiting else 0.1
                if selector.select(max(0.0, wait_s)):
                    arrived_s = time.monotonic()
                    if not (piece := requests.recv(65536)):
                        return
                    waiting += [(arrived_s, m["id"]) for m in lines.feed(piece) if m["type"] == "request"]
                while waiting and time.monotonic() >= waiting[0][0] + self.delay_s:
                    arrived_s, name = waiting.pop(0)
                    self.delays_s[name] = time.monotonic() - arrived_s
                    tokens.sendall(encode_line({"type": "first_token", "id": name, "sent_s": 0.0, "last_byte_s": 0.0}))
