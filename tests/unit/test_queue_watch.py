"""What the watch of queues keeps of its samples, from dumps by hand."""

import struct

import pytest

from emulation.monitor import queues
from emulation.monitor.queues import FIFO_LIMIT, QUEUE_STATS, QueueWatch


def attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def bfifo(backlog: int, drops: int = 0, limit: int = 60_000) -> dict[int, memoryview]:
    stats = attribute(queues.TCA_STATS_QUEUE, QUEUE_STATS.pack(0, backlog, drops, 0, 0))
    return {
        queues.TCA_KIND: memoryview(b"bfifo\0"),
        queues.TCA_OPTIONS: memoryview(FIFO_LIMIT.pack(limit)),
        queues.TCA_STATS2: memoryview(stats),
    }


@pytest.fixture
def watched(monkeypatch):
    """A watch of one link with two queues; `watched(dump)` takes a sample of it."""
    watch = QueueWatch(())
    watch._sockets = {"ns": None}  # type: ignore[dict-item]
    watch._names = {("ns", 7): "kl0 ks0"}

    def sample(*dump: tuple[int, int, dict[int, memoryview]]) -> QueueWatch:
        monkeypatch.setattr(queues, "qdiscs", lambda opened: iter(dump))
        watch.sample(0.0)
        return watch

    return sample


def test_a_links_backlog_is_that_of_all_its_queues_at_one_time(watched):
    watched((7, 0x10, bfifo(10_000)), (7, 0x11, bfifo(20_000)))
    watch = watched((7, 0x10, bfifo(25_000)), (7, 0x11, bfifo(1_000)))
    use = watch.use()
    assert use.backlog_bytes == {"kl0 ks0": 30_000}
    assert (use.largest_backlog_bytes, use.largest_at) == (25_000, "kl0 ks0")


def test_an_idle_link_has_a_backlog_of_nothing_and_a_strange_one_none(watched):
    use = watched((7, 0x10, bfifo(0)), (8, 0x10, bfifo(5))).use()
    assert use.backlog_bytes == {"kl0 ks0": 0}
