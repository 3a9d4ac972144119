"""The grant streams: each prefill instance is told, the moment it happens, which of its windows are live.

A stream is also how the controller knows that a sender is alive: the kernel closes the connection of a process that
was killed, whatever it was doing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from eventlet import queue as green_queue

HEARTBEAT_S = 5.0


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class GrantStreams:
    """Newline-delimited JSON to whoever listens for an instance; a listener that comes late first hears what is live
    already."""

    def __init__(
        self,
        now_s: Callable[[], float | None],
        heartbeat_s: float = HEARTBEAT_S,
        deserted: Callable[[str], None] = lambda instance: None,
    ) -> None:
        """`now_s` stamps heartbeats: run-clock seconds, None before the clock starts. `deserted(instance)` is called
        when the last listener of an instance has gone."""
        self._now_s = now_s
        self._heartbeat_s = heartbeat_s
        self._deserted = deserted
        self._listeners: dict[str, set[GrantListener]] = {}

    def push(self, instance: str, grant: dict[str, Any]) -> None:
        """Hand a grant to the instance's listeners; never blocks."""
        for listener in self._listeners.get(instance, ()):
            listener.put(_line(grant))

    def listen(self, instance: str, live_already: Iterable[dict[str, Any]]) -> GrantListener:
        """Lines for one listener, for ever; closing the stream ends it. The first line comes at once."""
        stream = GrantListener(self.heartbeat, self._heartbeat_s, lambda: self._left(instance, stream))
        stream.put(self.heartbeat())
        for grant in live_already:
            stream.put(_line(grant))
        self._listeners.setdefault(instance, set()).add(stream)
        return stream

    def heartbeat(self) -> bytes:
        """A line that only tells that we are here."""
        return _line({"heartbeat": self._now_s()})

    def _left(self, instance: str, stream: GrantListener) -> None:
        self._listeners[instance].discard(stream)
        if not self._listeners[instance]:
            self._deserted(instance)


class GrantListener:
    """The lines of one listener, and a heartbeat whenever there was none for a while."""

    def __init__(self, heartbeat: Callable[[], bytes], heartbeat_s: float, left: Callable[[], None]) -> None:
        self._lines: green_queue.LightQueue = green_queue.LightQueue()
        self._heartbeat = heartbeat
        self._heartbeat_s = heartbeat_s
        self._left = left
        self._open = True

    def put(self, line: bytes) -> None:
        """Queue a line; never blocks."""
        self._lines.put(line)

    def __iter__(self) -> GrantListener:
        return self

    def __next__(self) -> bytes:
        if not self._open:
            raise StopIteration
        try:
            line: bytes = self._lines.get(timeout=self._heartbeat_s)
        except green_queue.Empty:
            return self._heartbeat()
        if not self._open:
            raise StopIteration
        return line

    def close(self) -> None:
        """The listener has gone; whoever waits for the next line is told so. May be called again."""
        if self._open:
            self._open = False
            self._lines.put(b"")
            self._left()
