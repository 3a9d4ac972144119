"""The grant streams: each prefill instance is told, the moment it happens, which of its windows are live."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from eventlet import queue as green_queue

HEARTBEAT_S = 5.0


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class GrantStreams:
    """Newline-delimited JSON to whoever listens for an instance; a listener that comes late first hears what is live
    already."""

    def __init__(self, now_s: Callable[[], float | None], heartbeat_s: float = HEARTBEAT_S) -> None:
        """`now_s` stamps heartbeats: run-clock seconds, None before the clock starts."""
        self._now_s = now_s
        self._heartbeat_s = heartbeat_s
        self._listeners: dict[str, set[green_queue.LightQueue]] = {}

    def push(self, instance: str, grant: dict[str, Any]) -> None:
        """Hand a grant to the instance's listeners; never blocks."""
        for listener in self._listeners.get(instance, ()):
            listener.put(_line(grant))

    def listen(self, instance: str, live_already: Iterable[dict[str, Any]]) -> Iterator[bytes]:
        """Lines for one listener, for ever; closing the iterator ends it. The first line comes at once."""
        listener: green_queue.LightQueue = green_queue.LightQueue()
        listener.put(self._heartbeat())
        for grant in live_already:
            listener.put(_line(grant))
        # registered here and not in the generator, which only runs when it is first asked for a line
        self._listeners.setdefault(instance, set()).add(listener)
        return self._lines(instance, listener)

    def _lines(self, instance: str, listener: green_queue.LightQueue) -> Iterator[bytes]:
        try:
            while True:
                try:
                    yield listener.get(timeout=self._heartbeat_s)
                except green_queue.Empty:
                    yield self._heartbeat()
        finally:
            self._listeners[instance].discard(listener)

    def _heartbeat(self) -> bytes:
        return _line({"heartbeat": self._now_s()})
