"""The rules that a real controller keeps in a real Open vSwitch (without packets), read while circuits are moved: what
the watch sees is what the controller's log says, until somebody else is at it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emulation.monitor.circuit_rules import RuleWatch
from emulation.verdict.circuit_rules import differences, moves
from tests.openflow.process import Controller
from tests.unit.dummy_switch import DummySwitch, dummy_switch

PORTS = {"p0": 1, "p1": 2, "d0": 3, "d1": 4}
BRIDGES = ("plane0", "plane1")
PLANES = dict.fromkeys(BRIDGES, PORTS)
TAU_S = 0.005


class Fabric:
    """Two planes and their controller, whose clock runs."""

    def __init__(self, directory: Path, switch: DummySwitch) -> None:
        unixctl = str(switch.socket("plane0").unixctl)
        planes = [
            {"bridge": bridge, "dpid": number, "unixctl": unixctl, "ports": PORTS}
            for number, bridge in enumerate(BRIDGES, 1)
        ]
        self.controller = Controller(
            directory,
            {
                "fabric": {"kind": "ocs", "reconfiguration_s": TAU_S, "reuse": False, "decode_choice": "round-robin"},
                "transfer": "pull",
                "rate_bytes_per_s": 1e9,
                "prefills": ["p0", "p1"],
                "decodes": ["d0", "d1"],
                "planes": planes,
            },
        )
        self.switch = switch
        self._connection = self.controller.connect()
        self.watch = RuleWatch({bridge: switch.socket(bridge) for bridge in BRIDGES})
        self.watch.patience_s = 30.0
        switch.connect(f"tcp:127.0.0.1:{self.controller.openflow_port}", len(PORTS), *BRIDGES)
        self._wait(lambda: self.call("GET", "/v1/health")["ready"])
        self.call("POST", "/v1/circuits", pairs={"p0": "d0", "p1": "d1"})
        self.t0_s = time.monotonic()
        self.call("POST", "/v1/clock", t0_monotonic_s=self.t0_s)

    def call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        self._connection.request(method, path, json.dumps(body) if body else None)
        response: http.client.HTTPResponse = self._connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        return dict(answer)

    def turn(self, number: int) -> None:
        """One request from beginning to end, looked at all the while."""
        prefill = f"p{number % 2}"
        demand = {"prefill": prefill, "tenant": "t", "session": "", "head_bytes": 1000, "tail_bytes": 10}
        demand |= {"layer_bytes": 1, "predicted_prefill_s": 0.0, "migrates": True}
        at_s = time.monotonic() - self.t0_s
        request = f"/v1/requests/r{number}"
        self.call("POST", f"{request}/admitted", **demand, at_s=at_s)
        self.call("POST", f"{request}/prefill-started", predicted_end_s=at_s, at_s=at_s)
        self.call("POST", f"{request}/last-chunk-started", predicted_end_s=at_s, at_s=at_s)
        self._wait(lambda: self._lives(f"r{number}"))
        self.call("POST", f"{request}/transfer-done", part="all", at_s=time.monotonic() - self.t0_s)

    def _lives(self, request: str) -> bool:
        self.watch.sample(0.0)
        windows = self.call("GET", "/v1/reservations")["windows"]
        return any(window["request"] == request and window["state"] == "live" for window in windows)

    @staticmethod
    def _wait(condition: Any) -> None:
        deadline_s = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline_s

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.controller.log.read_text().splitlines()]

    def differences(self) -> tuple[list[str], list[str]]:
        return differences(self.watch.readings(), PLANES, self.events(), self.t0_s, 1.0)


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    with dummy_switch(tmp_path_factory.mktemp("ovs"), *BRIDGES) as switch:
        fabric = Fabric(tmp_path_factory.mktemp("controller"), switch)
        try:
            yield fabric
        finally:
            fabric.controller.stop()


def test_a_hundred_moves_looked_at_all_the_while_raise_no_alarm(fabric: Fabric) -> None:
    for number in range(120):
        fabric.turn(number)
    assert len(moves(fabric.events())[1]) >= 100
    assert len(fabric.watch.readings()) > 300
    assert fabric.differences() == ([], [])


def test_what_somebody_else_removes_is_missed_until_it_is_there_again(fabric: Fabric) -> None:
    fabric.switch.ofctl("del-flows", "plane1")
    fabric.watch.sample(0.0)
    held, lacked = fabric.differences()
    assert held == []
    assert len(lacked) == 5, "both directions of both circuits, and the rule that drops all else"
    assert all(text.startswith("plane1: priority=") for text in lacked), lacked
