"""Emulated cells within a worker: each is a run of the command line in a process of its own, which ends with its sweep.

Such a run tears its network down however it ends, also when its worker dies first. A worker that is told to end is
killed seconds later, which is too short for that; so a sweep that stops early ends its runs and waits for them before
it ends its workers.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

#: Ctrl-C, Ctrl-\\ and a terminal that closes reach every process there.
OF_A_TERMINAL = frozenset((signal.SIGINT, signal.SIGQUIT, signal.SIGHUP))
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.05
#: A run of many instances takes seconds to remove its network; one that takes longer is left to its own tear-down.
END_WITHIN_S = 60.0

#: Runs of this worker by the sweep that asked for them, and sweeps that start nothing any more.
_running: dict[str, set[subprocess.Popen[str]]] = {}
_ended: set[str] = set()
_lock = threading.Lock()


class SweepEnded(Exception):
    """The sweep that asked for this run has ended."""


def run(command: Sequence[str], sweep: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder to its end. Raises SweepEnded where `end` was called for the sweep before."""
    libc = ctypes.CDLL(None, use_errno=True)

    def in_the_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_A_TERMINAL)  # which local workers are kept from

    with _lock:  # so that `end` sees either the process or nothing that will ever start
        if sweep in _ended:
            raise SweepEnded("the sweep was interrupted before this cell began")
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=in_the_child,
        )
        _running.setdefault(sweep, set()).add(process)
    try:
        out, err = process.communicate()
    finally:
        with _lock:
            _running[sweep].discard(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


async def end(sweep: str) -> None:
    """In a worker's event loop: SIGTERM to the runs of a sweep, and wait until they have removed what they made."""
    with _lock:
        _ended.add(sweep)
        for process in _running.get(sweep, ()):
            process.terminate()
    until_s = time.monotonic() + END_WITHIN_S
    while _running.get(sweep) and time.monotonic() < until_s:
        await asyncio.sleep(_POLL_S)
