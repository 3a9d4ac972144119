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

#: Wall seconds. A new transfer waits for its level; that others overtook each other may wait until several have, since
#: ranking a hundred flows takes a millisecond.
SETTLE_S = 0.01


@dataclass(slots=True)
class _Transfer:
    prefill: str
    levels: list[int]


class Arbiter:
    """Ranks every rank of every transfer, and tells those senders whose levels change. `send(prefill, message)`;
    `call_later(seconds, callback)` as an event loop has it."""

    KINDS = ("kv_remaining", "kv_ended")

    def __init__(
        self,
        fabric: SrptConfig,
        send: Callable[[str, Message], None],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._racks = fabric.racks
        pools = {(way, rack): fabric.uplinks for rack in set(fabric.racks.values()) for way in ("up", "down")}
        self._ranks: Ranks[tuple[str, int]] = Ranks(pools)
        self._send = send
        self._call_later = call_later
        self._settling = False
        self._transfers: dict[str, _Transfer] = {}

    def on_message(self, prefill: str, message: Message) -> None:
        """KeyError, TypeError or ValueError: the message is malformed."""
        request_id = str(message["id"])
        if message["type"] == "kv_ended":
            self._end(request_id)
            self._settle_soon()
            return
        remaining_bytes = [int(size) for size in message["bytes"]]
        if request_id not in self._transfers:
            self._start(prefill, request_id, str(message["decode"]), remaining_bytes)
            self._tell()
        elif any([self._ranks.remaining((request_id, rank), size) for rank, size in enumerate(remaining_bytes)]):
            self._settle_soon()

    def lost(self, prefill: str) -> None:
        """A sender is gone, and what it sent with it."""
        for request_id in [name for name, transfer in self._transfers.items() if transfer.prefill == prefill]:
            self._end(request_id)
        self._settle_soon()

    def _start(self, prefill: str, request_id: str, decode: str, remaining_bytes: list[int]) -> None:
        for rank, size in enumerate(remaining_bytes):
            self._ranks.start((request_id, rank), list(self._path(prefill, decode, rank)), size)
        self._transfers[request_id] = _Transfer(prefill, [-1] * len(remaining_bytes))

    def _end(self, request_id: str) -> None:
        transfer = self._transfers.pop(request_id, None)
        for rank in range(len(transfer.levels) if transfer else 0):
            self._ranks.end((request_id, rank))

    def _path(self, prefill: str, decode: str, rank: int) -> Iterator[Hashable]:
        yield "out", prefill, rank
        if self._racks[prefill] != self._racks[decode]:
            yield "up", self._racks[prefill]
            yield "down", self._racks[decode]
        yield "in", decode, rank

    def _settle_soon(self) -> None:
        if not self._settling:
            self._settling = True
            self._call_later(SETTLE_S, self._settle)

    def _settle(self) -> None:
        self._settling = False
        self._tell()

    def _tell(self) -> None:
        touched: dict[str, None] = {}
        for (request_id, rank), level in self._ranks.rank().items():
            self._transfers[request_id].levels[rank] = level
            touched[request_id] = None
        for request_id in touched:
            transfer = self._transfers[request_id]
            self._send(transfer.prefill, {"type": "kv_levels", "id": request_id, "levels": transfer.levels})
