"""As packets see it: the dark time of a reconfiguration is never shorter than the delay, and not much longer."""

from __future__ import annotations

import json
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controllers.reconfiguration import STEPS
from tests.packets.circuit_switch import Api, CircuitSwitch, missing
from tests.packets.frame_stream import RECORD

TAU_S = 0.025
ROUNDS = 50
PERIOD_S = 0.00015
STREAM_S = 20.0
PREFILLS, DECODES = ("p0", "p1"), ("d0", "d1")
_SCRIPT = str(Path(__file__).with_name("frame_stream.py"))


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[CircuitSwitch]:
    if name := missing():
        pytest.fail(f"{name} is not installed: apt-get install openvswitch-switch iproute2")
    switch = CircuitSwitch(tmp_path, PREFILLS, DECODES, {"reconfiguration_s": TAU_S, "decode_choice": "round-robin"})
    try:
        switch.start()
        yield switch
    finally:
        switch.stop()


class Driver:
    """Plays two prefill instances: in each round both ask for the decode that the other had, so both switch at once."""

    def __init__(self, switch: CircuitSwitch) -> None:
        self._api: Api = switch.connect()
        self._grants: queue.Queue[dict[str, Any]] = queue.Queue()
        self._streams = [switch.connect() for _ in PREFILLS]
        for prefill, stream in zip(PREFILLS, self._streams, strict=True):
            threading.Thread(target=self._listen, args=(stream, prefill), daemon=True).start()
        self.t0_s = time.monotonic()
        self._api.post("/v1/clock", t0_monotonic_s=self.t0_s)

    def now_s(self) -> float:
        return time.monotonic() - self.t0_s

    def round(self, number: int) -> None:
        """One request of each prefill instance, from admission to the end of its transfer."""
        # round-robin hands out d0, d1, d0, ...; asking in alternating order swaps the pairs every round
        order = PREFILLS if number % 2 == 0 else PREFILLS[::-1]
        for prefill in order:
            self._announce(f"r{number}-{prefill}", prefill)
        for _ in order:
            grant = self._grants.get(timeout=5)
            assert grant["live_s"] <= self.now_s()
        time.sleep(0.005)  # some packets over the circuit
        for prefill in order:
            self._api.post(f"/v1/requests/r{number}-{prefill}/transfer-done", part="all", at_s=self.now_s())

    def _announce(self, request: str, prefill: str) -> None:
        sizes = {"head_bytes": 1_000_000, "tail_bytes": 0, "layer_bytes": 0}
        self._api.post(
            f"/v1/requests/{request}/admitted",
            **{"prefill": prefill, "tenant": "t", "session": "", "migrates": True, "predicted_prefill_s": 0.0, **sizes},
            at_s=self.now_s(),
        )
        for event in ("prefill-started", "last-chunk-started"):
            self._api.post(f"/v1/requests/{request}/{event}", predicted_end_s=self.now_s(), at_s=self.now_s())

    def _listen(self, stream: Api, prefill: str) -> None:
        for line in stream.lines(f"/v1/instances/{prefill}/grants"):
            if "window" in line:
                self._grants.put(line)


def dark_times_s(records: bytes) -> list[float]:
    """For each sender, the time from its last frame at one receiver to its first at another."""
    last: dict[int, tuple[int, int]] = {}
    dark: list[float] = []
    for arrived_ns, receiver, sender, _ in sorted(RECORD.iter_unpack(records)):
        if sender in last and last[sender][1] != receiver:
            dark.append((arrived_ns - last[sender][0]) / 1e9)
        last[sender] = (arrived_ns, receiver)
    return dark


def test_frames_see_every_reconfiguration_dark_for_the_delay_and_not_much_longer(switch: CircuitSwitch) -> None:
    stream = [sys.executable, _SCRIPT]
    timing = [str(STREAM_S), str(PERIOD_S)]
    environment = {"PYTHONPATH": "."}
    receiver = switch.spawn(
        *stream, "receive", *timing, *map(switch.place, DECODES), inside=False, stdout=subprocess.PIPE, env=environment
    )
    sender = switch.spawn(*stream, "send", *timing, *map(switch.place, PREFILLS), inside=False, env=environment)
    chunks: list[bytes] = []
    reader = threading.Thread(target=lambda: chunks.append(receiver.stdout.read()))  # type: ignore[union-attr]
    reader.start()
    driver = Driver(switch)
    time.sleep(0.3)
    for number in range(ROUNDS + 1):  # the first joins the pairs, each other one swaps them
        driver.round(number)
    time.sleep(0.05)
    sender.terminate()
    time.sleep(0.1)
    receiver.terminate()
    reader.join(10)

    dark_s = sorted(dark_times_s(b"".join(chunks)))
    switches = switch.events("switch")
    steps = {step: statistics.median(line["steps_s"][step] for line in switches) * 1e3 for step in STEPS}
    figures = {
        "reconfigurations": len(dark_s),
        "dark_ms": {
            "min": dark_s[0] * 1e3,
            "median": statistics.median(dark_s) * 1e3,
            "p95": dark_s[int(0.95 * len(dark_s))] * 1e3,
        },
        "controller_median_ms": statistics.median(line["dark_s"] for line in switches) * 1e3,
        "steps_median_ms": steps,
    }
    print(json.dumps(figures, indent=1))
    assert len(dark_s) == 2 * ROUNDS, figures
    assert switch.events("fault") == []
    assert len(switches) == 2 * ROUNDS + 2
    assert all(line["dark_s"] >= TAU_S for line in switches)
    assert dark_s[0] >= TAU_S, figures
    assert figures["dark_ms"]["median"] <= (TAU_S + 0.005) * 1e3, figures
    assert figures["dark_ms"]["p95"] <= (TAU_S + 0.015) * 1e3, figures
