"""The lean parent of the agents: forks them, carries their lines, and ends with them.

Started as `python -E -s -m emulation.agents.zygote`. The first line of stdin is the configuration; every further line
is a command, for the agent it names in `"agent"` or else for all. Every line of an agent comes out on stdout with its
name. Agents enter their namespaces as root and have no rights afterwards, nor has the zygote. When stdin ends, or on
SIGTERM, the agents get SIGTERM, and SIGKILL a second later; the zygote then exits with 1 if an agent ended badly. If
the zygote dies, or its parent does, the kernel kills everything at once.
"""

import gc
import os
import select
import selectors
import signal
import socket
import sys
import time
import traceback
from typing import Any

from emulation.agents.agent import Agent
from emulation.agents.config import AgentConfig, AgentConfigError, InstanceConfig, load_config
from emulation.agents.decode import DecodeAgent
from emulation.agents.gateway import GatewayAgent, keep_prefill_choice
from emulation.agents.kernel import enter_network_namespace, set_realtime, set_timer_slack
from emulation.agents.prefill import PrefillAgent
from emulation.agents.wire import LineSplitter, Message, WireError, encode_line
from process.rights import die_with, give_up

KILL_AFTER_S = 1.0
STDOUT_POLL_S = 0.1
KINDS: dict[str, type[Agent]] = {"gateway": GatewayAgent, "prefill": PrefillAgent, "decode": DecodeAgent}


class Child:
    """One agent process as its parent sees it."""

    def __init__(self, name: str, pid: int, link: socket.socket) -> None:
        self.name = name
        self.pid = pid
        self.link = link
        self.lines = LineSplitter()
        self.backlog = bytearray()
        self.relaying = True
        self.has_spoken = False


class Zygote:
    """Forks the agents and multiplexes their lines until they have all ended."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._children: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._commands = LineSplitter()
        self._kill_at_s: float | None = None
        self._mute_at_s = float("inf")  # told to end: from here on lines that nobody reads are dropped
        self._failed = False
        self._has_rights = config.run_as is not None
        self._wake_read, self._wake_write = os.pipe()

    def run(self, first_commands: bytes = b"") -> int:
        """Fork, serve, reap; the exit status. `first_commands` is what of stdin was read already."""
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        for name, instance in self._config.agents().items():
            self._fork(name, instance)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda number, frame: self._end())
        signal.signal(signal.SIGINT, lambda number, frame: self._end())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._selector.register(0, selectors.EVENT_READ, None)
        self._take_commands(first_commands)
        while self._children:
            self._step()
        return 1 if self._failed else 0

    def _step(self) -> None:
        timeout_s = None if self._kill_at_s is None else max(self._kill_at_s - time.monotonic(), 0)
        for key, events in self._selector.select(timeout_s):
            if key.fd == 0:
                self._read_commands()
            elif key.fd == self._wake_read:
                os.read(self._wake_read, 4096)
            elif isinstance(key.data, Child):
                if events & selectors.EVENT_WRITE:
                    self._write(key.data)
                if events & selectors.EVENT_READ:
                    self._relay(key.data)
        self._reap()
        if self._has_rights and all(child.has_spoken for child in self._children.values()):
            self._give_up()
        if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
            for pid in self._children:
                os.kill(pid, signal.SIGKILL)
            self._kill_at_s = time.monotonic() + KILL_AFTER_S

    # -- children -----------------------------------------------------------------------------------------------

    def _fork(self, name: str, instance: InstanceConfig) -> None:
        ours, theirs = socket.socketpair()
        zygote_pid = os.getpid()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                die_with(zygote_pid)
                ours.close()
                status = self._be(name, instance, theirs, zygote_pid)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        theirs.close()
        ours.setblocking(False)
        child = Child(name, pid, ours)
        self._children[pid] = child
        self._selector.register(ours, selectors.EVENT_READ, child)

    def _be(self, name: str, instance: InstanceConfig, link: socket.socket, zygote_pid: int) -> int:
        """In the child: become the agent."""
        for sibling in self._children.values():
            sibling.link.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.close(null)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the zygote decides
        set_timer_slack()
        try:
            if instance.namespace:
                enter_network_namespace(instance.namespace)
            agent = KINDS[instance.role](name, self._config)
            agent.realtime = self._config.realtime and set_realtime()
            if self._config.run_as is not None:
                give_up(self._config.run_as)
                die_with(zygote_pid)
        except Exception:
            link.sendall(encode_line({"type": "error", "where": "start", "text": traceback.format_exc()}))
            return 1
        gc.collect()
        gc.freeze()  # what was inherited is never garbage: keep the collector from walking it in the middle of a run
        return agent.run(link)

    def _give_up(self) -> None:
        """An agent that speaks has given up its rights; one that has not could not be ended without ours."""
        assert self._config.run_as is not None
        self._has_rights = False
        parent_pid = os.getppid()
        give_up(self._config.run_as)
        die_with(parent_pid)

    def _reap(self) -> None:
        while self._children:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid)
            self._relay(child)
            if child.relaying:
                self._selector.unregister(child.link)
            child.link.close()
            status = os.waitstatus_to_exitcode(wait_status)
            self._failed |= status != 0
            self._out({"type": "exit", "agent": child.name, "status": status})

    def _end(self) -> None:
        if self._kill_at_s is None:
            self._kill_at_s = self._mute_at_s = time.monotonic() + KILL_AFTER_S
            for pid in self._children:
                os.kill(pid, signal.SIGTERM)

    # -- lines --------------------------------------------------------------------------------------------------

    def _relay(self, child: Child) -> None:
        while child.relaying:
            try:
                piece = child.link.recv(65536)
            except BlockingIOError:
                return
            except ConnectionResetError:
                piece = b""
            if not piece:
                # Its exit follows; until then an ended link would wake us for nothing.
                child.relaying = False
                self._selector.unregister(child.link)
                return
            for message in child.lines.feed(piece):
                child.has_spoken = True
                self._out({"agent": child.name, **message})

    def _read_commands(self) -> None:
        piece = os.read(0, 65536)
        if not piece:
            self._selector.unregister(0)
            self._end()
            return
        self._take_commands(piece)

    def _take_commands(self, piece: bytes) -> None:
        try:
            commands = self._commands.feed(piece)
        except WireError as error:
            self._out({"type": "error", "agent": "zygote", "where": "stdin", "text": str(error)})
            return
        for command in commands:
            self._command(command)

    def _command(self, command: Message) -> None:
        name = command.pop("agent", None)
        addressed = [child for child in self._children.values() if name in (None, child.name)]
        if name is not None and not addressed:
            self._out({"type": "error", "agent": "zygote", "where": "stdin", "text": f"no agent {name!r} is running"})
        for child in addressed:
            child.backlog += encode_line(command)
            self._write(child)

    def _write(self, child: Child) -> None:
        wanted = selectors.EVENT_READ
        try:
            while child.backlog:
                sent = child.link.send(child.backlog)
                del child.backlog[:sent]
        except BlockingIOError:
            wanted |= selectors.EVENT_WRITE
        except OSError:
            child.backlog.clear()  # it has gone; its exit is reported
        if child.relaying:
            self._selector.modify(child.link, wanted, child)

    def _out(self, message: Message) -> None:
        view = memoryview(encode_line(message))
        try:
            while view:
                muted = time.monotonic() >= self._mute_at_s
                if not select.select([], [1], [], 0 if muted else STDOUT_POLL_S)[1]:
                    if muted:
                        return
                    continue
                # A pipe that is writable takes this much without blocking.
                view = view[os.write(1, view[: select.PIPE_BUF]) :]
        except OSError:
            self._end()


def read_first_line(descriptor: int) -> tuple[bytes, bytes]:
    """Read up to the first newline; the line, and what came after it. AgentConfigError where stdin ends before."""
    data = b""
    while b"\n" not in data:
        piece = os.read(descriptor, 65536)
        if not piece:
            raise AgentConfigError("stdin ended before the configuration: its first line must be the JSON object")
        data += piece
    line, _, rest = data.partition(b"\n")
    return line, rest


def main() -> int:
    """Read the configuration and run the agents."""
    die_with(os.getppid())
    try:
        line, rest = read_first_line(0)
        raw: list[dict[str, Any]] = LineSplitter().feed(line + b"\n")
        if not raw:
            raise AgentConfigError("the first line of stdin is empty: it must be the configuration")
        config = load_config(raw[0])
        keep_prefill_choice(config)
        zygote = Zygote(config)
    except (AgentConfigError, ValueError, OSError) as error:
        text = f"{type(error).__name__}: {error}"
        os.write(1, encode_line({"type": "error", "agent": "zygote", "where": "configuration", "text": text}))
        return 2
    return zygote.run(rest)


if __name__ == "__main__":
    sys.exit(main())
