"""`cli.py` as a user starts it, with limits to every wait, and what its runs leave told from what others have.

Each process is marked in its environment, which everything that it starts inherits. A run's ledger names the process
that keeps it and the prefix of its namespaces: those of marked processes are ours, whatever else the machine does.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from emulation.linux.ledger import BASE, LedgerError, clean

ROOT = Path(__file__).resolve().parents[2]
NAMESPACES = Path("/run/netns")
LINK_OFF = "of its rate; 3 % is allowed"
#: For what is sure to come; on a machine that is busy with other things it comes late.
PATIENCE_S = 60.0
POLL_S = 0.02
_MARK = "HELIOGRAPH_TEST"
_numbers = itertools.count()


@dataclass
class Commands:
    """The commands of one test."""

    folder: Path
    mark: str = field(default_factory=lambda: f"{os.getpid()}-{time.monotonic_ns()}-{next(_numbers)}")
    prefixes: set[str] = field(default_factory=set)
    directories: set[Path] = field(default_factory=set)
    started: list[Command] = field(default_factory=list)

    def start(self, *arguments: object) -> Command:
        output = self.folder / f"output-{len(self.started)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "cli.py"), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, _MARK: self.mark},
            )
        self.started.append(Command(self, process, output))
        return self.started[-1]

    def note(self) -> None:
        """Keep the directory, and the prefix of the namespaces, of each of our runs that is alive."""
        for ledger in BASE.glob("*/ledger.jsonl"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                first = json.loads(ledger.read_text().split("\n", 1)[0])
                if self._is_ours(int(first["pid"])):
                    self.prefixes.add(first["prefix"])
                    self.directories.add(ledger.parent)

    def _is_ours(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return f"{_MARK}={self.mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False

    def namespaces(self) -> list[str]:
        """Those of our runs that are there now."""
        names = os.listdir(NAMESPACES) if NAMESPACES.is_dir() else []
        return [name for name in names if name.split("-")[0] in self.prefixes]

    def processes(self) -> list[str]:
        """What was started, and what that has started."""
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        return [f"process {pid}: {_words(pid)}" for pid in pids if self._is_ours(pid)]

    def left(self) -> list[str]:
        """Everything of our runs that is there now."""
        return [
            *self.processes(),
            *(f"namespace {name}" for name in self.namespaces()),
            *(f"directory {path}" for path in self.directories if path.is_dir()),
        ]

    def until(self, what: str, condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        """Look, and note, until it is so."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                said = "\n".join(command.said() for command in self.started)
                raise AssertionError(f"not {what} after {timeout_s:g} s: {self.left()}\n{said}")
            self.note()
            time.sleep(POLL_S)
        self.note()

    def close(self) -> bool:
        """End what still goes on, and remove what that leaves; whether everything had ended by itself."""
        alive = [command.process for command in self.started if command.process.poll() is None]
        self.note()
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.note()
                process.kill()
                process.wait()
        if alive:
            with contextlib.suppress(AssertionError):  # what a killed one had started goes a little later
                self.until("ended", lambda: not self.processes())
            for directory in self.directories:
                with contextlib.suppress(LedgerError):
                    clean(directory)
        return not alive


@dataclass
class Command:
    """One process, its output in a file, so that nobody has to read along."""

    commands: Commands
    process: subprocess.Popen[bytes]
    output: Path

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, *texts: str, timeout_s: float = PATIENCE_S) -> str:
        """Until it has said one of these; what it has said by then."""

        def said() -> bool:
            return any(text in self.said() for text in texts)

        self.commands.until(f"said {texts}", lambda: said() or self.process.poll() is not None, timeout_s)
        if not said():
            skip_where_links_fail(self.said())
            raise AssertionError(f"over, without {texts}:\n{self.said()}")
        return self.said()

    def ended(self, timeout_s: float) -> int:
        """Its exit status."""
        self.commands.until("over", lambda: self.process.poll() is not None, timeout_s)
        return self.process.wait()


def _words(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    return "(gone)"


def skip_where_links_fail(output: str) -> None:
    """A run that its own probes refused says nothing about what a test looks at."""
    if LINK_OFF in output:
        pytest.skip(f"this machine cannot carry its links now: {output[-600:]}")


@contextlib.contextmanager
def user(folder: Path) -> Iterator[Commands]:
    """Somebody who starts commands. What a test leaves going is ended; what ended by itself has left nothing."""
    commands = Commands(folder)
    try:
        yield commands
    finally:
        in_order = commands.close()
    if in_order:  # the kernel ends what a killed run has started, but not in zero time
        commands.until("removed", lambda: not commands.left())
