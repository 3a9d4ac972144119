"""The controller's log: one JSON object a line, on disk before the call returns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class EventLog:
    """Appends JSON lines to a file.

    Each line is one `write` to a descriptor opened for append, so that a signal handler may log too and a killed
    controller leaves no half line. Raises OSError where the file cannot be opened or written.
    """

    def __init__(self, path: str | Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: str, **fields: Any) -> None:
        """Append `{"event": event, ...fields}`; a value that JSON has no word for (NaN, infinity) raises ValueError."""
        line = json.dumps({"event": event, **fields}, allow_nan=False, separators=(",", ":")) + "\n"
        os.write(self._descriptor, line.encode())

    def close(self) -> None:
        """Close the file; the log cannot be written afterwards."""
        os.close(self._descriptor)
