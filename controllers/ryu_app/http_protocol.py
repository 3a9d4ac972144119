"""HTTP/1.1 of the northbound API: eventlet's protocol with bounds on what is read, before it is read.

What is refused here never reaches the API: lines, headers and bodies that are too long, bytes that a header may not
hold, bodies whose end is not beyond doubt (chunked ones, two lengths, a length that is no plain number), targets that
are no path of text, requests that take too long to arrive. Each refusal is `{"error": reason}` and ends the connection.
A client that hangs up in the middle of a request gets no answer, and nothing else happens.
"""

from __future__ import annotations

import io
import json
import re
import socket
import unicodedata
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_to_bytes

import eventlet
from eventlet import wsgi

LONGEST_REQUEST_LINE_BYTES = 8192
LONGEST_HEADER_BYTES = 8192
LONGEST_HEADERS_BYTES = 16_384
MOST_HEADERS = 64
LONGEST_BODY_BYTES = 65_536
#: Wall seconds from a connection's start to its first byte, and from an answer to the next request's.
FIRST_BYTE_S = 10.0
NEXT_REQUEST_S = 600.0
#: Wall seconds from the first byte of a request to the last one of its body.
REQUEST_S = 10.0
#: Wall seconds in which a client has to take what is written to it.
WRITE_S = 10.0
#: Once refused, so much more is read and dropped: a connection that is closed with bytes unread loses its answer.
LINGER_S = 1.0
LINGER_BYTES = 1 << 21

METHODS = {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
_REQUEST_LINE = re.compile(rb"[!-~]+ [!-~]+ HTTP/1\.[01]\r?\n")
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r?\n")
_LENGTH = re.compile(r"[0-9]{1,12}")
_BROKEN_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
#: Control characters, and what other programs take for the end of a line.
_UNWRITTEN = ("Cc", "Zl", "Zp")


class Refused(Exception):
    """A request that is not let in."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class HungUp(Exception):
    """The client has gone in the middle of a request."""


def path_of(target: str) -> str:
    """The path, and query, of a request's target. Raises Refused where it is none, or no text."""
    path = target
    if target.lower().startswith(("http://", "https://")):
        path = re.sub(r"^[^/?]*", "", target.partition("//")[2])
        path = path if path.startswith("/") else f"/{path}"
    if not path.startswith("/"):
        raise Refused(400, f"the target {target!r:.80} is no path; it begins with /")
    if _BROKEN_PERCENT.search(path):
        raise Refused(400, f"the target {target!r:.80} has a % without two hexadecimal digits")
    try:
        text = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise Refused(400, f"the target {target!r:.80} is not UTF-8") from None
    if any(unicodedata.category(character) in _UNWRITTEN for character in text):
        raise Refused(400, f"the target {target!r:.80} has control characters")
    return path


class _HeaderLines:
    """The lines of a request's header, as `http.client` reads them, none too long and none too many."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._lines = self._bytes = 0

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._stream.readline(LONGEST_HEADER_BYTES + 1)
        self._lines, self._bytes = self._lines + 1, self._bytes + len(line)
        if len(line) > LONGEST_HEADER_BYTES or self._bytes > LONGEST_HEADERS_BYTES:
            raise Refused(
                431,
                f"the headers are too long; at most {LONGEST_HEADER_BYTES} bytes are allowed for one and "
                f"{LONGEST_HEADERS_BYTES} for all",
            )
        if not line.endswith(b"\n"):
            raise HungUp
        if line in (b"\r\n", b"\n"):
            return line
        if self._lines > MOST_HEADERS:
            raise Refused(431, f"too many headers; at most {MOST_HEADERS} are allowed")
        if not _HEADER.fullmatch(line):
            raise Refused(400, f"{line!r:.80} is no header")
        return line


class LimitedProtocol(wsgi.HttpProtocol):
    """One connection, served until it ends. `conn_state` has a fourth element, its `Connection`; `server` has
    `connections` and `metrics`."""

    rfile: Any
    path: str
    raw_requestline = b""
    _deadline: eventlet.Timeout | None = None
    _body = b""

    def setup(self) -> None:
        """As its base does; the stream is kept, which the base replaces while it reads headers."""
        super().setup()
        self._stream = self.rfile
        self._own = self.conn_state[3]

    def handle_one_request(self) -> None:
        """Read a request and answer it, or say why not."""
        try:
            super().handle_one_request()
        except Refused as error:
            self._refuse(error)
        except HungUp:
            self.server.metrics.hung_up.inc()
            self.close_connection = True
        finally:
            self._cancel_deadline()

    def _read_request_line(self) -> bytes:
        """The first line; empty where the client has nothing more to say."""
        self.server.connections.wait(self._own)
        self.connection.settimeout(NEXT_REQUEST_S if self._own.has_asked else FIRST_BYTE_S)
        try:
            if not self._stream.peek(1):
                return b""
            self._deadline = eventlet.Timeout(
                REQUEST_S, Refused(408, f"the request was not here within {REQUEST_S:g} s")
            )
            line: bytes = self._stream.readline(LONGEST_REQUEST_LINE_BYTES + 1)
        except OSError:  # reset, or idle for too long
            return b""
        self.connection.settimeout(WRITE_S)
        self.raw_requestline = line
        if len(line) > LONGEST_REQUEST_LINE_BYTES:
            raise Refused(414, f"the request line is too long; at most {LONGEST_REQUEST_LINE_BYTES} bytes are allowed")
        if not line.endswith(b"\n"):
            raise HungUp
        if not _REQUEST_LINE.fullmatch(line):
            raise Refused(400, f"{line!r:.80} is no request line of HTTP/1.1: METHOD /path HTTP/1.1")
        return line

    def parse_request(self) -> bool:
        """Headers and body; raises Refused or HungUp."""
        self.rfile = _HeaderLines(self._stream)
        try:
            super().parse_request()
            if self.command not in METHODS:
                raise Refused(501, f"the method {self.command!r:.80} is not known")
            if self.request_version == "HTTP/1.1" and len(self.headers.get_all("host", [])) != 1:
                raise Refused(400, "a request has one Host header")
            self.path = path_of(self.path)
            self._body = self._read_body()
        except OSError as error:  # reset, or nothing came for too long
            raise HungUp from error
        self._cancel_deadline()
        self._own.has_asked = self._own.is_answered = True
        return True

    def _read_body(self) -> bytes:
        lengths = self.headers.get_all("content-length", [])
        coding = self.headers.get("transfer-encoding")
        if coding is not None and lengths:
            raise Refused(400, "Content-Length and Transfer-Encoding are not allowed together")
        if coding is not None and coding.lower() != "chunked":
            raise Refused(501, f"the transfer coding {coding!r:.80} is not known; send Content-Length")
        if coding is not None:
            raise Refused(411, "chunked bodies are not accepted; send Content-Length")
        if not lengths:
            return b""
        if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
            raise Refused(400, f"Content-Length is {', '.join(lengths)!r:.80}; one number is expected")
        length = int(lengths[0])
        if length > LONGEST_BODY_BYTES:
            raise Refused(413, f"the body has {length} bytes; at most {LONGEST_BODY_BYTES} are allowed")
        if length and self.headers.get("expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.wfile.flush()
        body: bytes = self._stream.read(length)
        if len(body) < length:
            raise HungUp
        return body

    def get_environ(self) -> dict[str, Any]:
        """As its base makes it, with the body that was read."""
        environ: dict[str, Any] = super().get_environ()
        taken = environ["eventlet.input"]
        taken.position, taken.is_hundred_continue_response_sent = len(self._body), True
        environ["wsgi.input"] = io.BytesIO(self._body)
        return environ

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses."""
        raise Refused(int(code), message or HTTPStatus(code).phrase)

    def _refuse(self, refused: Refused) -> None:
        self._cancel_deadline()
        self.close_connection = True
        self.server.metrics.refused.labels(refused.status).inc()
        try:
            self.wfile.write(answer(refused, with_body=not self.raw_requestline.startswith(b"HEAD ")))
            self.wfile.flush()
            self._linger()
        except OSError:
            pass  # it has gone

    def _linger(self) -> None:
        self.connection.shutdown(socket.SHUT_WR)
        left = LINGER_BYTES
        with eventlet.Timeout(LINGER_S, False):
            while left > 0 and (dropped := self.connection.recv(65_536)):
                left -= len(dropped)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def answer(refused: Refused, *, with_body: bool = True) -> bytes:
    """A refusal as a whole answer, after which the connection ends."""
    body = json.dumps({"error": str(refused)}, separators=(",", ":")).encode()
    head = (
        f"HTTP/1.1 {refused.status} {HTTPStatus(refused.status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
