"""The prefill agents' side of the controller's northbound API: events in order, and the stream of grants."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from emulation.agents.lines import connect
from emulation.agents.wire import LineSplitter, Message, WireError

ANSWER_TIMEOUT_S = 5.0
RECONNECT_TIMEOUT_S = 2.0
FIRST_CONNECT_TIMEOUT_S = 15.0
SILENCE_S = 16.0  # three heartbeats of 5 s, and a little


class NorthboundError(RuntimeError):
    """An event was refused (`status` is the HTTP status) or did not arrive (`status` is 0)."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class HttpConnection:
    """One HTTP/1.1 connection. Answers have a Content-Length or are chunked; anything else is an error."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, local_ip: str, host: str, port: int, timeout_s: float) -> "HttpConnection":
        """Connect from `local_ip`; TimeoutError after `timeout_s`."""
        sock = await connect(local_ip, (host, port), timeout_s)
        return cls(*await asyncio.open_connection(sock=sock))

    @property
    def usable(self) -> bool:
        """False once the server has closed."""
        return not self.reader.at_eof() and not self.writer.is_closing()

    def close(self) -> None:
        """Close at once."""
        self.writer.close()

    def write(self, method: str, path: str, host: str, body: bytes = b"") -> None:
        """Send one request, headers and body in one write."""
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.writer.write(head.encode() + b"\r\n" + body)

    async def read_head(self) -> tuple[int, dict[str, str]]:
        """Status and headers (names in lower case) of the next answer; NorthboundError if there is none."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            raise NorthboundError(0, f"the controller closed the connection: {error}") from error
        status_line, *lines = head.rstrip("\r\n").split("\r\n")
        try:
            status = int(status_line.split(" ", 2)[1])
        except (IndexError, ValueError) as error:
            raise NorthboundError(0, f"the controller's answer is no HTTP: {status_line!r}") from error
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        return status, {name.strip().lower(): value.strip() for name, value in pairs}

    async def read_body(self, headers: dict[str, str]) -> bytes:
        """The whole body of an answer."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return b"".join([chunk async for chunk in self.read_chunks()])
        if "content-length" not in headers:
            raise NorthboundError(0, "the controller's answer has no Content-Length and is not chunked")
        try:
            return await self.reader.readexactly(int(headers["content-length"]))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise NorthboundError(0, f"the controller's answer was cut short: {error}") from error

    async def read_chunks(self) -> AsyncIterator[bytes]:
        """The chunks of a chunked body as they come."""
        try:
            while True:
                size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
                chunk = (await self.reader.readexactly(size + 2))[:-2]
                if size == 0:
                    return
                yield chunk
        except (asyncio.IncompleteReadError, ValueError, OSError) as error:
            raise NorthboundError(0, f"the controller's stream broke: {error!r}") from error


class NorthboundClient:
    """Posts events over one kept connection, one after another, in the order of `post`.

    A lost connection or an answer that takes longer than `ANSWER_TIMEOUT_S` fails the event concerned (whether the
    controller saw it is unknown, so it is never sent twice); the next event connects anew.
    """

    def __init__(self, local_ip: str, host: str, port: int) -> None:
        self._local_ip = local_ip
        self._host = host
        self._port = port
        self._queue: asyncio.Queue[tuple[str, bytes, asyncio.Future[Message]]] = asyncio.Queue()
        self._connection: HttpConnection | None = None
        self._outstanding = 0

    @property
    def outstanding(self) -> int:
        """Events without an answer yet."""
        return self._outstanding

    async def open(self) -> None:
        """Connect before the clock starts; TimeoutError names the address."""
        self._connection = await HttpConnection.open(self._local_ip, self._host, self._port, FIRST_CONNECT_TIMEOUT_S)

    def post(self, path: str, body: Message) -> "asyncio.Future[Message]":
        """Queue an event; the future is its answer, or raises NorthboundError."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        # The last words of a failed request are posted without anybody waiting for the answer.
        answer.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._outstanding += 1
        self._queue.put_nowait((path, json.dumps(body, allow_nan=False).encode(), answer))
        return answer

    async def run(self) -> None:
        """Send what is queued, for ever."""
        while True:
            path, body, answer = await self._queue.get()
            try:
                result = await self._exchange(path, body)
            except NorthboundError as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(result)
            finally:
                self._outstanding -= 1

    async def _exchange(self, path: str, body: bytes) -> Message:
        try:
            if self._connection is None or not self._connection.usable:
                self._connection = await HttpConnection.open(
                    self._local_ip, self._host, self._port, RECONNECT_TIMEOUT_S
                )
            self._connection.write("POST", path, f"{self._host}:{self._port}", body)
            status, headers, raw = await asyncio.wait_for(self._answer(self._connection), ANSWER_TIMEOUT_S)
        except (asyncio.TimeoutError, TimeoutError) as error:
            # An answer that is still to come would be taken for the next event's.
            self._drop()
            reason = str(error) or f"no answer in {ANSWER_TIMEOUT_S} s"
            raise NorthboundError(0, f"POST {path}: {reason}") from error
        except NorthboundError as error:
            self._drop()
            raise NorthboundError(0, f"POST {path}: {error}") from error
        if headers.get("connection", "").lower() == "close":
            self._drop()
        return _decode(path, status, raw)

    @staticmethod
    async def _answer(connection: HttpConnection) -> tuple[int, dict[str, str], bytes]:
        status, headers = await connection.read_head()
        return status, headers, await connection.read_body(headers)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _decode(path: str, status: int, raw: bytes) -> Message:
    try:
        answer: Any = json.loads(raw or b"{}")
    except ValueError:
        answer = None
    if status != 200:
        reason = answer.get("error") if isinstance(answer, dict) else raw[:200].decode("utf-8", "replace")
        raise NorthboundError(status, f"POST {path}: {status}: {reason}")
    if not isinstance(answer, dict):
        raise NorthboundError(0, f"POST {path}: the answer is no JSON object: {raw[:120]!r}")
    return answer


class GrantStream:
    """`GET /v1/instances/{name}/grants`, kept open: calls `on_grant` per grant and `on_lost` each time it breaks."""

    def __init__(self, local_ip: str, host: str, port: int, instance: str, silence_s: float = SILENCE_S) -> None:
        self._address = (local_ip, host, port)
        self._path = f"/v1/instances/{instance}/grants"
        self._silence_s = silence_s

    async def run(
        self,
        opened: "asyncio.Future[None]",
        on_grant: Callable[[Message], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Read for ever. `opened` is done when the stream stands for the first time, or holds why it does not."""
        while True:
            try:
                await self._follow(opened, on_grant)
                reason = "the controller ended the grants stream"
            except (NorthboundError, TimeoutError, asyncio.TimeoutError, WireError, OSError) as error:
                reason = f"grants stream: {error or f'silent for {self._silence_s} s'}"
            if not opened.done():
                opened.set_exception(NorthboundError(0, reason))
                return
            on_lost(reason)
            await asyncio.sleep(0.2)

    async def _follow(self, opened: "asyncio.Future[None]", on_grant: Callable[[Message], None]) -> None:
        local_ip, host, port = self._address
        connection = await HttpConnection.open(local_ip, host, port, FIRST_CONNECT_TIMEOUT_S)
        try:
            connection.write("GET", self._path, f"{host}:{port}")
            status, headers = await asyncio.wait_for(connection.read_head(), ANSWER_TIMEOUT_S)
            if status != 200 or headers.get("transfer-encoding", "").lower() != "chunked":
                raise NorthboundError(status, f"GET {self._path}: {status}, not a chunked stream")
            if not opened.done():
                opened.set_result(None)
            splitter = LineSplitter()
            chunks = connection.read_chunks()
            while True:
                try:
                    chunk = await asyncio.wait_for(chunks.__anext__(), self._silence_s)
                except StopAsyncIteration:
                    return
                for message in splitter.feed(chunk):
                    if "request" in message:
                        on_grant(message)
        finally:
            connection.close()
