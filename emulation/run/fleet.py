"""The agents of a run, seen from the parent: one zygote process, JSON lines down and up."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from emulation.linux.children import end, last_lines, spawn
from emulation.linux.ledger import RunLedger
from emulation.linux.processes import Stillness
from emulation.linux.procfs import children, is_stopped

Message = dict[str, Any]
#: Agents that are ready speak every second; one that says nothing for this long is frozen.
SILENCE_S = 4.0
CATCH_UP_S = 0.3
#: A command that the parent of the agents does not take within this time never arrives.
WRITE_TIMEOUT_S = 5.0


class FleetError(RuntimeError):
    """An agent died, answered with an error, or did not answer: says which."""


class Fleet:
    """All agents. `records` and `errors` fill while `wait` runs; `progress` is the gateway's last word."""

    def __init__(self, config: Mapping[str, Any], *, log: Path) -> None:
        self._config = config
        self.names: list[str] = [config["gateway"]["name"], *(instance["name"] for instance in config["instances"])]
        self._log = log
        self._zygote: subprocess.Popen[bytes] | None = None
        self._inbox: queue.Queue[Message] = queue.Queue()
        self.records: list[Message] = []
        self.errors: list[Message] = []
        self.exits: dict[str, Any] = {}
        self.byes: dict[str, Message] = {}
        self.progress: dict[str, Message] = {}
        #: Agent -> (CLOCK_MONOTONIC, its run clock at the same moment) for each time it said so.
        self.clock_readings: dict[str, list[tuple[float, float]]] = {}
        self._pids: dict[str, int] = {}
        self._heard_s: dict[str, float] = {}
        self._stopping = False
        self._ready = False

    def start(self, ledger: RunLedger) -> None:
        """Fork every agent."""
        command = [sys.executable, "-E", "-s", "-m", "emulation.agents.zygote"]
        self._zygote = spawn(command, ledger=ledger, log=self._log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._write(self._config)
        threading.Thread(target=self._read, name="agents", daemon=True).start()

    @property
    def zygote_pid(self) -> int | None:
        """Process id of the agents' parent while it runs."""
        return self._zygote.pid if self._zygote is not None and self._zygote.poll() is None else None

    def pids(self) -> dict[str, int]:
        """Name -> process id of the agents that are ready."""
        return dict(self._pids)

    def send(self, agent: str, message: Mapping[str, Any]) -> None:
        """One command to one agent."""
        self._write({"agent": agent, **message})

    def broadcast(self, message: Mapping[str, Any]) -> None:
        """One command to every agent."""
        self._write(message)

    def silent(self) -> list[str]:
        """A sentence for the agents that were ready and have said nothing for too long."""
        if not self._quiet_s():
            return []
        time.sleep(CATCH_UP_S)  # we may have been the one that was stopped: what they said meanwhile is being read
        if not (quiet_s := self._quiet_s()):
            return []
        if len(quiet_s) == len(self.names) > 1:
            return [f"no agent has said anything for {min(quiet_s.values()):.1f} s: their parent is frozen or starved"]
        return [
            f"agent {name} has said nothing for {seconds:.1f} s: it is frozen or starved of CPU"
            for name, seconds in quiet_s.items()
        ]

    def _quiet_s(self) -> dict[str, float]:
        """Agents that should speak and have not for too long, and for how long."""
        now_s = time.monotonic()
        return {
            name: now_s - heard_s
            for name, heard_s in list(self._heard_s.items())
            if name not in self.byes and name not in self.exits and now_s - heard_s > SILENCE_S
        }

    def wait(
        self,
        done: Callable[[Message], bool],
        *,
        timeout_s: float,
        what: str,
        tick: Callable[[], None] | None = None,
        tick_s: float = 0.25,
    ) -> None:
        """Until `done(message)` says so. `tick` is called in between.

        Raises FleetError when an agent exits or falls silent, or after `timeout_s` naming `what` was awaited.
        """
        deadline_s = time.monotonic() + timeout_s
        next_tick_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + tick_s
                if tick:
                    tick()
                if silent := self.silent():
                    raise FleetError(f"{what}: {'; '.join(silent)}")
            if now_s >= deadline_s:
                raise FleetError(f"{what}: nothing within {timeout_s:g} s{self._last_words()}")
            try:
                message = self._inbox.get(timeout=min(tick_s, deadline_s - now_s))
            except queue.Empty:
                continue
            if self._keep(message):
                raise FleetError(f"{what}: {self._died(message)}")
            if done(message):
                return

    def wait_ready(self, *, timeout_s: float, attend: Callable[[], None]) -> None:
        """Until every agent is ready; `attend` looks after the other parts meanwhile. Raises FleetError: at once where
        an agent has ended, soon where one is stopped, or where none of them moves any more."""
        stillness = Stillness(self._tree)
        stopped_s: dict[int, float] = {}

        def tick() -> None:
            attend()
            if (still_s := stillness.seconds()) > SILENCE_S:
                raise FleetError(f"agents start: none has moved for {still_s:.1f} s: an agent is frozen")
            now_s, stopped = time.monotonic(), [pid for pid in self._tree() if is_stopped(pid)]
            for pid in stopped_s.keys() - stopped:
                del stopped_s[pid]
            for pid in stopped:
                if (for_s := now_s - stopped_s.setdefault(pid, now_s)) > SILENCE_S:
                    raise FleetError(f"agents start: an agent (process {pid}) has been frozen for {for_s:.1f} s")

        self.wait_each("ready", self.names, timeout_s=timeout_s, what="agents start", tick=tick)
        self._ready = True

    def _tree(self) -> list[int]:
        """The agents' parent and all agents that there are."""
        assert self._zygote is not None
        return [self._zygote.pid, *children(self._zygote.pid)]

    def wait_each(
        self,
        kind: str,
        names: Sequence[str],
        *,
        timeout_s: float,
        what: str,
        tick: Callable[[], None] | None = None,
    ) -> list[Message]:
        """One message of `kind` from each of `names`. `tick` is called in between."""
        missing = set(names)
        answers: list[Message] = []

        def done(message: Message) -> bool:
            if message.get("type") == kind and message.get("agent") in missing:
                missing.discard(message["agent"])
                answers.append(message)
            return not missing

        try:
            self.wait(done, timeout_s=timeout_s, what=what, tick=tick)
        except FleetError as error:
            raise FleetError(f"{error} (no {kind!r} from {', '.join(sorted(missing))})") from None
        return answers

    def stop(self, timeout_s: float = 3.0) -> None:
        """Ask every agent for what is left of its records, then end them."""
        if self._zygote is None:
            return
        self._stopping = True
        # a frozen agent says no more: its parent kills it; and agents that never were ready have no records
        waiting = (
            {name for name in self.names if name not in self.exits} - set(self._quiet_s()) if self._ready else set()
        )
        try:
            for name in waiting:
                self.send(name, {"type": "stop"})
            deadline_s = time.monotonic() + timeout_s
            while waiting and self._zygote.poll() is None and time.monotonic() < deadline_s:
                try:
                    message = self._inbox.get(timeout=0.1)
                except queue.Empty:
                    continue
                self._keep(message)
                if message.get("type") in ("bye", "exit"):
                    waiting.discard(message["agent"])
        except (OSError, FleetError):
            pass  # the zygote is gone or frozen: what its agents sent is in the inbox
        self.kill()
        while not self._inbox.empty():
            self._keep(self._inbox.get())

    def kill(self) -> None:
        """End the zygote; its agents die with it."""
        if self._zygote is not None:
            if self._zygote.stdin:
                with contextlib.suppress(OSError):
                    self._zygote.stdin.close()
            frozen = len(self._quiet_s()) == len(self.names) or is_stopped(self._zygote.pid)
            end(self._zygote, patience_s=0.1 if frozen else 2.0)

    def _keep(self, message: Message) -> bool:
        """File a message; whether it tells that an agent died."""
        kind, agent = message.get("type"), message.get("agent", "")
        if kind == "record":
            self.records.append(message)
        elif kind == "error":
            self.errors.append(message)
        elif kind == "progress":
            self.progress[agent] = message
        elif kind == "bye":
            self.byes[agent] = message
        elif kind == "exit":
            self.exits[agent] = message.get("status")
            return not self._stopping
        elif kind == "closed":
            return not self._stopping
        return False

    def _died(self, message: Message) -> str:
        if message.get("type") == "closed":
            return f"the parent of the agents ended{self._last_words()}"
        return f"agent {message.get('agent')} ended (status {message.get('status')}){self._last_words()}"

    def _last_words(self) -> str:
        said = [
            f"{error.get('agent')}: {error.get('where', '')} {error.get('text', error)}" for error in self.errors[-3:]
        ]
        output = last_lines(self._log)
        return "".join(f"\n  {line}" for line in [*said, *([output] if output else [])])

    def _heard(self, message: Message, now_s: float) -> None:
        agent = message["agent"]
        self._heard_s[agent] = now_s
        if "pid" in message:
            self._pids[agent] = message["pid"]
        if "run_s" in message:
            self.clock_readings.setdefault(agent, []).append((message["monotonic_s"], message["run_s"]))

    def _write(self, message: Mapping[str, Any]) -> None:
        """Raises FleetError where the zygote takes nothing or is gone."""
        assert self._zygote is not None
        assert self._zygote.stdin is not None
        pipe = self._zygote.stdin.fileno()
        os.set_blocking(pipe, False)
        left = memoryview(json.dumps(message).encode() + b"\n")
        while left:
            if not select.select([], [pipe], [], WRITE_TIMEOUT_S)[1]:
                raise FleetError(
                    f"the parent of the agents has taken no command for {WRITE_TIMEOUT_S:g} s: it is frozen"
                )
            try:
                left = left[os.write(pipe, left) :]
            except BrokenPipeError as error:
                raise FleetError(self._died({"type": "closed"})) from error

    def _read(self) -> None:
        assert self._zygote is not None
        assert self._zygote.stdout is not None
        for line in self._zygote.stdout:
            try:
                message = json.loads(line)
                # here, not where it is read: between two waits nobody reads
                if message.get("agent") in self._heard_s or message.get("type") == "ready":
                    self._heard(message, time.monotonic())
                if message.get("type") != "heartbeat":
                    self._inbox.put(message)
            except ValueError:
                self._inbox.put(
                    {"type": "error", "agent": "zygote", "where": "stdout", "text": f"not JSON: {line[:200]!r}"}
                )
        self._inbox.put({"type": "closed"})
