"""Parts of a run that have to answer: a frozen one neither dies nor says so.

Each part is asked from a thread of its own, so that one that does not answer holds up nobody; the run reads the
answers' age from its own loop. Processes that have ended are told apart by whoever started them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PERIOD_S = 1.0
#: A part that has not answered for this long is frozen, or so starved that the run is worth nothing.
SILENCE_S = 3.5
CATCH_UP_S = 0.3


class LivenessWatch:
    """Asks every part once a second. parts: name -> a call that returns when the part has answered and raises where
    it cannot be asked; it must give up within SILENCE_S."""

    def __init__(self, parts: Mapping[str, Callable[[], object]], *, silence_s: float = SILENCE_S) -> None:
        self._silence_s = silence_s
        self._ended = threading.Event()
        self._asked_s: dict[str, float | None] = {}
        self._refusals: dict[str, str] = {}
        for name, ask in parts.items():
            self.add(name, ask)

    def add(self, name: str, ask: Callable[[], object]) -> None:
        """Ask this part too, from now on."""
        self._asked_s[name] = None
        threading.Thread(target=self._ask, args=(name, ask), name=f"watch {name}", daemon=True).start()

    def troubles(self) -> list[str]:
        """A sentence for each part that has not answered for too long, with what asking it gave."""
        if not self._waiting_s():
            return []
        time.sleep(CATCH_UP_S)  # we may have been the one that was stopped: the answers are there, but not yet read
        return [
            f"{name} has not answered for {seconds:.1f} s: it is frozen or starved of CPU"
            + (f" ({self._refusals[name]})" if name in self._refusals else "")
            for name, seconds in self._waiting_s().items()
        ]

    def _waiting_s(self) -> dict[str, float]:
        """Parts that have been asked for too long, and for how long."""
        now_s = time.monotonic()
        asked = {name: at_s for name, at_s in list(self._asked_s.items()) if at_s is not None}
        return {name: now_s - at_s for name, at_s in asked.items() if now_s - at_s > self._silence_s}

    def stop(self) -> None:
        """Ask no more. Does not wait for an answer that is due."""
        self._ended.set()

    def _ask(self, name: str, ask: Callable[[], object]) -> None:
        while not self._ended.is_set():
            if self._asked_s[name] is None:
                self._asked_s[name] = time.monotonic()
            try:
                ask()
            except Exception as error:  # whatever it is, the part did not answer
                self._refusals[name] = str(error) or type(error).__name__
            else:
                self._refusals.pop(name, None)
                self._asked_s[name] = None
            self._ended.wait(PERIOD_S)


def ask_unixctl(path: Path, *, timeout_s: float = SILENCE_S) -> str:
    """The version of the Open vSwitch daemon behind a control socket, from its main loop. Raises as `call_unixctl`."""
    return call_unixctl(path, "version", timeout_s=timeout_s)


def call_unixctl(path: Path, method: str, *parameters: str, timeout_s: float = SILENCE_S) -> str:
    """What an Open vSwitch daemon answers to a command on its control socket (JSON-RPC, ovs-appctl(8)).
    Raises OSError (TimeoutError where it does not answer) or ValueError, where it refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(json.dumps({"id": 0, "method": method, "params": parameters}).encode())
        received = b""
        while part := connection.recv(65536):
            received += part
            # nothing ends a reply but its closing brace
            with contextlib.suppress(json.JSONDecodeError):
                reply = json.loads(received)
                if reply["error"] is not None:
                    raise ValueError(f"{path}: {method}: {str(reply['error']).strip()}")
                return str(reply["result"])
    raise ConnectionError(f"{path}: closed after {received!r}")
