"""The northbound API without a socket: every route answers; what is malformed or out of order is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import controllers.ryu_app.manager  # noqa: F401  (prepares eventlet for Ryu's WSGI module, so it comes first)

# isort: split
from ryu.app.wsgi import Request, WSGIApplication

from controllers import config as controller_config
from controllers.ryu_app import northbound
from controllers.ryu_app.event_log import EventLog
from controllers.ryu_app.fabric_shell import FabricShell
from controllers.ryu_app.metrics import Metrics

ADMITTED = {
    "prefill": "p0",
    "tenant": "agentic",
    "session": "s1",
    "head_bytes": 5_373_952_000,
    "tail_bytes": 90_112_000,
    "layer_bytes": 1_126_400,
    "predicted_prefill_s": 0.19,
    "migrates": True,
    "at_s": 0.0,
}
PREDICTED = {"predicted_end_s": 0.19, "at_s": 0.0}
DONE = {"part": "all", "at_s": 0.0}


class Client:
    """Calls the WSGI application in this process."""

    def __init__(self, directory: Path, transfer: str = "pull") -> None:
        config = controller_config.ControllerConfig.model_validate(
            {
                "fabric": {"kind": "eps", "decode_choice": "least-loaded"},
                "transfer": transfer,
                "rate_bytes_per_s": 45e9,
                "prefills": ["p0", "p1"],
                "decodes": ["d0", "d1"],
                "log": str(directory / "controller.jsonl"),
            }
        )
        core = controller_config.core(config)
        self.shell = FabricShell(config, core, None, EventLog(config.log), Metrics())
        self._application = WSGIApplication()
        northbound.mount(self._application, self.shell)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = Request.blank(path, method=method, body=text if method == "POST" else b"")
        response = request.get_response(self._application)
        assert response.content_type == "application/json"
        return response.status_int, json.loads(response.body)

    def post(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        return self.call("POST", path, body)

    def start(self) -> None:
        assert self.post("/v1/clock", {"t0_monotonic_s": time.monotonic()}) == (200, {})


@pytest.fixture
def client(tmp_path: Path) -> Client:
    client = Client(tmp_path)
    client.start()
    return client


def test_the_four_events_place_a_request_at_its_last_chunk_in_pull(client: Client) -> None:
    assert client.post("/v1/requests/r1/admitted", ADMITTED) == (200, {"decode": None})
    assert client.post("/v1/requests/r1/prefill-started", PREDICTED) == (200, {"decode": None, "head_moves": None})
    assert client.post("/v1/requests/r1/last-chunk-started", PREDICTED) == (200, {"decode": "d0", "head_moves": True})
    assert client.post("/v1/requests/r1/transfer-done", DONE) == (200, {})


def test_layerwise_places_a_request_at_prefill_start(tmp_path: Path) -> None:
    client = Client(tmp_path, "layerwise")
    client.start()
    client.post("/v1/requests/r1/admitted", ADMITTED)
    assert client.post("/v1/requests/r1/prefill-started", PREDICTED) == (200, {"decode": "d0", "head_moves": True})
    assert client.post("/v1/requests/r1/last-chunk-started", PREDICTED) == (200, {"decode": "d0", "head_moves": True})
    for part in ("head", "tail"):
        assert client.post("/v1/requests/r1/transfer-done", {**DONE, "part": part}) == (200, {})


def test_a_failed_transfer_gives_the_decodes_load_back(client: Client) -> None:
    def place(request: str) -> str:
        client.post(f"/v1/requests/{request}/admitted", ADMITTED)
        client.post(f"/v1/requests/{request}/prefill-started", PREDICTED)
        return str(client.post(f"/v1/requests/{request}/last-chunk-started", PREDICTED)[1]["decode"])

    assert [place("r1"), place("r2")] == ["d0", "d1"]
    assert client.post("/v1/requests/r2/transfer-done", {**DONE, "failed": True}) == (200, {})
    assert place("r3") == "d1"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"head_bytes": -1}, "head_bytes: Input should be greater than or equal to 0 (got -1)"),
        ({"tail_bytes": 1.5}, "tail_bytes: Input should be a valid integer (got 1.5)"),
        ({"tail_bytes": "12"}, "tail_bytes: Input should be a valid integer (got '12')"),
        ({"layer_bytes": True}, "layer_bytes: Input should be a valid integer (got True)"),
        ({"predicted_prefill_s": float("nan")}, "the body: NaN is no JSON number"),
        ({"at_s": float("inf")}, "the body: Infinity is no JSON number"),
        ({"head_bytes": 2**60}, "head_bytes: Input should be less than or equal to"),
        ({"predicted_prefill_s": 1e9}, "predicted_prefill_s: Input should be less than or equal to 86400"),
        ({"migrates": "yes"}, "migrates: Input should be a valid boolean (got 'yes')"),
        ({"colour": 1}, "colour: Extra inputs are not permitted (got 1)"),
        ({"prefill": "p9"}, "no prefill instance 'p9' here, only p0, p1"),
        ({"at_s": -60.0}, "is the sender on another clock?"),
        ({"at_s": 60.0}, "is the sender on another clock?"),
    ],
)
def test_a_malformed_admission_is_400_with_the_field_and_the_value(
    client: Client, change: dict[str, Any], reason: str
) -> None:
    status, answer = client.post("/v1/requests/r1/admitted", {**ADMITTED, **change})
    assert status == 400
    assert reason in answer["error"]
    assert client.post("/v1/requests/r1/admitted", ADMITTED)[0] == 200  # and nothing was booked


@pytest.mark.parametrize("field", sorted(ADMITTED))
def test_a_missing_field_is_400(client: Client, field: str) -> None:
    body = {key: value for key, value in ADMITTED.items() if key != field}
    assert client.post("/v1/requests/r1/admitted", body) == (400, {"error": f"{field}: Field required"})


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_a_body_that_is_no_json_object_is_400(client: Client, body: bytes) -> None:
    status, answer = client.post("/v1/requests/r1/admitted", body)
    assert status == 400
    assert answer["error"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"head_bytes": 1, "head_bytes": 2}', "the body: key 'head_bytes' is given twice"),
        ("[" * 60_000, "the body: nested more than 64 deep"),
        ('{"head_bytes": %s}' % ("1" * 5000), "a number of 5000 digits"),
        ('{"head_bytes": %s}' % ("1" * 99), "head_bytes: Input should be"),
        ('{"at_s": %s}' % ("1" * 400), "a number of 400 digits"),
        ('{"at_s": -1e999}', "larger than any number a computer holds"),
        ('{"prefill": "\\ud800"}', "half of a surrogate pair"),
        ('{"prefill": "\xe9"}', "the body is not UTF-8"),
    ],
)
def test_what_json_readers_disagree_on_is_400(client: Client, text: str, reason: str) -> None:
    status, answer = client.post("/v1/requests/r1/admitted", text.encode("latin-1"))
    assert status == 400
    assert reason in answer["error"]


@pytest.mark.parametrize(
    ("event", "body"), [("prefill-started", PREDICTED), ("last-chunk-started", PREDICTED), ("transfer-done", DONE)]
)
def test_an_event_for_an_unknown_request_is_404(client: Client, event: str, body: dict[str, Any]) -> None:
    assert client.post(f"/v1/requests/r1/{event}", body) == (404, {"error": "request 'r1' was never admitted"})


def test_an_event_out_of_order_is_409(client: Client) -> None:
    client.post("/v1/requests/r1/admitted", ADMITTED)
    status, answer = client.post("/v1/requests/r1/last-chunk-started", PREDICTED)
    assert (status, answer["error"]) == (
        409,
        "request 'r1': last-chunk-started while it is admitted, not prefill-started",
    )


@pytest.mark.parametrize("event", ["prefill-started", "last-chunk-started"])
@pytest.mark.parametrize("predicted_end_s", [1e6, 1e300])
def test_a_prediction_in_another_unit_is_400_and_changes_nothing(
    client: Client, event: str, predicted_end_s: float
) -> None:
    client.post("/v1/requests/r1/admitted", ADMITTED)
    if event == "last-chunk-started":
        client.post("/v1/requests/r1/prefill-started", PREDICTED)
    status, answer = client.post(f"/v1/requests/r1/{event}", {**PREDICTED, "predicted_end_s": predicted_end_s})
    assert (status, f"predicted_end_s is {predicted_end_s}" in answer["error"]) == (400, True)
    assert client.post(f"/v1/requests/r1/{event}", PREDICTED)[0] == 200


def test_a_prediction_that_lies_far_in_the_past_is_400(tmp_path: Path) -> None:
    client = Client(tmp_path)
    now_s = time.monotonic()
    client.post("/v1/clock", {"t0_monotonic_s": now_s - 9.0})
    client.shell.clock.t0_monotonic_s = now_s - 100.0  # type: ignore[union-attr]
    client.post("/v1/requests/r1/admitted", {**ADMITTED, "at_s": 100.0})
    status, answer = client.post("/v1/requests/r1/prefill-started", {"predicted_end_s": 50.0, "at_s": 100.0})
    assert (status, "runs over" in answer["error"]) == (400, True)


def test_a_duplicate_request_is_409(client: Client) -> None:
    client.post("/v1/requests/r1/admitted", ADMITTED)
    assert client.post("/v1/requests/r1/admitted", ADMITTED) == (409, {"error": "request 'r1' was admitted before"})


def test_a_part_that_does_not_exist_is_400(client: Client) -> None:
    status, answer = client.post("/v1/requests/r1/transfer-done", {**DONE, "part": "middle"})
    assert status == 400
    assert "'head', 'tail' or 'all'" in answer["error"]


def test_events_before_the_clock_are_409(tmp_path: Path) -> None:
    status, answer = Client(tmp_path).post("/v1/requests/r1/admitted", ADMITTED)
    assert (status, answer["error"]) == (409, "the run clock has not started: POST /v1/clock comes first")


def test_the_clock_starts_once(client: Client) -> None:
    status, answer = client.post("/v1/clock", {"t0_monotonic_s": time.monotonic()})
    assert (status, answer["error"]) == (409, "the clock can be started only before the clock runs")


@pytest.mark.parametrize("t0_s", [0.0, 1e9])
def test_a_clock_that_is_not_monotonic_time_is_400(tmp_path: Path, t0_s: float) -> None:
    status, answer = Client(tmp_path).post("/v1/clock", {"t0_monotonic_s": t0_s})
    assert status == 400
    assert "expected a CLOCK_MONOTONIC time near" in answer["error"]


def test_a_packet_fabric_is_ready_and_has_no_circuits(tmp_path: Path) -> None:
    client = Client(tmp_path)
    assert client.call("GET", "/v1/health") == (200, {"ready": True, "datapaths": 0, "fault": None})
    assert client.call("GET", "/v1/circuits") == (200, {"standing": {}, "dark": {}})
    assert client.call("GET", "/v1/reservations") == (200, {"windows": []})
    status, answer = client.post("/v1/circuits", {"pairs": {"p0": "d0"}})
    assert (status, answer["error"]) == (409, "a fabric of kind 'eps' has no circuits")


def test_grants_of_an_unknown_instance_are_404(client: Client) -> None:
    status, answer = client.call("GET", "/v1/instances/d0/grants")
    assert (status, answer["error"]) == (404, "no prefill instance 'd0'; there are p0, p1")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/circuits", "GET, POST"),
        ("GET", "/v1/requests/r1/admitted", "POST"),
        ("HEAD", "/metrics", "GET"),
        ("OPTIONS", "/v1/instances/p0/grants", "GET"),
    ],
)
def test_a_path_that_is_there_for_another_method_is_405_with_those_it_takes(
    client: Client, method: str, path: str, allowed: str
) -> None:
    response = Request.blank(path, method=method).get_response(client._application)
    assert (response.status_int, response.content_type, response.headers["Allow"]) == (405, "application/json", allowed)


@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("GET", "/v2/health"), ("DELETE", "/v1/circuit")])
def test_a_path_that_does_not_exist_is_404_in_json(client: Client, method: str, path: str) -> None:
    status, answer = client.call(method, path)
    said = f"{method} {path} is not part of this API; docs/reference/northbound.md lists it"
    assert (status, answer["error"]) == (404, said)


def test_an_exception_in_the_core_is_500_and_makes_the_run_invalid(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("no decode instances")

    monkeypatch.setattr(client.shell._core, "admitted", broken)
    assert client.post("/v1/requests/r1/admitted", ADMITTED)[0] == 500
    assert client.call("GET", "/v1/health")[1] == {
        "ready": False,
        "datapaths": 0,
        "fault": "controller: admitted: ZeroDivisionError: no decode instances",
    }
    assert "no decode instances" in caplog.text
    caplog.clear()


def test_the_metrics_count_events_by_status(client: Client) -> None:
    client.post("/v1/requests/r1/admitted", ADMITTED)
    client.post("/v1/requests/r1/admitted", ADMITTED)
    text = client.shell.metrics.text().decode()
    assert 'heliograph_events_total{event="admitted",status="200"} 1.0' in text
    assert 'heliograph_events_total{event="admitted",status="409"} 1.0' in text
