"""The controller as a process: how it starts, what it binds, how fast it answers, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.openflow.process import PACKET_FABRIC, Controller

EVENTS_PER_S = 250


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    controller = Controller(tmp_path, PACKET_FABRIC)
    try:
        yield controller
    finally:
        controller.stop()


def post(connection: http.client.HTTPConnection, path: str, **body: Any) -> dict[str, Any]:
    connection.request("POST", path, json.dumps(body))
    response = connection.getresponse()
    answer = response.read()
    assert response.status == 200, answer
    return dict(json.loads(answer))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_though_streams_are_open(controller: Controller, number: int) -> None:
    connection = controller.connect()
    connection.request("GET", "/v1/instances/p0/grants")
    connection.getresponse().readline()
    controller.process.send_signal(number)
    assert controller.process.wait(30) == 0  # Ryu would wait for the stream, for ever
    last = json.loads(controller.log.read_text().splitlines()[-1])
    assert (last["event"], last["signal"]) == ("stop", signal.Signals(number).name)


def test_it_binds_nothing_but_the_addresses_it_was_given(controller: Controller) -> None:
    controller.connect()
    bound = {
        tuple(connection.laddr)
        for connection in psutil.Process(controller.process.pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert bound == {("127.0.0.1", controller.port), ("127.0.0.1", controller.openflow_port)}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (None, "it must name the controller's JSON file"),
        ("{", "Invalid JSON"),
        ({**PACKET_FABRIC, "prefills": []}, "prefills: List should have at least 1 item"),
        ({**PACKET_FABRIC, "colour": "red"}, "colour: Extra inputs are not permitted"),
        ({**PACKET_FABRIC, "rate_bytes_per_s": 0}, "rate_bytes_per_s: Input should be greater than 0"),
        ({**PACKET_FABRIC, "fabric": {"kind": "ocs", "reconfiguration_s": 0.025}}, "0 planes"),
        ({**PACKET_FABRIC, "fabric": {"kind": "eps", "decode_choice": "lucky"}}, "decode_choice 'lucky'"),
    ],
)
def test_a_malformed_configuration_is_one_clear_line_and_exit_code_2(
    tmp_path: Path, document: dict[str, Any] | str | None, reason: str
) -> None:
    controller = Controller(tmp_path, document)
    try:
        _, errors = controller.process.communicate(timeout=60)
    finally:
        controller.stop()
    assert controller.process.returncode == 2
    (line,) = [line for line in errors.splitlines() if line.startswith("heliograph controller: ")]
    assert reason in line
    assert "Traceback" not in errors


def test_an_address_that_is_taken_is_one_clear_line(tmp_path: Path, controller: Controller) -> None:
    controller.connect()
    other = Controller(tmp_path, PACKET_FABRIC, port=controller.port)
    try:
        _, errors = other.process.communicate(timeout=60)
    finally:
        other.stop()
    assert other.process.returncode == 2
    assert f"heliograph controller: cannot listen on ('127.0.0.1', {controller.port}): Address already" in errors
    assert "Traceback" not in errors


def test_connections_are_kept_and_a_quiet_stream_beats(controller: Controller) -> None:
    connection = controller.connect()
    kept = connection.sock
    for _ in range(3):
        connection.request("GET", "/v1/health")
        assert json.loads(connection.getresponse().read())["ready"]
    assert connection.sock is kept
    asked_s = time.monotonic()
    connection.request("GET", "/v1/instances/p0/grants")
    response = connection.getresponse()
    assert response.getheader("Transfer-Encoding") == "chunked"
    for _ in range(4):  # longer than a client may take over anything else
        assert "heartbeat" in json.loads(response.readline())
    assert 14.9 < time.monotonic() - asked_s < 60  # the first at once, the others after five seconds each


def trial(connection: http.client.HTTPConnection, first: int, count: int, t0_s: float) -> list[float]:
    """Latencies of `count` events at a fixed rate; the four events of a request in turn."""
    latencies_s = []
    begin_s = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begin_s + number / EVENTS_PER_S - time.monotonic()))
        request, event = f"r{(first + number) // 4}", number % 4
        at_s = time.monotonic() - t0_s
        path = ("admitted", "prefill-started", "last-chunk-started", "transfer-done")[event]
        predicted: dict[str, Any] = {"predicted_end_s": at_s}
        admitted = {"prefill": "p0", "tenant": "t", "session": "", "migrates": True, "predicted_prefill_s": 0.1}
        admitted |= {"head_bytes": 1000, "tail_bytes": 10, "layer_bytes": 1}
        body = (admitted, predicted, predicted, {"part": "all"})[event]
        sent_s = time.monotonic()
        post(connection, f"/v1/requests/{request}/{path}", at_s=at_s, **body)
        latencies_s.append(time.monotonic() - sent_s)
    return sorted(latencies_s)


def kept_waiting_s(controller: Controller) -> float:
    """Seconds that the controller and this process could have run and had no processor, since they started."""
    pids = (controller.process.pid, os.getpid())
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in pids) / 1e9


def test_it_answers_250_events_a_second_within_milliseconds(controller: Controller) -> None:
    """By the clock, unless others took the processors meanwhile; by what it costs, always."""
    connection = controller.connect()
    t0_s = time.monotonic()
    post(connection, "/v1/clock", t0_monotonic_s=t0_s)
    process = psutil.Process(controller.process.pid)
    said = []
    for number in range(3):
        waited_s, cpu_s = kept_waiting_s(controller), sum(process.cpu_times()[:2])
        latencies_s = trial(connection, number * 500, 500, t0_s)
        waited_s, cpu_s = kept_waiting_s(controller) - waited_s, sum(process.cpu_times()[:2]) - cpu_s
        p50_ms = statistics.median(latencies_s) * 1e3
        p99_ms = latencies_s[int(0.99 * len(latencies_s))] * 1e3
        said.append(
            f"northbound at {EVENTS_PER_S} events/s: p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms, "
            f"{cpu_s / 500 * 1e3:.2f} ms of processor an event, kept waiting for one {waited_s:.2f} s"
        )
        print(said[-1])
        assert cpu_s / 500 <= 0.002, "half of a processor at the rate it has to bear"
        # the slowest one in a hundred of 500, each 25 ms late, were kept waiting for 0.125 s
        if (p50_ms <= 5 and p99_ms <= 25) or waited_s > 0.125:
            return
    raise AssertionError("; ".join(said))
