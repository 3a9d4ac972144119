"""The gateway holds the clients: it sends requests at their intended arrival and sees first tokens come back."""

import asyncio
import contextlib
from dataclasses import asdict, dataclass

from emulation.agents.agent import PROGRESS_S, Agent
from emulation.agents.arbiter import Arbiter
from emulation.agents.config import AgentConfig
from emulation.agents.lines import LineLink, connect
from emulation.agents.wire import Message
from inputs.plugin_deadline import LIMIT_S, decides_within
from inputs.plugin_fault import PluginFault
from inputs.plugin_file import PluginError, file_of, keep, sha256
from workloads.prefill_choice import load as load_prefill_choice
from workloads.prefill_router import PrefillRouter
from workloads.request import Request

CONNECT_TIMEOUT_S = 15.0


@dataclass(slots=True)
class Offered:
    """One request as its client sees it; times are run-clock seconds."""

    index: int
    request: Request
    prefill: str | None = None
    sent_s: float | None = None
    first_token_s: float | None = None
    status: str = ""
    reason: str = ""


def keep_prefill_choice(config: AgentConfig) -> None:
    """Read the plug-in that chooses prefill instances, for the gateway to load: afterwards it may be out of reach.

    Raises PluginError where it cannot be read or has changed.
    """
    choice = config.prefill_choice
    if choice.sha256 is not None:
        path = file_of(choice.rule)
        keep(path)
        if sha256(path) != choice.sha256:
            raise PluginError(f"{path} has changed since the run began: its SHA-256 was {choice.sha256}")


class GatewayAgent(Agent):
    """Open-loop clients: a request leaves at its arrival whatever became of the ones before it.

    It is over, and exits, when every request is completed or failed, or `drain_s` after the last arrival; what is
    outstanding then is `unfinished`.
    """

    def __init__(self, name: str, config: AgentConfig) -> None:
        super().__init__(name, config)
        self._offered = [Offered(index, request) for index, request in enumerate(config.requests)]
        self._offered.sort(key=lambda offered: offered.request.arrival_s)
        self._by_id = {offered.request.id: offered for offered in self._offered}
        if len(self._by_id) < len(self._offered):
            raise ValueError("two requests have the same id: every one needs its own")
        self._prefills: dict[str, LineLink] = {}
        self._links: list[LineLink] = []
        self._arbiter: Arbiter | None = None
        self._next = 0
        self._done = 0
        self._failed = 0

    async def setup(self) -> None:
        """Connect to every instance. A user's own prefill choice is loaded here, where rights are given up."""
        choice = self.config.prefill_choice
        self._router = PrefillRouter(load_prefill_choice(choice.rule, choice.seed), self.config.timing)
        if self.config.srpt is not None:
            self._arbiter = Arbiter(self.config.srpt, self._tell_sender, asyncio.get_running_loop().call_later)
        await asyncio.gather(*(self._connect(name) for name in self.config.instances))

    async def _connect(self, name: str) -> None:
        instance = self.config.instances[name]
        peer = (instance.host_ip, self.config.request_port)
        sock = await connect(self.config.gateway.host_ip, peer, CONNECT_TIMEOUT_S)
        link = LineLink(
            sock, lambda message: self._on_message(name, message), lambda reason: self._on_lost(name, reason)
        )
        link.send({"type": "hello", "role": "gateway", "name": self.name})
        self._links.append(link)
        if instance.role == "prefill":
            self._prefills[name] = link

    def begin(self) -> None:
        """Arm the first arrival and the end of the drain."""
        self._report()
        if not self._offered:
            self.end()
            return
        self._arm()
        self.clock.at(self._offered[-1].request.arrival_s + self.config.drain_s, self._drained)

    # -- arrivals -----------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._next < len(self._offered):
            self.clock.at(self._offered[self._next].request.arrival_s, self._arrive)

    def _arrive(self, now_s: float) -> None:
        while self._next < len(self._offered) and self._offered[self._next].request.arrival_s <= now_s:
            offered = self._offered[self._next]
            self._next += 1
            self._send(offered)
            if self.has_ended:
                return
        self._arm()

    def _send(self, offered: Offered) -> None:
        alive = [name for name in self.config.tenants[offered.request.tenant].prefills if name in self._prefills]
        if not alive:
            self._settle_request(offered, "failed", "no prefill instance of the tenant is connected")
            return
        try:
            with self._watched():
                offered.prefill = self._router.send(offered.request, alive, self.clock.now_s())
        except PluginFault as fault:
            self.fail("prefill choice", str(fault))
            return
        offered.sent_s = self.clock.now_s()
        self._prefills[offered.prefill].send({"type": "request", "index": offered.index, **asdict(offered.request)})

    def _watched(self) -> contextlib.AbstractContextManager[object]:
        """A user's own choice may not take long: every other client waits for it."""
        rule = self.config.prefill_choice.rule
        return decides_within(LIMIT_S, f"prefill choice {rule}") if ":" in rule else contextlib.nullcontext()

    # -- answers ------------------------------------------------------------------------------------------------

    def _tell_sender(self, prefill: str, message: Message) -> None:
        if prefill in self._prefills:
            self._prefills[prefill].send(message)

    def _on_message(self, instance: str, message: Message) -> None:
        if self._arbiter is not None and message.get("type") in Arbiter.KINDS:
            try:
                self._arbiter.on_message(instance, message)
            except (KeyError, TypeError, ValueError) as error:
                self.error(f"message from {instance}", error)
            return
        offered = self._by_id.get(str(message.get("id")))
        if offered is None:
            self.error(f"message from {instance}", f"unknown request: {message}")
        elif offered.status:
            if message.get("type") != "failed" or offered.status == "completed":
                self.error(f"message from {instance}", f"{offered.request.id} is {offered.status} already: {message}")
        elif message["type"] == "first_token":
            offered.first_token_s = self.clock.now_s()
            self._settle_request(offered, "completed", "")
        elif message["type"] == "failed":
            self._settle_request(offered, "failed", f"{instance}: {message['reason']}")
        else:
            self.error(f"message from {instance}", f"unknown message {message}")

    def _on_lost(self, instance: str, reason: str) -> None:
        self.error(f"link to {instance}", reason)
        if self._prefills.pop(instance, None) is None:
            return
        if self._arbiter is not None:
            self._arbiter.lost(instance)
        for offered in self._offered[: self._next]:
            if offered.prefill == instance and not offered.status:
                self._settle_request(offered, "failed", f"link to {instance}: {reason}")

    def _settle_request(self, offered: Offered, status: str, reason: str) -> None:
        offered.status, offered.reason = status, reason
        if offered.prefill is not None:
            self._router.ended(offered.request.id, self.clock.now_s(), prefilled=status == "completed")
        if status == "completed":
            self._done += 1
        elif status == "failed":
            self._failed += 1
        self.emit(self._request_record(offered))
        if self._done + self._failed == len(self._offered):
            self.end()

    # -- the end ------------------------------------------------------------------------------------------------

    def _drained(self, now_s: float) -> None:
        self.end()

    def partial_records(self) -> list[Message]:
        """What is outstanding is unfinished; the progress line is the final count."""
        records = []
        for offered in self._offered:
            if not offered.status:
                offered.status = "unfinished"
                offered.reason = "never sent" if offered.sent_s is None else "no first token before the end of the run"
                records.append(self._request_record(offered))
        return [*records, self._progress()]

    def _request_record(self, offered: Offered) -> Message:
        request = offered.request
        return {
            "type": "record",
            "of": "request",
            "id": request.id,
            "index": offered.index,
            "tenant": request.tenant,
            "warmup": request.warmup,
            "arrival_s": request.arrival_s,
            "sent_s": offered.sent_s,
            "lag_s": None if offered.sent_s is None else offered.sent_s - request.arrival_s,
            "prefill": offered.prefill,
            "first_token_s": offered.first_token_s,
            "status": offered.status,
            "reason": offered.reason,
        }

    def _progress(self) -> Message:
        return {"type": "progress", "sent": self._next, "done": self._done, "failed": self._failed}

    def _report(self) -> None:
        self.emit(self._progress())
        asyncio.get_running_loop().call_later(PROGRESS_S, self._report)
