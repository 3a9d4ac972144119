"""The Ryu process of a run and its northbound API, seen from the parent."""

from __future__ import annotations

import http.client
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from emulation.linux.children import end, last_lines, spawn
from emulation.linux.ledger import RunLedger
from emulation.linux.liveness import SILENCE_S
from emulation.linux.netns import run_in
from emulation.linux.processes import Stillness

OPENFLOW_PORT = 6653
NORTHBOUND_PORT = 8080
START_TIMEOUT_S = 20.0
CALL_TIMEOUT_S = 8.0
#: While it starts it is asked again and again, so that one that is stuck is told from one that is slow.
START_CALL_TIMEOUT_S = 1.0
#: How often `attend` is called while an answer is due.
ATTEND_S = 0.2
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
ROOT = Path(__file__).resolve().parents[2]


class ControllerError(RuntimeError):
    """The controller did not start, died or refused a call: says which, with its last words."""


class ControllerSilent(ControllerError):
    """The controller could not be reached or did not answer in time."""


class ControllerProcess:
    """Ryu in the management namespace. `start` returns at once; `wait_ready` before the first call."""

    def __init__(self, config: Mapping[str, Any], *, namespace: str, host: str, directory: Path) -> None:
        """`host` is the management address, the only one it listens on for the northbound API."""
        self._namespace, self._host = namespace, host
        self._config_path = directory / "controller.json"
        self._config = config
        self.output = directory / "controller.out"
        self.events_path = Path(config["log"])
        self._child: subprocess.Popen[bytes] | None = None
        #: Called while an answer is due: raises where another part is why none comes.
        self.attend: Callable[[], None] = lambda: None
        #: Why it can control nothing any more, once `ping` has learnt of it.
        self.fault: str | None = None

    def start(self, ledger: RunLedger, openflow_host: str) -> None:
        """Start Ryu."""
        self._config_path.write_text(json.dumps(self._config))
        # -E and -s: what it imports is the checkout's and the environment's own, whatever the caller's variables say
        command = [sys.executable, "-E", "-s", "controllers/ryu_app/manager.py"]
        command += ["--ofp-listen-host", openflow_host, "--ofp-tcp-listen-port", str(OPENFLOW_PORT)]
        command += ["--wsapi-host", self._host, "--wsapi-port", str(NORTHBOUND_PORT), "controllers.ryu_app.circuit_app"]
        # numpy would start threads that compute nothing here, and rights are given up by one thread
        environment = {"HELIOGRAPH_CONTROLLER": str(self._config_path)} | dict.fromkeys(ONE_THREAD, "1")
        self._child = spawn(command, ledger=ledger, log=self.output, namespace=self._namespace, environment=environment)

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._child.pid if self._child is not None and self.alive() else None

    def wait_listening(self) -> None:
        """Until the northbound API answers. Raises ControllerError when it dies or takes too long."""
        self._wait(lambda health: True)

    def wait_ready(self) -> None:
        """Until every plane is connected and cleared. Raises ControllerError when it dies or takes too long."""
        self._wait(lambda health: bool(health.get("ready")))

    def _wait(self, done: Callable[[Mapping[str, Any]], bool]) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        stillness = Stillness(lambda: [self.pid] if self.pid else [])
        answer: Any = "no answer yet"
        while time.monotonic() < deadline_s:
            if not self.alive():
                raise ControllerError(f"the controller ended while starting:\n{last_lines(self.output)}")
            try:
                answer = self._call("GET", "/v1/health", None, timeout_s=START_CALL_TIMEOUT_S, attended=False)
            except ControllerSilent as error:
                answer = error
                self.attend()
                if (still_s := stillness.seconds()) > SILENCE_S:
                    raise ControllerSilent(
                        f"the controller has not moved for {still_s:.1f} s of its start: it is frozen ({error})"
                    ) from None
                time.sleep(0.02)
                continue
            self.attend()
            if answer.get("fault"):
                raise ControllerError(f"the controller cannot start: {answer['fault']}\n{last_lines(self.output)}")
            if done(answer):
                return
            time.sleep(0.01)
        raise ControllerError(
            f"the controller was not ready within {START_TIMEOUT_S:g} s ({answer}):\n{last_lines(self.output)}"
        )

    def get(self, path: str) -> Any:
        """`GET path`; the decoded JSON. Raises ControllerError, ControllerSilent where there is no answer."""
        return self._call("GET", path, None)

    def ping(self) -> None:
        """Ask for its health; sets `fault`. Raises ControllerError."""
        self.fault = self._call("GET", "/v1/health", None, attended=False).get("fault")

    def lay_circuits(self, pairs: Mapping[str, str]) -> None:
        """Exactly these circuits stand when this returns (before the clock only)."""
        self._call("POST", "/v1/circuits", {"pairs": dict(pairs)})

    def start_clock(self, t0_monotonic_s: float, excess_s: float) -> None:
        """Run-clock zero, and the calibrated excess of a switch in real seconds."""
        self._call("POST", "/v1/clock", {"t0_monotonic_s": t0_monotonic_s, "excess_s": excess_s})

    def events(self) -> Iterator[dict[str, Any]]:
        """What it logged so far; a line cut short by a kill is left out."""
        if not self.events_path.is_file():
            return
        with self.events_path.open() as lines:
            for line in lines:
                try:
                    yield json.loads(line)
                except ValueError:
                    return

    def stop(self) -> None:
        """End the process."""
        if self._child is not None:
            end(self._child)

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        attended: bool = True,
    ) -> Any:
        def call() -> Any:
            connection = http.client.HTTPConnection(self._host, NORTHBOUND_PORT, timeout=timeout_s)
            try:
                text = None if body is None else json.dumps(body)
                connection.request(method, path, text, {"Content-Type": "application/json"})
                if attended:
                    self._await_answer(connection, timeout_s)
                response = connection.getresponse()
                answer = json.loads(response.read() or b"{}")
            except TimeoutError as error:
                raise ControllerSilent(
                    f"the controller did not answer {method} {path} within {timeout_s:g} s"
                ) from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise ControllerSilent(f"the controller did not answer {method} {path}: {error}") from error
            finally:
                connection.close()
            if response.status >= 300:
                raise ControllerError(f"{method} {path}: {response.status} {answer.get('error', answer)}")
            return answer

        return run_in(self._namespace, call)

    def _await_answer(self, connection: http.client.HTTPConnection, timeout_s: float) -> None:
        """Until an answer begins, looking after the other parts meanwhile. Raises TimeoutError, and what `attend`
        raises."""
        deadline_s = time.monotonic() + timeout_s
        while not select.select([connection.sock], [], [], ATTEND_S)[0]:
            self.attend()
            if time.monotonic() > deadline_s:
                raise TimeoutError
