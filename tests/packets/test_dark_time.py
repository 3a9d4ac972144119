"""As packets see it: the dark time of a reconfiguration is never shorter than the delay, and not much longer."""

from __future__ import annotations

import itertools
import json
import math
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frame_stream
import psutil
import pytest
from circuit_switch import ROOT, Api, CircuitSwitch, missing

from controllers.ryu_app.reconfiguration import STEPS
from emulation.linux import netns

TAU_S = 0.025
ROUNDS = 50
PERIOD_S = 0.00015
STREAM_S = 20.0
# The gap that somebody else's turn on the processor makes in a stream before the dark would be taken for a part of it.
IN_TIME = ("chrt", "--fifo", "1")
HOLD_S = 0.005  # a circuit stands at least this long
PREFILLS, DECODES = ("p0", "p1"), ("d0", "d1")
FABRIC = {"reconfiguration_s": TAU_S, "decode_choice": "round-robin"}


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
        time.sleep(HOLD_S)  # some packets over the circuit
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


@dataclass(frozen=True)
class Observed:
    """What the frames and the controller saw of `2 * ROUNDS` swaps; times are run-clock seconds."""

    frames: list[tuple[float, int, int]]  # arrival, receiver, sender
    switches: list[dict[str, Any]]
    pairs: dict[int, tuple[str, str]]  # of every window
    faults: list[dict[str, Any]]

    def dark_times_s(self) -> list[float]:
        """For each sender, the time from its last frame at one receiver to its first at another; ascending."""
        last: dict[int, tuple[float, int]] = {}
        dark: list[float] = []
        for arrived_s, receiver, sender in self.frames:
            if sender in last and last[sender][1] != receiver:
                dark.append(arrived_s - last[sender][0])
            last[sender] = (arrived_s, receiver)
        return sorted(dark)

    def delays_s(self) -> list[float]:
        """For each reconfiguration, the time from its first message to the first frame over the new circuit; ascending.
        Unlike the dark time it has nothing of a stream's own gaps before."""
        arrivals = [arrived_s for arrived_s, _, _ in self.frames]
        delays = []
        for switch in self.switches:
            prefill, decode = self.pairs[switch["window"]]
            began_s = switch["t_s"] - switch["dark_s"]
            after = itertools.islice(self.frames, bisect_left(arrivals, began_s + TAU_S), None)
            first_s = (at_s for at_s, to, by in after if (PREFILLS[by], DECODES[to]) == (prefill, decode))
            delays += [at_s - began_s for at_s in itertools.islice(first_s, 1)]
        return sorted(delays)

    def leaks_s(self) -> list[float]:
        """How long after the first purge was over a frame still left or reached a port that was dark."""
        arrivals = [arrived_s for arrived_s, _, _ in self.frames]
        leaks = []
        for switch in self.switches:
            pair = self.pairs[switch["window"]]
            left_s = sum(switch["steps_s"][step] for step in STEPS[STEPS.index("dark_wait") :])
            emptied_s = switch["t_s"] - left_s
            during = slice(bisect_left(arrivals, emptied_s), bisect_left(arrivals, emptied_s + TAU_S))
            for arrived_s, receiver, sender in self.frames[during]:
                if PREFILLS[sender] == pair[0] or DECODES[receiver] == pair[1]:
                    leaks.append(arrived_s - emptied_s)
        return leaks

    def figures(self) -> dict[str, Any]:
        """The result, for people."""
        lines = self.switches
        return {
            "reconfigurations": len(self.dark_times_s()),
            **{
                name: [
                    round(value * 1e3, 2)
                    for value in (values_s[0], statistics.median(values_s), p95_s(values_s), values_s[-1])
                ]
                for name, values_s in (("dark_ms", self.dark_times_s()), ("delay_ms", self.delays_s()))
            },
            "controller_dark_median_ms": round(statistics.median(line["dark_s"] for line in lines) * 1e3, 2),
            "steps_median_ms": {
                step: round(statistics.median(line["steps_s"][step] for line in lines) * 1e3, 3) for step in STEPS
            },
            "load": os.getloadavg()[0],
        }


def p95_s(ascending_s: Sequence[float]) -> float:
    """95th percentile, the value with rank ceil(0.95 n)."""
    return ascending_s[math.ceil(0.95 * len(ascending_s)) - 1]


@pytest.fixture
def observe(tmp_path: Path) -> Iterator[Callable[[], Observed]]:
    """Each call builds a switch, swaps its circuits under streams of frames, and takes all of it away."""
    if name := missing():
        pytest.fail(f"{name} is not installed: apt-get install openvswitch-switch iproute2")
    switches: list[CircuitSwitch] = []

    def run() -> Observed:
        directory = tmp_path / str(len(switches))
        directory.mkdir()
        switch = CircuitSwitch(directory, PREFILLS, DECODES, FABRIC)
        switches.append(switch)
        switch.start()
        observed = swap_under_streams(switch)
        switch.stop()
        return observed

    yield run
    if switches:
        switches[-1].stop()


def swap_under_streams(switch: CircuitSwitch) -> Observed:
    """All rounds while every prefill instance sends."""
    stream = [sys.executable, str(Path(frame_stream.__file__))]
    timing = [str(STREAM_S), str(PERIOD_S)]
    options: dict[str, Any] = {"enter": False, "env": {"PYTHONPATH": str(ROOT)}}
    places = [[switch.place(name) for name in names] for names in (DECODES, PREFILLS)]
    receiver = switch.spawn(*stream, "receive", *timing, *places[0], stdout=subprocess.PIPE, **options)
    sender = switch.spawn(*IN_TIME, *stream, "send", *timing, *places[1], **options)
    chunks: list[bytes] = []
    reader = threading.Thread(target=lambda: chunks.append(receiver.stdout.read()), daemon=True)  # type: ignore[union-attr]
    reader.start()
    driver = Driver(switch)
    for place in itertools.chain(*places):
        until_it_streams(place.partition(":")[0])
    for number in range(ROUNDS + 1):  # the first joins the pairs, each other one swaps them
        driver.round(number)
    time.sleep(0.05)
    sender.terminate()
    time.sleep(0.1)
    receiver.terminate()
    reader.join(10)
    records = frame_stream.RECORD.iter_unpack(b"".join(chunks))
    frames = sorted((arrived_ns / 1e9 - driver.t0_s, receiver, sender) for arrived_ns, receiver, sender, _ in records)
    pairs = {line["window"]: (line["prefill"], line["decode"]) for line in switch.events("window")}
    return Observed(frames, switch.events("switch"), pairs, switch.events("fault"))


def until_it_streams(namespace: str, patience_s: float = 30.0) -> None:
    """Wait until a stream's socket is open there: how soon that is depends on the processor."""

    def protocols() -> set[str]:
        return {line.split()[3] for line in Path("/proc/thread-self/net/packet").read_text().splitlines()[1:]}

    deadline_s = time.monotonic() + patience_s
    while f"{frame_stream.ETHERTYPE:04x}" not in netns.run_in(namespace, protocols):
        assert time.monotonic() < deadline_s, f"no stream in {namespace} after {patience_s:g} s"
        time.sleep(0.02)


def until_quiet(patience_s: float = 20.0) -> None:
    """Wait for a moment in which others leave half of the machine idle, but not for ever."""
    deadline_s = time.monotonic() + patience_s
    while psutil.cpu_percent(interval=0.5) > 50 and time.monotonic() < deadline_s:
        pass


def test_frames_see_every_reconfiguration_dark_for_the_delay_and_not_much_longer(
    observe: Callable[[], Observed],
) -> None:
    for _ in range(3):  # the upper bounds need a machine that is not busy with others: one good run of three
        until_quiet()
        observed = observe()
        figures = observed.figures()
        print(json.dumps(figures))
        dark_s = observed.dark_times_s()
        assert observed.faults == []
        assert len(dark_s) == 2 * ROUNDS
        assert len(observed.switches) == 2 * ROUNDS + 2
        assert all(line["dark_s"] >= TAU_S and list(line["steps_s"]) == list(STEPS) for line in observed.switches)
        assert observed.leaks_s() == []
        assert dark_s[0] >= TAU_S, figures
        short = statistics.median(dark_s) <= TAU_S + 0.005 and p95_s(dark_s) <= TAU_S + 0.015
        if short:
            break
    assert short, f"median or p95 of the dark time too long three times: {figures}"
