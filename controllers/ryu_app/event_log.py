"""The controller's log: one JSON object a line, on disk before the call returns."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any


class EventLog:
    """Appends JSON lines to a file.

    Each line is one `write` to a descriptor opened for append, so that a signal handler may log too and a killed
    controller leaves no half line. Raises OSError where the file cannot be opened. A line that cannot be written is
    the last one: `trouble` then says why, and the controller goes on without a log until somebody asks for its health.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self.trouble: str | None = None
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: str, **fields: Any) -> None:
        """Append `{"event": event, ...fields}`; a value that JSON has no word for (NaN, infinity) raises ValueError."""
        line = json.dumps({"event": event, **fields}, allow_nan=False, separators=(",", ":")) + "\n"
        if self.trouble is not None:
            return
        try:
            written = os.write(self._descriptor, line.encode())
        except OSError as error:
            self.trouble = f"its log {self._path} cannot be written: {error.strerror}"
            return
        if written < len(line):
            self.trouble = f"its log {self._path} cannot be written: {os.strerror(errno.ENOSPC)}"

    def close(self) -> None:
        """Close the file; the log cannot be written afterwards."""
        os.close(self._descriptor)
