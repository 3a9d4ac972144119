"""Starting the processes of a run: in a namespace, tied to our life, in the ledger, their output in a file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

from emulation.linux.ledger import RunLedger
from emulation.linux.netns import enter
from process.rights import Identity, die_with, give_up


def spawn(
    command: Sequence[str],
    *,
    ledger: RunLedger,
    log: Path,
    namespace: str | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: IO[bytes] | int | None = None,
    run_as: Identity | None = None,
    keep: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command`; it is killed when this process dies. Standard error (and output, unless given) go to `log`.
    run_as: whom it is from its first line on, with no capability but those to `keep`.

    Call it from the main thread: the kernel ties the child to the *thread* that forked it. Raises OSError.
    """
    parent = os.getpid()

    def prepare() -> None:
        os.setsid()  # Ctrl-C in the terminal reaches us alone; we end the child in order
        if namespace:
            enter(namespace)
        if run_as is not None:
            give_up(run_as, keep)
        die_with(parent)

    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output if stdout is None else stdout,
            stderr=output,
            env={**os.environ, **(environment or {})},
            preexec_fn=prepare,
            cwd=Path(__file__).resolve().parents[2],
        )
    try:
        ledger.process(child.pid)
    except OSError:  # what is not in the ledger must not be there
        child.kill()
        child.wait()
        raise
    return child


def last_lines(log: Path, count: int = 12) -> str:
    """The end of a child's output, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
    except OSError:
        return ""


def end(child: subprocess.Popen[bytes], patience_s: float = 1.0) -> int | None:
    """SIGTERM, then SIGKILL after `patience_s`; its exit status."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(patience_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(5.0)
    return child.returncode
