"""Emptying Open vSwitch's flow cache, over the daemon's own control socket.

A barrier orders the OpenFlow tables, not the cache in front of them: packets keep following a deleted rule, or a drop
learnt in the dark, until the entry is revalidated. `revalidator/purge` is no cure: it skips an entry that a revalidator
thread is at, and one that such a thread has decided to delete and has not deleted yet, and answers all the same; on a
busy machine packets followed deleted rules for up to 6 ms after it. `upcall/enable-megaflows` ends the handler and
revalidator threads, empties the cache, starts them again and then answers (megaflows are on anyway): nobody is left who
had looked up a rule before, in user space and on the kernel's datapath alike.

The protocol is JSON-RPC without framing over a Unix socket (ovs-appctl(8)); a socket of our own takes 0.5 to 5 ms, a
forked `ovs-appctl` 11.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable

from eventlet import event as green_event
from ryu.lib import hub


class UnixctlError(Exception):
    """The control socket could not be reached, did not answer in time, or refused the command."""


#: The command that empties the cache and leaves nobody who could fill it by what was true before.
EMPTY = "upcall/enable-megaflows"


class Unixctl:
    """A kept connection to one daemon's control socket. Blocks; under the green hub only its own greenlet."""

    def __init__(self, path: str, timeout_s: float = 2.0) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._calls = 0

    def connect(self) -> None:
        """Be connected before the first call: while there are rights to. Raises UnixctlError."""
        try:
            self._connect()
        except OSError as error:
            raise UnixctlError(f"{self._path}: {error}; is its ovs-vswitchd running?") from error

    def call(self, method: str, *parameters: str) -> str:
        """Run a command and return its text; raises UnixctlError."""
        self._calls += 1
        request = {"id": self._calls, "method": method, "params": list(parameters)}
        try:
            reply = self._exchange(json.dumps(request).encode())
        except (OSError, ValueError) as error:
            self.close()
            raise UnixctlError(
                f"{method} on {self._path}: {error or type(error).__name__}; is its ovs-vswitchd running?"
            ) from error
        if reply.get("id") != self._calls or reply.get("error") is not None:
            self.close()
            raise UnixctlError(f"{method} on {self._path}: answered {reply!r}")
        return str(reply.get("result") or "")

    def close(self) -> None:
        """Drop the connection; the next call opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(self._timeout_s)
            self._socket.connect(self._path)
        return self._socket

    def _exchange(self, request: bytes) -> dict[str, object]:
        connection = self._connect()
        connection.sendall(request)
        received = b""
        while True:
            part = connection.recv(65536)
            if not part:
                raise ConnectionError("closed by the daemon")
            received += part
            # nothing ends a reply but its closing brace
            with contextlib.suppress(json.JSONDecodeError, UnicodeDecodeError):
                reply = json.loads(received)
                if not isinstance(reply, dict):
                    raise ConnectionError(f"answered {reply!r}, not an object")
                return reply


class _FlowCache:
    """The cache of one daemon. Callers that come while a purge runs share the next one: theirs has to start after they
    asked."""

    def __init__(self, path: str) -> None:
        self._unixctl = Unixctl(path)
        self._next: green_event.Event | None = None
        self._running = False

    def connect(self) -> None:
        self._unixctl.connect()

    def purge(self) -> green_event.Event:
        if self._next is None:
            self._next = green_event.Event()
        if not self._running:
            self._running = True
            hub.spawn(self._run)
        return self._next

    def _run(self) -> None:
        while self._next is not None:
            done, self._next = self._next, None
            try:
                self._unixctl.call(EMPTY)
            except UnixctlError as error:
                done.send_exception(error)
            else:
                done.send()
        self._running = False


class FlowCaches:
    """The flow caches of every daemon that carries a plane."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._caches = {path: _FlowCache(path) for path in dict.fromkeys(paths)}

    def connect(self) -> None:
        """Be connected to all of them. Raises UnixctlError."""
        for cache in self._caches.values():
            cache.connect()

    def purge(self) -> None:
        """Empty all of them at once and return when all are empty; raises UnixctlError."""
        for done in [cache.purge() for cache in self._caches.values()]:
            done.wait()
