"""Runs `cli.py` in forked children: a drill does not pay for its imports, which take a core longer than most drills.

Each child is a process of its own with a whole `cli.py` in it, that gets its own signals and ends by its own exit; what
it shares with the next is the memory of the imported modules. Started by `drill_runs.RunServer` with the project as its
current directory. Standard input: a JSON object a line,

    {"run": [arguments of cli.py], "output": path, "base": place of the ledgers}       answered by {"pid": N}
    {"signal": N}        to the child; it is not reaped before, so no other process can have its pid

and {"status": N} comes out when the child has ended (negative: the signal that ended it). One child at a time. On
SIGUSR1 a child writes where each of its threads is.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
from pathlib import Path

sys.path.insert(0, os.getcwd())

# What a run imports only when it needs it.
import plotly.graph_objects  # noqa: F401
import rich.console  # noqa: F401

import cli  # noqa: F401
import commands.packets  # noqa: F401
import emulation.doctor.preflight
import emulation.linux.ledger
import emulation.run.experiment_run
import results.report.report
import results.report.table  # noqa: F401
import simulation.validation  # noqa: F401
from commands.entry import enter

POLL_S = 0.01
_PR_SET_PDEATHSIG = 1


def serve() -> None:
    """Take orders until standard input ends. Returns in a child, which then is the run; exits in the server."""
    child, unread = 0, b""
    while True:
        if select.select([0], [], [], POLL_S if child else None)[0]:
            if not (received := os.read(0, 65536)):
                sys.exit()  # the kernel tells a child that is left to end
            unread += received
        while b"\n" in unread:
            line, _, unread = unread.partition(b"\n")
            order = json.loads(line)
            if "run" in order:
                server = os.getpid()
                child = os.fork()
                if not child:
                    return become(order["run"], Path(order["output"]), Path(order["base"]), server)
                say({"pid": child})
            elif child:
                os.kill(child, order["signal"])
        if child:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                child = 0
                say({"status": os.waitstatus_to_exitcode(status)})


def say(message: dict[str, int]) -> None:
    """One line to whoever started the server."""
    os.write(1, json.dumps(message).encode() + b"\n")


def become(arguments: list[str], output: Path, base: Path, server: int) -> None:
    """In the child: what `python cli.py ARGUMENTS` is before its first line, told to end when the server dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != server:
        os._exit(1)
    os.setsid()
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(source, target)
    os.close(written)
    os.close(nothing)
    faulthandler.register(signal.SIGUSR1)
    sys.argv = ["cli.py", *arguments]
    emulation.linux.ledger.BASE = base


if __name__ == "__main__":
    say({"ready": os.getpid()})
    serve()
    sys.exit(enter())
