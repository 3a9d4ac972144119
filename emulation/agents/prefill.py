"""A prefill instance: a queue of timed plans, the four events of Algorithm 1, and the KV that leaves it."""

import asyncio
import socket

from emulation.agents.agent import PROGRESS_S, Agent
from emulation.agents.config import AgentConfig
from emulation.agents.conversation import Conversation
from emulation.agents.job import PrefillJob, demand
from emulation.agents.lines import CLOSED, LineLink, listen
from emulation.agents.outgoing import OutgoingTransfer
from emulation.agents.sending import KvSender
from emulation.agents.wire import KvPart, Message
from workloads.serving import KvStream, LastChunkStarted, PrefillEnded, PrefillQueue, PrefillStarted, kv_due_s


class PrefillAgent(Agent):
    """Timers follow the plan; everything that talks to somebody else happens beside them."""

    def __init__(self, name: str, config: AgentConfig) -> None:
        super().__init__(name, config)
        self.instance = config.instance(name, "prefill")
        self._queue = PrefillQueue(config.timing, config.model.layers)
        self._jobs: dict[str, PrefillJob] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reported = (0, 0)
        self._gateway: LineLink | None = None
        self._links: set[LineLink] = set()
        self._sender = KvSender(self, config, self.instance, on_failed=self.failed, to_arbiter=self._to_gateway)
        self._controller = Conversation(self, config, self.instance, self)

    def begin(self) -> None:
        """Report what is in flight, for a human."""
        self._report()

    def _report(self) -> None:
        transfers = sum(job.transfer is not None and not job.complete and not job.failed for job in self._jobs.values())
        circuits = sum(told[3] is None for job in self._jobs.values() if not job.failed for told in job.told_live)
        if (transfers, circuits) != self._reported:
            self._reported = (transfers, circuits)
            self.emit({"type": "progress", "transfers": transfers, "circuits": circuits})
        asyncio.get_running_loop().call_later(PROGRESS_S, self._report)

    # -- before the clock ---------------------------------------------------------------------------------------

    async def setup(self) -> None:
        """Listen for the gateway; open the northbound and, on circuits, the stream of grants."""
        listen(self.instance.host_ip, self.config.request_port, self._accept)
        await self._controller.open(self._on_grant, self._on_grants_lost)
        await self._sender.open()

    def command(self, message: Message) -> None:
        """`connect`: open the kept KV connections to a decode and say so."""
        if message.get("type") == "connect":
            self.spawn("connect", self._connect_kv(str(message["decode"])))
        else:
            super().command(message)

    async def _connect_kv(self, decode: str) -> None:
        error = None
        try:
            await self._sender.connect(decode)
        except (OSError, TimeoutError, RuntimeError, ValueError) as failure:
            error = str(failure)
        self.emit({"type": "connected", "decode": decode, "ok": error is None, "error": error})

    # -- the host network ---------------------------------------------------------------------------------------

    def _accept(self, sock: socket.socket, peer: str) -> None:
        def on_message(message: Message) -> None:
            try:
                if message["type"] == "hello":
                    self._gateway = link
                elif message["type"] == "request":
                    self._on_request(int(message["index"]), message)
                elif message["type"] == "kv_levels":
                    self._sender.on_levels(message)
                else:
                    raise ValueError(f"unknown message {message}")
            except (KeyError, IndexError, TypeError, ValueError) as error:
                self.error(f"message from {peer}", error)

        def on_lost(reason: str) -> None:
            self._links.discard(link)
            if not reason.startswith(CLOSED):
                self.error(f"link to {peer}", reason)

        link = LineLink(sock, on_message, on_lost)
        self._links.add(link)

    def _to_gateway(self, message: Message) -> None:
        if self._gateway is not None:  # without it the run is over; who waits for its answer says so
            self._gateway.send(message)

    def _on_request(self, index: int, message: Message) -> None:
        request = self.config.requests[index]
        if request.id != message["id"]:
            raise ValueError(f"request {index} is {message['id']!r} at the gateway and {request.id!r} here")
        now_s = self.clock.now_s()
        job = PrefillJob(index, request, now_s)
        self._jobs[request.id] = job
        # Admitted goes out before submit, which may start the prefill at once.
        self._controller.post(job, "admitted", demand(request, self.name, self.config))
        self._queue.submit(request, now_s)
        self._advance(now_s)

    # -- the plan -----------------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for event in self._queue.advance(now_s):
            job = self._jobs[event.request.id]
            if isinstance(event, PrefillStarted):
                self._prefill_started(job, event)
            elif isinstance(event, LastChunkStarted):
                self._last_chunk_started(job, event)
            else:
                self._prefill_ended(job, event)
        next_s = self._queue.next_s()
        if next_s is not None:
            self._timer = self.clock.at(next_s, self._advance)

    def _prefill_started(self, job: PrefillJob, event: PrefillStarted) -> None:
        job.plan, job.start_s, job.start_actual_s = event.plan, event.start_s, self.clock.now_s()
        job.asked = self.config.transfer == "layerwise"
        self._controller.post(job, "prefill-started", {"predicted_end_s": event.predicted_end_s})

    def _last_chunk_started(self, job: PrefillJob, event: LastChunkStarted) -> None:
        job.asked = True
        self._controller.post(job, "last-chunk-started", {"predicted_end_s": event.predicted_end_s})
        if self.config.fabric_kind != "ocs" or job.plan is None or job.start_s is None:
            return
        if event.predicted_end_s > job.start_s + job.plan.duration_s:
            # It will be over sooner than the controller was told, and this is when its KV should be moving.
            model, rate = self.config.model, self.config.kv_rate_bytes_per_s
            due_s = kv_due_s(job.plan, model, self.config.transfer, job.start_s, rate)
            self.clock.at(due_s, lambda now_s: self._kv_ready(job))

    def _kv_ready(self, job: PrefillJob) -> None:
        """Tell the controller again of the last chunk, once: its KV is ready and no circuit is live for it."""
        granted = {grant["part"] for grant, _ in job.early_grants} | {told[0] for told in job.told_live}
        if job.plan is None or job.start_s is None or job.told_ready or granted & {"tail", "all"}:
            return
        job.told_ready = True
        self._controller.post(job, "last-chunk-started", {"predicted_end_s": job.start_s + job.plan.duration_s})

    def _prefill_ended(self, job: PrefillJob, event: PrefillEnded) -> None:
        job.end_s, job.end_actual_s = event.at_s, self.clock.now_s()
        if job.transfer is not None and job.transfer.end_actual_s is not None:
            # its timer for the last layer is due at the same instant, and may have been first
            job.end_actual_s = min(job.end_actual_s, job.transfer.end_actual_s)
        if job.undecided:
            self._kv_ready(job)
        if job.transfer is not None:
            job.transfer.advance(max(job.end_actual_s, event.at_s))
        self._record_if_over(job)

    # -- the controller -----------------------------------------------------------------------------------------

    def undecided(self, job: PrefillJob) -> None:
        """The controller decides nothing before the KV is ready: it is told when it is."""
        if job.undecided:
            self.failed(job, "the controller chose no decode instance, though the KV is ready")
        job.undecided = True
        if job.end_actual_s is not None:
            self._kv_ready(job)

    def placed(self, job: PrefillJob, decode: str, head_moves: bool) -> None:
        """The controller chose a decode instance, or named it again: its KV may be sent."""
        if job.decode is not None:
            if (decode, head_moves) != (job.decode, job.head_moves):
                self.failed(job, f"the controller moved it from {job.decode} to {decode}, head_moves {head_moves}")
            return
        if job.plan is None or job.start_s is None or decode not in self.config.instances:
            self.failed(job, f"the controller chose decode {decode!r} too early, or it does not exist")
            return
        job.decode, job.head_moves, job.decided_s = decode, head_moves, self.clock.now_s()
        job.transfer = OutgoingTransfer(
            job.index,
            KvStream(job.plan, self.config.model, self.config.transfer, job.start_s, head_moves),
            clock=self.clock,
            scale=self.config.scale,
            on_part_done=lambda part: self._part_done(job, part),
            on_lost=lambda reason: self.failed(job, reason),
        )
        if self.config.fabric_kind == "ocs":
            for grant, told_s in job.early_grants:
                self._granted(job, grant, told_s)
        else:
            self._sender.start(job, list(job.transfer.parts))

    def _on_grant(self, grant: Message) -> None:
        now_s = self.clock.now_s()
        job = self._jobs.get(str(grant["request"]))
        if job is None:
            self.error("grants", f"a grant for an unknown request: {grant}")
        elif job.failed is None and job.transfer is None:
            # The grant overtook the answer that names the decode: they come over two connections.
            job.early_grants.append((grant, now_s))
        elif job.failed is None:
            self._granted(job, grant, now_s)

    def _granted(self, job: PrefillJob, grant: Message, told_s: float) -> None:
        part = KvPart[str(grant["part"]).upper()]
        if job.transfer is None or grant["decode"] != job.decode or part not in job.transfer.parts:
            self.failed(job, f"a grant that does not fit: {grant}, decode {job.decode}")
            return
        job.told_live.append([part.label, float(grant["live_s"]), told_s, None])
        self._sender.start(job, [part])

    def _on_grants_lost(self, reason: str) -> None:
        self.error("grants", reason)
        for job in list(self._jobs.values()):
            if job.asked and not job.complete:
                self.failed(job, f"its grant may be lost: {reason}")

    # -- the transfer -------------------------------------------------------------------------------------------

    def _part_done(self, job: PrefillJob, part: KvPart) -> None:
        now_s = self.clock.now_s()
        for told in job.told_live:
            if told[0] == part.label:
                told[3] = now_s
        self._controller.post(job, "transfer-done", {"part": part.label, "failed": False})
        if not job.complete:
            return
        self._sender.finish(job)
        self._sender.announce(job, now_s)
        self._record_if_over(job)

    def failed(self, job: PrefillJob, reason: str) -> None:
        """The request is lost: tell the gateway and the controller, free what it holds. Its prefill runs on."""
        if job.failed is not None:
            return
        if not job.complete:
            self._controller.post(job, "transfer-done", {"part": "all", "failed": True})
        job.failed = reason
        self.error(f"request {job.request.id}", reason)
        if job.transfer is not None and not job.complete:
            job.transfer.abort()
            self._sender.finish(job)
        if self._gateway is not None:
            self._gateway.send({"type": "failed", "id": job.request.id, "reason": reason})
        self._record_if_over(job)

    # -- records ------------------------------------------------------------------------------------------------

    def busy(self) -> bool:
        """Whether an acknowledgement or an answer is still to come."""
        moving = any(
            job.transfer is not None and not job.complete and job.failed is None for job in self._jobs.values()
        )
        return moving or self._controller.outstanding > 0

    def partial_records(self) -> list[Message]:
        """Requests that are not over, as far as they got."""
        records = []
        for job in self._jobs.values():
            if not job.recorded:
                if job.transfer is not None and not job.complete and job.failed is None:
                    records += job.transfer.sender_records(job.request.id, self.name, str(job.decode))
                records.append(job.record(self.name))
        return records

    def _record_if_over(self, job: PrefillJob) -> None:
        if job.end_actual_s is not None and (job.complete or job.failed is not None) and not job.recorded:
            self.emit(job.record(self.name))
