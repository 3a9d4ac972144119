"""The arbiter of `routing: srpt`, at the gateway: hears what remains of every transfer, says which level each has.

Messages, over the kept links between prefill agents and gateway (JSON lines on the host network):

    prefill -> gateway  {"type": "kv_remaining", "id", "decode", "bytes": [of each rank]}   the first one starts it
                        {"type": "kv_ended", "id"}
    gateway -> prefill  {"type": "kv_levels", "id", "levels": [of each rank]}
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from emulation.agents.config import SrptConfig
from emulation.agents.ranks import Ranks
from emulation.agents.wire import Message


@dataclass(slots=True)
class _Transfer:
    prefill: str
    levels: list[int]


class Arbiter:
    """Ranks every rank of every transfer, and tells those senders whose levels change. `send(prefill, message)`."""

    KINDS = ("kv_remaining", "kv_ended")

    def __init__(self, fabric: SrptConfig, send: Callable[[str, Message], None]) -> None:
        self._racks = fabric.racks
        pools = {(way, rack): fabric.uplinks for rack in set(fabric.racks.values()) for way in ("up", "down")}
        self._ranks: Ranks[tuple[str, int]] = Ranks(pools)
        self._send = send
        self._transfers: dict[str, _Transfer] = {}

    def on_message(self, prefill: str, message: Message) -> None:
        """KeyError, TypeError or ValueError: the message is malformed."""
        request_id = str(message["id"])
        if message["type"] == "kv_ended":
            changed = self._end(request_id)
        else:
            changed = self._hear(prefill, request_id, str(message["decode"]), [int(size) for size in message["bytes"]])
        if changed:
            self._tell(self._ranks.rank())

    def lost(self, prefill: str) -> None:
        """A sender is gone, and what it sent with it."""
        for request_id in [name for name, transfer in self._transfers.items() if transfer.prefill == prefill]:
            self._end(request_id)
        self._tell(self._ranks.rank())

    def _hear(self, prefill: str, request_id: str, decode: str, remaining_bytes: list[int]) -> bool:
        if request_id in self._transfers:
            return any([self._ranks.remaining((request_id, r), size) for r, size in enumerate(remaining_bytes)])
        for rank, size in enumerate(remaining_bytes):
            self._ranks.start((request_id, rank), list(self._path(prefill, decode, rank)), size)
        self._transfers[request_id] = _Transfer(prefill, [-1] * len(remaining_bytes))
        return True

    def _end(self, request_id: str) -> bool:
        transfer = self._transfers.pop(request_id, None)
        for rank in range(len(transfer.levels) if transfer else 0):
            self._ranks.end((request_id, rank))
        return transfer is not None

    def _path(self, prefill: str, decode: str, rank: int) -> Iterator[Hashable]:
        yield "out", prefill, rank
        if self._racks[prefill] != self._racks[decode]:
            yield "up", self._racks[prefill]
            yield "down", self._racks[decode]
        yield "in", decode, rank

    def _tell(self, levels: dict[tuple[str, int], int]) -> None:
        touched: dict[str, None] = {}
        for (request_id, rank), level in levels.items():
            self._transfers[request_id].levels[rank] = level
            touched[request_id] = None
        for request_id in touched:
            transfer = self._transfers[request_id]
            self._send(transfer.prefill, {"type": "kv_levels", "id": request_id, "levels": transfer.levels})
