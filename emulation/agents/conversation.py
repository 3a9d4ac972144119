"""What a prefill agent says to the controller of its requests, and what it hears: events, answers, grants."""

import asyncio
from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote

from emulation.agents.agent import Agent
from emulation.agents.config import AgentConfig, InstanceConfig
from emulation.agents.job import PrefillJob
from emulation.agents.northbound_client import GrantStream, NorthboundClient
from emulation.agents.wire import Message


class Listener(Protocol):
    """Who acts on what the controller says."""

    def placed(self, job: PrefillJob, decode: str, head_moves: bool) -> None:
        """It chose a decode instance, or named it again."""

    def undecided(self, job: PrefillJob) -> None:
        """It decides nothing before the KV is ready: it is to be told when it is."""

    def failed(self, job: PrefillJob, reason: str) -> None:
        """It refused an event, or did not answer."""


class Conversation:
    """One kept connection for events, and on circuits the stream of grants."""

    def __init__(self, agent: Agent, config: AgentConfig, instance: InstanceConfig, listener: Listener) -> None:
        self._agent, self._config, self._listener = agent, config, listener
        address = (instance.host_ip, config.controller_host, config.controller_port)
        self._northbound = NorthboundClient(*address)
        self._grants = GrantStream(*address, instance.name)

    @property
    def outstanding(self) -> int:
        """Events without an answer yet."""
        return self._northbound.outstanding

    async def open(self, on_grant: Callable[[Message], None], on_grants_lost: Callable[[str], None]) -> None:
        """Before the clock starts. NorthboundError or TimeoutError says why not."""
        await self._northbound.open()
        self._agent.spawn("northbound", self._northbound.run())
        if self._config.fabric_kind == "ocs":
            opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._agent.spawn("grants", self._grants.run(opened, on_grant, on_grants_lost))
            await opened

    def post(self, job: PrefillJob, event: str, body: Message) -> None:
        """An event of a request; of one that has failed nothing more is said."""
        if job.failed is not None:
            return
        posted_s = self._agent.clock.now_s()
        path = f"/v1/requests/{quote(job.request.id, safe='')}/{event}"
        answer = self._northbound.post(path, {**body, "at_s": posted_s})
        answer.add_done_callback(lambda future: self._on_answer(job, event, posted_s, future))

    def _on_answer(self, job: PrefillJob, event: str, posted_s: float, future: "asyncio.Future[Message]") -> None:
        if future.cancelled():
            return
        job.answered_s.append([event, self._agent.clock.now_s() - posted_s])
        failure = future.exception()
        if failure is not None:
            self._listener.failed(job, str(failure))
        elif event != "transfer-done" and job.failed is None:
            decode = future.result().get("decode")
            if event == "admitted":
                # A decode chosen this early is told again at the prefill's start, when there is KV to speak of.
                job.asked = job.asked or decode is not None
            elif decode is not None:
                self._listener.placed(job, str(decode), bool(future.result().get("head_moves")))
            elif event == "last-chunk-started":
                self._listener.undecided(job)
