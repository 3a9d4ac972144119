"""The northbound API's bounds on what is read, byte by byte against a controller process: refused with a reason in
JSON, or hung up on, and nothing else happens."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from controllers.ryu_app.http_protocol import Refused, path_of
from tests.openflow.process import PACKET_FABRIC, Controller

HOST = b"Host: c\r\n"
HEALTH = b"GET /v1/health HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /v1/requests/r1/admitted HTTP/1.1\r\n" + HOST


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    controller = Controller(tmp_path_factory.mktemp("controller"), PACKET_FABRIC)
    try:
        controller.connect().close()
        yield controller
    finally:
        controller.stop()


@pytest.fixture(autouse=True)
def _stays_well(controller: Controller) -> Iterator[None]:
    yield
    assert controller.health() == {"ready": True, "datapaths": 0, "fault": None}


def refusal(answer: bytes) -> tuple[int, str]:
    """Status and reason of the last answer of a connection."""
    head, _, body = answer[answer.rindex(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in head
    return int(head.split()[1]), str(json.loads(body)["error"])


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [
        (POST + b"Content-Length: 70000\r\n\r\n", 413, "the body has 70000 bytes; at most 65536 are allowed"),
        (POST + b"Content-Length: 99999999999\r\n\r\n", 413, "at most 65536"),
        (POST + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n", 400, "one number is expected"),
        (POST + b"Content-Length: -1\r\n\r\n", 400, "Content-Length is '-1'"),
        (POST + b"Content-Length: 1_0\r\n\r\n", 400, "Content-Length is '1_0'"),
        (POST + b"Content-Length: +2\r\n\r\n{}", 400, "Content-Length is '+2'"),
        (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "Content-Length is '2, 3'"),
        (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400, "not allowed together"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", 411, "chunked bodies are not accepted"),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "the transfer coding 'gzip, chunked' is not known"),
        (POST + b"Transfer-Encoding : chunked\r\n\r\n", 400, "is no header"),
        (POST + b"A: b\rTransfer-Encoding: chunked\r\n\r\n", 400, "is no header"),
        (POST + b"A: b\r\n folded: c\r\n\r\n", 400, "is no header"),
        (POST + b"A: \0\r\n\r\n", 400, "is no header"),
        (POST + b"A: " + b"b" * 1_000_000 + b"\r\n\r\n", 431, "the headers are too long"),
        (POST + b"A: b\r\n" * 2000 + b"\r\n", 431, "too many headers; at most 64"),
        (POST + (b"A: " + b"b" * 1000 + b"\r\n") * 20 + b"\r\n", 431, "the headers are too long"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 414, "the request line is too long; at most 8192 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "a request has one Host header"),
        (b"GET /v1/health\r\n\r\n", 400, "is no request line"),
        (b"GET /v1/health HTTP/2.0\r\n\r\n", 400, "is no request line"),
        (b"GET /v1/health x HTTP/1.1\r\n\r\n", 400, "is no request line"),
        (b"\r\n\r\n", 400, "is no request line"),
        (b"\x16\x03\x01\x02\x00\n", 400, "is no request line"),
        (b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n", 400, "is no request line"),
        (b"BREW /v1/health HTTP/1.1\r\n" + HOST + b"\r\n", 501, "the method 'BREW' is not known"),
        (b"GET /v1/%00 HTTP/1.1\r\n" + HOST + b"\r\n", 400, "has control characters"),
        (b"POST /v1/requests/a%0Ab/admitted HTTP/1.1\r\n" + HOST + b"\r\n", 400, "has control characters"),
        (b"GET /v1/%ff HTTP/1.1\r\n" + HOST + b"\r\n", 400, "is not UTF-8"),
        (b"GET /v1/%zz HTTP/1.1\r\n" + HOST + b"\r\n", 400, "without two hexadecimal digits"),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 400, "the target '*' is no path"),
        (b"CONNECT c:80 HTTP/1.1\r\n" + HOST + b"\r\n", 400, "the target 'c:80' is no path"),
        (b"GET http://c/v2 HTTP/1.1\r\n" + HOST + b"\r\n", 404, "GET /v2 is not part of this API"),
        (b"GET /v1/%e2%82%ac HTTP/1.1\r\n" + HOST + b"\r\n", 404, "GET /v1/"),
        (b"PUT /v1/health HTTP/1.1\r\n" + HOST + b"\r\n", 405, "the path takes GET"),
        (POST + b"Content-Length: 1\r\nExpect: 100-continue\r\n\r\n{", 400, "the body:1: not JSON"),
    ],
)
def test_what_is_refused_is_refused_in_json(controller: Controller, said: bytes, status: int, reason: str) -> None:
    found = refusal(controller.say(said))
    assert found[0] == status
    assert reason in found[1]


def test_a_head_request_is_answered_without_a_body(controller: Controller) -> None:
    for target, status in ((b"/v1/health", b"405"), (b"*", b"400")):
        answer = controller.say(b"HEAD " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        assert answer.split()[1] == status
        assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "said",
    [
        POST + b"Content-Length: 100\r\n\r\n{",
        POST + b"Content-Len",
        b"POST /v1/requ",
        b"",
    ],
)
def test_a_client_that_hangs_up_in_mid_request_gets_nothing_and_nothing_happens(
    controller: Controller, said: bytes
) -> None:
    assert controller.say(said) == b""
    assert controller.health()["fault"] is None
    assert "fault" not in controller.log.read_text()


def test_what_is_behind_a_refused_request_is_no_request(controller: Controller) -> None:
    answer = controller.say(POST + b"Content-Length: 70000\r\n\r\n" + HEALTH)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in answer


def test_requests_that_come_at_once_are_answered_in_their_order(controller: Controller) -> None:
    answer = controller.say(HEALTH + HEALTH.replace(b"/v1/health", b"/v2") + HEALTH)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"404", b"200"]


def test_a_huge_body_is_never_in_memory(controller: Controller) -> None:
    process = psutil.Process(controller.process.pid)
    before_bytes = process.memory_info().rss
    for head in (b"Content-Length: 40000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n2625a00\r\n", b"A: "):
        with contextlib.suppress(OSError):  # it does not listen to the end
            controller.say(POST + head, b"x" * 40_000_000)
    assert process.memory_info().rss < before_bytes + 8_000_000


def test_the_metrics_count_what_was_refused_and_hold_no_word_of_it(controller: Controller) -> None:
    name = b"a%22%7D%201"
    controller.say(b"POST /v1/requests/" + name + b"/admitted HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}")
    controller.say(b'BR"EW /x HTTP/1.1\r\n' + HOST + b"\r\n")
    text = controller.say(HEALTH.replace(b"/v1/health", b"/metrics")).decode()
    assert 'heliograph_refused_total{status="501"}' in text
    assert 'a"' not in text
    assert "BR" not in text


def test_a_request_that_trickles_in_is_cut_off_as_a_whole(tmp_path: Path) -> None:
    controller = Controller(tmp_path, PACKET_FABRIC)
    try:
        controller.connect().close()
        with controller.open() as slow:
            began_s = time.monotonic()
            slow.sendall(POST)
            slow.settimeout(0.5)
            answer = b""
            while time.monotonic() - began_s < 60 and not answer:
                slow.sendall(b"A: b\r\n")  # each of them in time
                try:
                    answer = slow.recv(4096)
                except TimeoutError:
                    continue
            assert refusal(answer) == (408, "the request was not here within 10 s")
            assert time.monotonic() - began_s > 9.9
        assert controller.health()["ready"]
    finally:
        controller.stop()


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v1/health", "/v1/health"),
        ("http://c:8080/v1/x?y=http://z/", "/v1/x?y=http://z/"),
        ("HTTP://c", "/"),
        ("http://c?x", "/?x"),
        ("/%E2%82%AC", "/%E2%82%AC"),
    ],
)
def test_a_target_is_a_path_with_or_without_its_host(target: str, path: str) -> None:
    assert path_of(target) == path


@pytest.mark.parametrize("target", ["*", "", "c:80", "ftp://c/", "/%C2%85", "/%E2%80%A8", "/%1b[31m"])
def test_other_targets_are_refused(target: str) -> None:
    with pytest.raises(Refused, match="the target"):
        path_of(target)
