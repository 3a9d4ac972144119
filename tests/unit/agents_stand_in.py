"""Doubles for tests of the agents: a controller that decides by rote, and a zygote to talk to.

The agents live on loopback addresses unless the test gives them namespaces: KV really crosses TCP.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from workloads.kv import kv_model
from workloads.prefill import TIMINGS
from workloads.request import Request

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]


class StandInController:
    """Answers the four events with decodes in turn and, on circuits, grants each part as soon as it is asked for.

    `refuse`: (event, request id) -> HTTP status to refuse with. `log` lists what came: (event, request id, body).
    """

    def __init__(self, decodes: list[str], *, transfer: str, circuits: bool, host: str = "127.0.0.1") -> None:
        self.log: list[tuple[str, str, Json]] = []
        self.refuse: dict[tuple[str, str], int] = {}
        self.silent: set[tuple[str, str]] = set()
        # at the first last-chunk-started: "undecided" answers null, "gated" decides and grants nothing yet
        self.first_last_chunk = ""
        # the decode is chosen, and everything granted, when the request arrives
        self.decides_at_admission = False
        self.streams_opened = 0
        self._decodes = decodes
        self._layerwise = transfer == "layerwise"
        self._circuits = circuits
        self._placed: dict[str, str] = {}
        self._demands: dict[str, Json] = {}
        self._grants: dict[str, list[Json]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._cut = 0
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                _, _, _, request_id, event = self.path.split("/")
                status, answer = stand_in.event(event, request_id, body)
                if status == 0:
                    self.close_connection = True
                    return
                raw = json.dumps(answer).encode()
                head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
                self.wfile.write(head.encode() + raw)

            def do_GET(self) -> None:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for grant in stand_in.grants(self.path.split("/")[3]):
                    raw = json.dumps(grant).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
                self.close_connection = True

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def cut_streams(self) -> None:
        """End every stream of grants."""
        with self._changed:
            self._cut += 1
            self._changed.notify_all()

    def events(self, event: str) -> list[tuple[str, Json]]:
        return [(request_id, body) for name, request_id, body in self.log if name == event]

    def event(self, event: str, request_id: str, body: Json) -> tuple[int, Json]:
        with self._changed:
            self.log.append((event, request_id, body))
            if (event, request_id) in self.silent:
                return 0, {}
            if (event, request_id) in self.refuse:
                return self.refuse[event, request_id], {"error": "refused by rote"}
            if event == "admitted":
                self._demands[request_id] = body
                if self.decides_at_admission:
                    self._placed[request_id] = self._decodes[len(self._placed) % len(self._decodes)]
                    self._grant(request_id, body["prefill"], "all")
                return 200, {"decode": self._placed.get(request_id)}
            if event == "transfer-done":
                return 200, {}
            if event == "prefill-started" and not self._layerwise and not self.decides_at_admission:
                return 200, {"decode": None, "head_moves": False}
            demand = self._demands[request_id]
            first = event == "last-chunk-started" and len([e for e in self.log if e[:2] == (event, request_id)]) == 1
            if first and self.first_last_chunk == "undecided":
                return 200, {"decode": None, "head_moves": None}
            head_moves = demand["head_bytes"] > 0 and demand["migrates"] is not False
            if request_id not in self._placed:
                self._placed[request_id] = self._decodes[len(self._placed) % len(self._decodes)]
                if self._layerwise and head_moves:
                    self._grant(request_id, demand["prefill"], "head")
            if (
                event == "last-chunk-started"
                and not self.decides_at_admission
                and not (first and self.first_last_chunk == "gated")
            ):
                self._grant(request_id, demand["prefill"], "tail" if self._layerwise else "all")
            return 200, {"decode": self._placed[request_id], "head_moves": head_moves}

    def _grant(self, request_id: str, prefill: str, part: str) -> None:
        if self._circuits:
            grant = {
                "request": request_id,
                "window": 1,
                "part": part,
                "decode": self._placed[request_id],
                "live_s": 0.0,
            }
            self._grants.setdefault(prefill, []).append(grant)
            self._changed.notify_all()

    def grants(self, prefill: str) -> Iterator[Json]:
        with self._changed:
            self.streams_opened += 1
            cut = self._cut
        yield {"heartbeat": 0.0}
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._cut > cut or bool(self._grants.get(prefill)))
                if self._closing or self._cut > cut:
                    return
                grant = self._grants[prefill].pop(0)
            yield grant


class AgentsUnderTest:
    """A zygote with its agents; `lines` holds everything that came up."""

    def __init__(self, config: Json, prefix: list[str] | None = None) -> None:
        self.config = config
        self.lines: list[Json] = []
        self._rest = b""
        self.process = subprocess.Popen(
            [*(prefix or []), sys.executable, "-E", "-s", "-m", "emulation.agents.zygote"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.command(config)

    def command(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def start(self, in_s: float = 0.2) -> float:
        t0 = time.monotonic() + in_s
        self.command({"type": "start", "t0_monotonic_s": t0})
        return t0

    def wait_for(self, kind: str, count: int, timeout_s: float = 60.0) -> list[Json]:
        """Lines of this type, once `count` of them came; fails with what did come."""
        deadline = time.monotonic() + timeout_s
        while len(self.of(kind)) < count:
            assert self._read(deadline - time.monotonic()), f"wanted {count} {kind!r} lines, got {self.lines[-12:]}"
        return self.of(kind)

    def of(self, kind: str) -> list[Json]:
        return [line for line in self.lines if line["type"] == kind]

    def records(self, of: str) -> list[Json]:
        return [line for line in self.of("record") if line["of"] == of]

    def pids(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def finish(self) -> int:
        """`stop` to all, and the exit status of the zygote."""
        self.command({"type": "stop"})
        return self.drain()

    def drain(self, timeout_s: float = 30.0) -> int:
        """Read to the end; the exit status."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(max(deadline - time.monotonic(), 0.1))

    def close(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def _read(self, timeout_s: float) -> bool:
        assert self.process.stdout is not None
        if timeout_s <= 0 or not select.select([self.process.stdout], [], [], timeout_s)[0]:
            return False
        piece = os.read(self.process.stdout.fileno(), 65536)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        self.lines += [json.loads(line) for line in lines]
        return bool(piece)


def a_request(number: int, arrival_s: float, new_tokens: int = 100, cached_tokens: int = 2000, **more: Any) -> Request:
    values = {"tenant": "t", "session": "", "migrates": True, "prediction_factor": 1.0, **more}
    return Request(f"r{number}", arrival_s=arrival_s, new_tokens=new_tokens, cached_tokens=cached_tokens, **values)


def loopback_network(base: int) -> str:
    """The first half of the addresses of `base`; tests that run side by side have ports of their own."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return f"127.{base + 16 * (int(worker) % 15)}"


def loopback_config(
    path: Path,
    requests: list[Request],
    controller_port: int,
    *,
    prefills: int = 1,
    decodes: int = 1,
    ranks: int = 1,
    fabric_kind: str = "eps",
    transfer: str = "pull",
    base: int = 1,
    **more: Any,
) -> Json:
    """A configuration with every address on loopback: `loopback_network(base)`.<instance>.<nic>."""
    network = loopback_network(base)
    file = path / "requests.jsonl"
    file.write_text("".join(json.dumps(asdict(request)) + "\n" for request in requests))
    names = [(f"p{i}", "prefill") for i in range(prefills)] + [(f"d{i}", "decode") for i in range(decodes)]
    instances = [
        {
            "name": name,
            "role": role,
            "namespace": "",
            "host_ip": f"{network}.{number}.1",
            "gpu_ips": [f"{network}.{number}.{10 + rank}" for rank in range(ranks)],
        }
        for number, (name, role) in enumerate(names, start=1)
    ]
    return {
        "run_clock": {"time_dilation": 1},
        "scale": {"rate_scale": 1e-4, "time_dilation": 1},
        "transfer": transfer,
        "fabric_kind": fabric_kind,
        "ecmp_unit": "transfer",
        "ecmp_seed": 1,
        "congestion_control": "cubic",
        "kv_rate_bytes_per_s": 45e9,
        "model": asdict(kv_model("llama-3.1-70b", tp=4)),
        "timing": asdict(TIMINGS["h100-tp4"]),
        "controller": {"host": "127.0.0.1", "port": controller_port},
        "drain_s": 5,
        "instances": instances,
        "gateway": {"name": "gw", "namespace": "", "host_ip": f"{network}.0.1"},
        "tenants": {
            "t": {
                "prefills": [name for name, role in names if role == "prefill"],
                "decodes": [name for name, role in names if role == "decode"],
            }
        },
        "ports": {"request": 7000, "kv": 7100},
        "requests_file": str(file),
        **more,
    }
