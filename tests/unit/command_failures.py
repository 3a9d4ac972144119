"""What a command said that a test started and that failed: its exception alone keeps that to itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

#: The end of it, of each stream.
SAID_CHARACTERS = 4000
#: What titles begin with.
STREAMS = ("stdout of", "stderr of")


def said_by_commands(error: BaseException | None) -> Iterator[tuple[str, str]]:
    """(title, text) of each stream that was captured, of every command in a chain of exceptions."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, subprocess.CalledProcessError | subprocess.TimeoutExpired):
            command = error.cmd if isinstance(error.cmd, str) else " ".join(map(str, error.cmd))
            for stream, said in zip(STREAMS, (error.stdout, error.stderr), strict=True):
                text = said.decode(errors="replace") if isinstance(said, bytes) else said
                if text and text.strip():
                    yield f"{stream} {command:.200}", text[-SAID_CHARACTERS:]
        error = error.__cause__ or error.__context__
