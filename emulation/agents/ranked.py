"""The sender's side of `routing: srpt`: a level from the arbiter before the first byte, and word of what remains."""

import asyncio
from collections.abc import Callable, Sequence

from emulation.agents.clock import AgentClock
from emulation.agents.outgoing import OutgoingTransfer
from emulation.agents.transfer import KvConnection
from emulation.agents.wire import Message

#: Wall seconds. A transfer of the demo's median takes 120 ms: word of it goes out several times while it moves.
REPORT_S = 0.025
#: A level is asked for this long before the first byte exists: the answer takes a tenth of it.
ASK_AHEAD_S = 0.002
ANSWER_TIMEOUT_S = 5.0


class RankedTransfers:
    """Transfers of one prefill instance that the arbiter ranks. `send` takes a message for it."""

    def __init__(self, clock: AgentClock, send: Callable[[Message], None]) -> None:
        self._clock, self._send = clock, send
        self._moving: dict[str, tuple[str, OutgoingTransfer, Sequence[KvConnection]]] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def admit(
        self, request_id: str, decode: str, transfer: OutgoingTransfer, connections: Sequence[KvConnection]
    ) -> None:
        """Until its packets carry a level, shortly before its first byte exists. TimeoutError: no answer."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep((transfer.first_byte_s - self._clock.now_s()) * self._clock.time_dilation - ASK_AHEAD_S)
        answered = self._waiting[request_id] = loop.create_future()
        self._moving[request_id] = decode, transfer, connections
        self._tell(request_id)
        if self._timer is None:
            self._timer = loop.call_later(REPORT_S, self._report)
        try:
            await asyncio.wait_for(answered, ANSWER_TIMEOUT_S)
        except asyncio.TimeoutError as error:
            self.ended(request_id)
            raise TimeoutError(f"the arbiter gave {request_id} no level in {ANSWER_TIMEOUT_S} s") from error
        finally:
            self._waiting.pop(request_id, None)

    def on_levels(self, message: Message) -> None:
        """The arbiter's word. KeyError, TypeError or ValueError: it is malformed."""
        request_id = str(message["id"])
        if request_id not in self._moving:  # it ended while the word was on its way
            return
        *_, connections = self._moving[request_id]
        for connection, level in zip(connections, message["levels"], strict=True):
            connection.mark(int(level))
        answered = self._waiting.get(request_id)
        if answered is not None and not answered.done():
            answered.set_result(None)

    def ended(self, request_id: str) -> None:
        """The transfer is complete, or will never be."""
        if self._moving.pop(request_id, None) is not None:
            self._send({"type": "kv_ended", "id": request_id})
        answered = self._waiting.get(request_id)
        if answered is not None and not answered.done():
            answered.set_result(None)

    def _tell(self, request_id: str) -> None:
        decode, transfer, connections = self._moving[request_id]
        left = [max(transfer.emulated_bytes - connection.delivered_bytes, 0) for connection in connections]
        self._send({"type": "kv_remaining", "id": request_id, "decode": decode, "bytes": left})

    def _report(self) -> None:
        self._timer = None
        for request_id in self._moving:
            self._tell(request_id)
        if self._moving:
            self._timer = asyncio.get_running_loop().call_later(REPORT_S, self._report)
