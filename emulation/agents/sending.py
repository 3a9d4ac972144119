"""How the KV of a placed request leaves its prefill instance, whatever carries it."""

from collections.abc import Callable

from emulation.agents.agent import Agent
from emulation.agents.config import AgentConfig, InstanceConfig
from emulation.agents.decode_links import DecodeLinks
from emulation.agents.job import PrefillJob
from emulation.agents.kv_connections import KvConnections
from emulation.agents.ranked import RankedTransfers
from emulation.agents.transfer import KvConnection
from emulation.agents.wire import KvPart, Message


class KvSender:
    """Connections, levels, and the end of each transfer. `on_failed(job, reason)` hears of one that cannot go on;
    `to_arbiter` takes a message for the arbiter (`routing: srpt`)."""

    def __init__(
        self,
        agent: Agent,
        config: AgentConfig,
        instance: InstanceConfig,
        *,
        on_failed: Callable[[PrefillJob, str], None],
        to_arbiter: Callable[[Message], None],
    ) -> None:
        self._agent, self._config, self._instance = agent, config, instance
        self._on_failed = on_failed
        self._connections = KvConnections(config, instance)
        self._ranked = RankedTransfers(agent.clock, to_arbiter) if config.srpt is not None else None
        self._decodes = DecodeLinks(config, instance, agent.error) if config.fabric_kind == "none" else None

    async def open(self) -> None:
        """What must stand before the clock starts, kept KV connections apart."""
        if self._decodes is not None:
            await self._decodes.open()

    async def connect(self, decode: str) -> None:
        """Open the kept connections to a decode. OSError, TimeoutError, RuntimeError or ValueError says why not."""
        await self._connections.connect(decode)

    def start(self, job: PrefillJob, parts: list[KvPart]) -> None:
        """These parts may move from now on."""
        self._agent.spawn("transfer", self._send(job, parts))

    def on_levels(self, message: Message) -> None:
        """The arbiter's word. KeyError, TypeError or ValueError: it is malformed, or nobody asked for it."""
        if self._ranked is None:
            raise ValueError(f"levels, and this fabric has none: {message}")
        self._ranked.on_levels(message)

    def finish(self, job: PrefillJob) -> None:
        """The transfer is over, one way or the other: its records, and what belongs to it alone is closed."""
        if job.transfer is None:
            return
        if self._ranked is not None:
            self._ranked.ended(job.request.id)
        for record in job.transfer.sender_records(job.request.id, self._instance.name, str(job.decode)):
            self._agent.emit(record)
        if self._connections.per_transfer:
            for connection in job.transfer.connections:
                connection.close()

    def announce(self, job: PrefillJob, at_s: float) -> None:
        """On the ceiling: the decode instance hears that all KV exists."""
        if self._decodes is None:
            return
        message = {"index": job.index, "id": job.request.id, "head_moves": job.head_moves, "at_s": at_s}
        try:
            self._decodes.send(str(job.decode), {"type": "kv_complete", **message})
        except ConnectionError as error:
            self._on_failed(job, str(error))

    async def _send(self, job: PrefillJob, parts: list[KvPart]) -> None:
        if job.transfer is None or job.decode is None:
            raise RuntimeError(f"{job.request.id} has no decode instance yet")
        connections: list[KvConnection] = []
        try:
            if self._decodes is None:
                connections = await self._connections.for_transfer(job.decode, job.request.id)
            if self._ranked is not None and job.failed is None:
                await self._ranked.admit(job.request.id, job.decode, job.transfer, connections)
        except (OSError, TimeoutError, RuntimeError, ValueError) as error:
            self._on_failed(job, str(error))
        else:
            for part in parts:
                job.transfer.send(part, connections)
        if job.failed is not None:
            if self._ranked is not None:
                self._ranked.ended(job.request.id)
            if self._connections.per_transfer:
                for connection in connections:
                    connection.close()
