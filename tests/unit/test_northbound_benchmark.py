"""The benchmark of the northbound API: what it refuses before anything is built, and how it counts."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controllers.config import ControllerConfig
from emulation.plan.fabric_plan import FabricPlan
from experiments.schema.spec import load
from scripts.northbound_benchmark import PAIRS, Benchmark, Latencies, LoadedPlan, listening_port, main
from scripts.northbound_load import ECHO_EVERY_S, Sender, echo_latencies

DEMO = Path(__file__).resolve().parents[2] / "experiments" / "demo.yaml"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-file.yaml"], "no-such-file.yaml"),
        (["--set", "workload.window_s=-1"], "workload.window_s"),
        (["--fabric", "eps-2to1-ecmp"], "has ocs-25ms, ocs-25ms-no-reuse of kind ocs"),
        (["--set", "fabrics=[{name: packets, kind: eps, oversubscription: 2}]"], "has none of kind ocs"),
        (["--events-per-s", "0"], "1 to 5000 are allowed"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert says in capsys.readouterr().err


def test_percentiles_are_by_nearest_rank() -> None:
    found = Latencies([number / 1e3 for number in range(1, 101)])
    assert (found.p50_s, found.p99_s) == (pytest.approx(0.0505), 0.099)
    assert str(found) == "p50 50.50 ms, p99 99.00 ms, maximum 100.00 ms"
    assert Latencies([0.5]).p99_s == 0.5


def test_the_load_has_ports_of_its_own_on_every_plane_and_the_run_keeps_its_own_reach() -> None:
    experiment = load(DEMO)
    told = {"unixctls": dict.fromkeys(["plane0"], "/nowhere"), "log": Path("/nowhere/log")}
    plans = [kind(experiment, experiment.fabrics[1], 1, ()) for kind in (FabricPlan, LoadedPlan)]
    own, loaded = (ControllerConfig.model_validate(plan.controller(plan.cluster(), **told)) for plan in plans)
    assert loaded.decodes_of() == own.decodes_of() | {prefill: [decode] for prefill, decode in PAIRS.items()}
    for before, after in zip(own.planes, loaded.planes, strict=True):
        added = {name: port for name, port in after.ports.items() if name not in before.ports}
        assert set(added) == {*PAIRS, *PAIRS.values()}
        assert not set(added.values()) & set(before.ports.values())


def test_the_load_tells_the_run_clock_and_not_the_walls() -> None:
    told: list[float] = []

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["at_s"])
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.server_address[:2]
        load = {
            "host": host,
            "port": port,
            "t0_monotonic_s": time.monotonic() - 400,
            "time_dilation": 4,
            "seconds": 0.04,
        }
        sender = Sender(load, "load-p0", time.monotonic(), 0.01)
        sender.run()
        server.shutdown()
    assert sender.answers == {200: 4}
    assert len(told) == 4
    assert all(100 <= at_s < 200 for at_s in told), told


@pytest.mark.parametrize(
    ("answers", "refusals", "latency_s", "within"),
    [
        ({"200": 100}, [], 0.001, True),
        ({"200": 100}, [], 0.030, False),
        ({"200": 99, "409": 1}, ["load-p0-7 admitted: 409"], 0.001, False),
        ({"200": 99}, [], 0.001, False),
        ({"200": 100}, ["load-p0-first transfer-done: 409"], 0.001, False),
    ],
)
def test_the_limits_hold_only_where_every_event_was_answered(answers, refusals, latency_s, within) -> None:
    events = Latencies([latency_s] * 100)
    assert Benchmark(None, 100, answers, refusals, events, events).within_limits is within


def test_an_echo_that_hangs_up_is_no_fast_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.recv(4096)
            connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(ConnectionError):
            echo_latencies(listener.getsockname(), 1.5 * ECHO_EVERY_S)


def test_an_echo_that_dies_before_it_listens_is_told() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as echo,
        pytest.raises(ChildProcessError, match="ended before it listened"),
    ):
        listening_port(echo)
