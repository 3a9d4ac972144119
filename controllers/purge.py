"""Emptying Open vSwitch's flow cache, over the daemon's own control socket.

A barrier orders the OpenFlow tables, not the cache in front of them: packets keep following a deleted rule, or a drop
learnt in the dark, until the entry is revalidated. `revalidator/purge` empties the cache and answers when it is empty.
The protocol is JSON-RPC without framing over a Unix socket (ovs-appctl(8)); a socket of our own takes 0.5 to 5 ms, a
forked `ovs-appctl` 11.

In user space the thread that meets an unknown packet looks its rule up and caches it in one go. The kernel's datapath
hands such a packet up to a handler thread instead: one that looked its rule up before the tables changed may cache it
after a purge. So there each purge is followed by another, when a handler that had a processor has finished, and one
more comes just before the end of a dark time, for one that had none. No wait is a proof: whether a packet crossed in
the dark is for captures to tell (`run --pcap`).
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


#: A handler that is not held up looks up and caches a batch of packets in well under a millisecond; wall seconds.
HANDLERS_S = 0.003
#: How long before the end of a dark time the last purge in it begins: as long as one takes.
LAST_PURGE_S = 0.005


class Unixctl:
    """A kept connection to one daemon's control socket. Blocks; under the green hub only its own greenlet."""

    def __init__(self, path: str, timeout_s: float = 2.0) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._calls = 0

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

    def _exchange(self, request: bytes) -> dict[str, object]:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(self._timeout_s)
            self._socket.connect(self._path)
        self._socket.sendall(request)
        received = b""
        while True:
            part = self._socket.recv(65536)
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

    def __init__(self, path: str, handlers_s: float = 0.0) -> None:
        self._unixctl = Unixctl(path)
        self._handlers_s = handlers_s
        self._next: green_event.Event | None = None
        self._twice = False
        self._running = False

    def purge(self, *, twice: bool = True) -> green_event.Event:
        if self._next is None:
            self._next = green_event.Event()
        self._twice |= twice
        if not self._running:
            self._running = True
            hub.spawn(self._run)
        return self._next

    def _run(self) -> None:
        while self._next is not None:
            done, self._next = self._next, None
            twice, self._twice = self._twice, False
            try:
                self._unixctl.call("revalidator/purge")
                if twice and self._handlers_s:
                    hub.sleep(self._handlers_s)
                    self._unixctl.call("revalidator/purge")
            except UnixctlError as error:
                done.send_exception(error)
            else:
                done.send()
        self._running = False


class FlowCaches:
    """The flow caches of every daemon that carries a plane. handlers_s: how long a handler thread may take to cache
    what it has looked up; 0 where there are none (user space)."""

    def __init__(self, paths: Iterable[str], handlers_s: float = 0.0) -> None:
        self._caches = {path: _FlowCache(path, handlers_s) for path in dict.fromkeys(paths)}

    def purge(self, *, twice: bool = True) -> None:
        """Empty all of them at once and return when all are empty, twice where there are handlers; raises
        UnixctlError."""
        for done in [cache.purge(twice=twice) for cache in self._caches.values()]:
            done.wait()
