"""What every agent does: talk to the zygote, keep the run clock, report errors, end in time."""

import asyncio
import contextlib
import os
import signal
import socket
import time
import traceback
from collections.abc import Coroutine
from typing import Any

from emulation.agents.clock import AgentClock, new_event_loop
from emulation.agents.config import AgentConfig
from emulation.agents.lines import LineLink
from emulation.agents.wire import Message

SETTLE_S = 0.3
FLUSH_S = 0.2
PROGRESS_S = 0.5  # wall clock: for a human
HEARTBEAT_S = 1.0  # wall clock: a parent takes an agent that says nothing for several of them for frozen
CLOCK_TRIES, SAME_MOMENT_S = 5, 0.0001


class Agent:
    """Base of gateway, prefill and decode: `setup` before `ready`, `begin` at the start, `command` for the rest."""

    def __init__(self, name: str, config: AgentConfig) -> None:
        self.name = name
        self.config = config
        self.clock = AgentClock(config.time_dilation)
        self.realtime = False
        self._ended: asyncio.Event
        self._parent: LineLink
        self._tasks: set[asyncio.Task[None]] = set()
        self._exit_status = 0

    # What the three kinds of agent fill in.

    async def setup(self) -> None:
        """Open what must be open before the clock starts."""
        raise NotImplementedError

    def begin(self) -> None:
        """The run clock has its origin."""

    def command(self, message: Message) -> None:
        """A message from the parent other than `start` and `stop`."""
        self.error("command", f"unknown message {message}")

    def busy(self) -> bool:
        """Whether something is about to complete, so that `stop` is worth a short wait."""
        return False

    def partial_records(self) -> list[Message]:
        """Records of what is not complete, sent at the end."""
        return []

    # What they use.

    def emit(self, message: Message) -> None:
        """Send one line to the parent."""
        self._parent.send(message)

    def record(self, of: str, **values: Any) -> None:
        """Send one record to the parent."""
        self.emit({"type": "record", "of": of, **values})

    def error(self, where: str, reason: BaseException | str) -> None:
        """Report an error and go on; an exception comes with its traceback."""
        if isinstance(reason, BaseException):
            text = "".join(traceback.format_exception(type(reason), reason, reason.__traceback__))
        else:
            text = reason
        self.emit({"type": "error", "where": where, "text": text})

    def spawn(self, where: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the timers; what it raises becomes an `error` line."""

        async def guarded() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self.error(where, error)

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """Finish: the remaining records, `bye`, and out."""
        self._ended.set()

    @property
    def has_ended(self) -> bool:
        """Whether nothing is to follow."""
        return self._ended.is_set()

    def fail(self, where: str, reason: BaseException | str) -> None:
        """Report an error that the run cannot go on with, and finish."""
        self.error(where, reason)
        self._exit_status = 1
        self.end()

    # The life of the process.

    def run(self, parent: socket.socket) -> int:
        """Run until told to stop; the exit status of the process."""
        loop = new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._live(parent))
        finally:
            # a SIGTERM now has nothing left to interrupt, and must not reach for the loop's closed wake-up descriptor
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.set_wakeup_fd(-1)
            with contextlib.suppress(RuntimeError):
                loop.close()
        return self._exit_status

    async def _live(self, parent: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._parent = LineLink(parent, self._on_command, lambda reason: self.end())
        loop.set_exception_handler(self._on_unexpected)
        loop.add_signal_handler(signal.SIGTERM, self.end)
        setup = loop.create_task(self._set_up())
        await self._ended.wait()
        setup.cancel()
        try:
            for message in self.partial_records():
                self.emit(message)
        except Exception as error:
            self.error("partial records", error)
        lateness_s, cpu_s = self.clock.lateness.summary(), time.process_time()
        self.emit({"type": "bye", **self._clocks(), "timer_lateness_s": lateness_s, "cpu_s": cpu_s})
        self._parent.flush(FLUSH_S)
        for task in list(self._tasks):
            task.cancel()

    async def _set_up(self) -> None:
        try:
            await self.setup()
        except Exception as error:
            self.fail("setup", error)
        else:
            self.emit({"type": "ready", "realtime": self.realtime, "pid": os.getpid()})
            self._beat()

    def _beat(self) -> None:
        self.emit({"type": "heartbeat", **self._clocks()})
        asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)

    def _clocks(self) -> Message:
        """What this agent's run clock says, and the machine's clock at the same moment, for the parent to hold against
        its own; nothing before the start."""
        if not self.clock.started:
            return {}
        for _ in range(CLOCK_TRIES):
            before_s, run_s, after_s = time.monotonic(), self.clock.now_s(), time.monotonic()
            if after_s - before_s < SAME_MOMENT_S:  # else we were interrupted between the two
                break
        return {"run_s": run_s, "monotonic_s": (before_s + after_s) / 2}

    def _on_command(self, message: Message) -> None:
        try:
            kind = message.get("type")
            if kind == "start":
                self.clock.start(float(message["t0_monotonic_s"]))
                self.begin()
            elif kind == "stop":
                self.spawn("stop", self._settle())
            else:
                self.command(message)
        except Exception as error:
            self.error(f"message {message.get('type')!r}", error)

    async def _settle(self) -> None:
        deadline_s = time.monotonic() + SETTLE_S
        while self.busy() and time.monotonic() < deadline_s:
            await asyncio.sleep(0.005)
        self.end()

    def _on_unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.error("event loop", context.get("exception") or str(context.get("message")))
