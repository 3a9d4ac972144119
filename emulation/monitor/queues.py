"""Backlog and drops of the queues of a run, sampled: one rtnetlink dump a namespace, no process started."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from emulation.linux.netns import run_in
from emulation.linux.rtnetlink import attributes, open_socket, qdiscs
from emulation.network.links import LinkEnd

TCA_KIND, TCA_OPTIONS, TCA_STATS2, TCA_STATS_QUEUE = 1, 2, 7, 3
FIFO_LIMIT = struct.Struct("=I")  # struct tc_fifo_qopt
QUEUE_STATS = struct.Struct("=IIIII")  # struct gnet_stats_queue: qlen, backlog, drops, requeues, overlimits


@dataclass(frozen=True, slots=True)
class QueueUse:
    """Of all samples: the largest backlog (emulated bytes), its share of the queue's limit and its link; the share of
    samples that found a queue more than half full; drops by link while the watch was on; the
    largest backlog of all queues of a link together, by link ("node interface")."""

    samples: int
    largest_backlog_bytes: int
    largest_share: float
    largest_at: str
    half_full_percent: float
    drops: dict[str, int] = field(default_factory=dict)
    backlog_bytes: dict[str, int] = field(default_factory=dict)


class QueueWatch:
    """Reads every byte-limited queue of the shaped ends of links each `period_s`."""

    period_s = 0.25

    def __init__(self, ends: Sequence[LinkEnd]) -> None:
        """Opens a socket in each namespace. Raises NamespaceError, OSError."""
        self._sockets: dict[str, socket.socket] = {}
        self._names: dict[tuple[str, int], str] = {}
        shaped = [end for end in ends if end.shape is not None]
        for namespace in dict.fromkeys(end.namespace for end in shaped):
            links = {end.interface: f"{end.node} {end.interface}" for end in shaped if end.namespace == namespace}
            for index, interface in run_in(namespace, socket.if_nameindex):
                if interface in links:
                    self._names[namespace, index] = links[interface]
            self._sockets[namespace] = open_socket(namespace)
        self._first: dict[tuple[str, int], int] = {}
        self._last: dict[tuple[str, int], int] = {}
        self._samples = self._half_full = 0
        self._largest = (0, 0.0, "")
        self._backlog_bytes: dict[str, int] = {}

    def sample(self, now_s: float) -> None:
        """Read every queue once."""
        self._samples += 1
        half_full = False
        now_bytes: dict[str, int] = {}
        for namespace, opened in self._sockets.items():
            for index, handle, found in qdiscs(opened):
                link = self._names.get((namespace, index))
                if link is None or bytes(found[TCA_KIND]).rstrip(b"\0") != b"bfifo":
                    continue
                _, backlog, drops, _, _ = QUEUE_STATS.unpack_from(attributes(found[TCA_STATS2])[TCA_STATS_QUEUE])
                share = backlog / FIFO_LIMIT.unpack_from(found[TCA_OPTIONS])[0]
                half_full |= share > 0.5
                now_bytes[link] = now_bytes.get(link, 0) + backlog
                if backlog > self._largest[0]:
                    self._largest = (backlog, share, link)
                self._first.setdefault((link, handle), drops)
                self._last[link, handle] = drops
        self._half_full += half_full
        for link, backlog in now_bytes.items():
            self._backlog_bytes[link] = max(self._backlog_bytes.get(link, 0), backlog)

    def close(self) -> None:
        """Close the sockets."""
        for opened in self._sockets.values():
            opened.close()

    def use(self) -> QueueUse | None:
        """The figures; None without a sample or without a queue."""
        if not self._samples or not self._first:
            return None
        drops: dict[str, int] = {}
        for (link, handle), count in self._last.items():
            lost = count - self._first[link, handle]
            if lost > 0:
                drops[link] = drops.get(link, 0) + lost
        return QueueUse(
            self._samples, *self._largest, 100 * self._half_full / self._samples, drops, self._backlog_bytes
        )
