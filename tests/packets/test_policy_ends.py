"""Every policy, over packets: an agent is killed while its circuit is booked, dark or live, and the calendar is free
again.

One run a policy, driven from here so that the controller outlives its agents: five prefill instances share one decode
instance. Each loses its agent in another state of its window; what the controller then says of its reservations is read
at the northbound API and in its log, and a request that comes afterwards has its circuit. The links are slow and tau is
long, so that a state lasts far longer than it takes to see it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from test_timelines import DEMO

from emulation.doctor.preflight import choose_datapath
from emulation.linux.ledger import RunLedger
from emulation.plan.fabric_plan import FabricPlan, rounds
from emulation.run.components import Parts
from experiments.schema.spec import load
from workloads.request import Request

TAU_S = 0.4
#: Within which the calendar has to be free. A hang-up and its answer take milliseconds, which are printed; where others
#: have the processors it may be seconds, and what says that it was the hang-up is the reason in the log, not the time.
FREE_S = 10.0
TIMEOUT_S = 15.0
CIRCUITS = "name: circuits, kind: ocs, reconfiguration_ms: 400"
#: Policy -> the fabric's own keys, and the transfer.
POLICIES = {
    "last-chunk": ("commit: last-chunk", "pull"),
    "last-chunk, layerwise": ("commit: last-chunk", "layerwise"),
    "last-chunk, no reuse": ("commit: last-chunk, reuse: false", "pull"),
    "admission": ("commit: admission", "pull"),
    "none": ("commit: none, decode_choice: least-loaded", "pull"),
}
CLUSTER = (
    "{prefill_instances: 5, decode_instances: 1, gpus_per_instance: 1, instances_per_rack: 5, link_gbps: 20, "
    "link_efficiency: 0.9}"
)
#: In order of arrival, and so of their prefill instances p0, p1, ...: (id, arrival, cached tokens).
LIVE, BOOKED, DARK, AFTER, RECEIVER = "on-p0", "on-p1", "on-p2", "on-p3", "on-p4"
ARRIVALS = [
    (LIVE, 0.2, 65_600),
    (BOOKED, 0.25, 65_600),
    (DARK, 1.1, 65_600),
    (AFTER, 1.2, 4_000),
    (RECEIVER, 2.2, 65_600),
]


@dataclass
class Seen:
    """What one run showed: by request, its windows at the northbound API just before the kill and as soon as they had
    gone, and the seconds in between."""

    before: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    gone_after_s: dict[str, float] = field(default_factory=dict)
    at_the_end: dict[str, Any] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    statuses: dict[str, str] = field(default_factory=dict)


def states(log: Iterable[dict[str, Any]], request: str) -> list[str]:
    """What the windows of a request went through; one of several parts repeats a state."""
    return [line["state"] for line in log if line["event"] == "window" and line["request"] == request]


class Drill:
    """Parts of a run without its watch: agents die and it goes on."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        zygote = parts.fleet._zygote
        assert zygote is not None
        # the gateway is the first, then the instances in the topology's order
        children = Path(f"/proc/{zygote.pid}/task/{zygote.pid}/children").read_text().split()
        self._pids = dict(zip(parts.fleet.names, map(int, children), strict=True))
        self.seen = Seen()

    def connect(self) -> None:
        """Open every kept connection, as a run does."""
        parts = self._parts
        for pairs in rounds(parts.plan.experiment.reachable()):
            parts.controller.lay_circuits(pairs)
            for prefill, decode in pairs.items():
                parts.fleet.send(prefill, {"type": "connect", "decode": decode})
            answers = parts.fleet.wait_each("connected", list(pairs), timeout_s=10, what="KV connections")
            assert all(answer["ok"] for answer in answers), answers
        # another circuit than the first request's stands
        parts.controller.lay_circuits({"p4": "d0"})

    def start_clock(self) -> None:
        t0_s = time.monotonic() + 0.3
        self._parts.controller.start_clock(t0_s, 0.0)
        self._parts.fleet.broadcast({"type": "start", "t0_monotonic_s": t0_s})

    def windows(self, request: str) -> list[dict[str, Any]]:
        """The request's open windows, at the northbound API."""
        found = self._parts.controller.get("/v1/reservations")["windows"]
        return [window for window in found if window["request"] == request]

    def logged(self, request: str) -> list[str]:
        """The states that the request's windows have been in, in the controller's log."""
        return states(self._parts.controller.events(), request)

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline_s, f"not {what}: {self._parts.controller.get('/v1/reservations')}"
            time.sleep(0.005)

    def wait_state(self, request: str, state: str) -> None:
        self.wait(f"{request} {state}", lambda: state in {window["state"] for window in self.windows(request)})

    def kill(self, agent: str, request: str) -> None:
        """Kill an agent, and wait until nothing is reserved for the request any more."""
        self.seen.before[request] = self.windows(request)
        os.kill(self._pids[agent], signal.SIGKILL)
        killed_s = time.monotonic()
        self.wait(f"{request} off the calendar", lambda: not self.windows(request))
        self.seen.gone_after_s[request] = time.monotonic() - killed_s

    def end(self) -> Seen:
        """The last look, and the records of the agents that live."""
        controller = self._parts.controller
        self.seen.at_the_end = {name: controller.get(f"/v1/{name}") for name in ("reservations", "circuits", "health")}
        self._parts.stop_agents()
        self.seen.log = self._parts.stop_controller()
        self.seen.statuses = {
            record["id"]: record["status"] for record in self._parts.fleet.records if record["of"] == "request"
        }
        return self.seen


def drill(ledger: RunLedger, logs: Path, keys: str, transfer: str) -> Seen:
    fabric = f"fabrics=[{{{CIRCUITS}, {keys}}}]"
    experiment = load(DEMO, [f"cluster={CLUSTER}", fabric, f"transfer={transfer}"])
    requests = tuple(
        Request(name, "agentic", "", arrival_s, 1100, cached, True, 1.0) for name, arrival_s, cached in ARRIVALS
    )
    with ExitStack() as ending:
        parts = Parts(FabricPlan(experiment, experiment.fabrics[0], 1, requests), ledger, choose_datapath())
        ending.callback(parts.end, logs)
        parts.start()
        run = Drill(parts)
        run.connect()
        run.start_clock()
        run.wait_state(LIVE, "live")
        run.wait_state(BOOKED, "booked")
        run.kill("p1", BOOKED)
        run.kill("p0", LIVE)
        run.wait_state(DARK, "dark")
        run.kill("p2", DARK)
        run.wait(f"{AFTER} served", lambda: "released" in run.logged(AFTER))
        run.wait_state(RECEIVER, "live")
        run.kill("d0", RECEIVER)
        return run.end()


@pytest.mark.parametrize("policy", POLICIES)
def test_whoever_is_killed_in_whatever_state_leaves_the_calendar_free(
    ledger: RunLedger, tmp_path: Path, policy: str
) -> None:
    seen = drill(ledger, tmp_path, *POLICIES[policy])
    print(policy, {request: f"{seconds * 1e3:.0f} ms" for request, seconds in seen.gone_after_s.items()})
    for request, state, never in [
        (BOOKED, "booked", {"dark", "live", "released"}),
        (LIVE, "live", {"released"}),
        (DARK, "dark", {"live", "released"}),
    ]:
        check_sender_killed(seen, request, state, never)
    assert seen.before[RECEIVER][0]["state"] == "live"
    assert seen.gone_after_s[RECEIVER] < FREE_S
    assert states(seen.log, RECEIVER)[-1] == "expired"
    assert seen.statuses == dict.fromkeys([LIVE, BOOKED, DARK, RECEIVER], "failed") | {AFTER: "completed"}
    check_nothing_is_left(seen)


def check_sender_killed(seen: Seen, request: str, state: str, never: set[str]) -> None:
    """It was killed in this state, and every window of its request ended at once, saying why."""
    (first, *others) = seen.before[request]
    assert first["state"] == state, "it was killed in another state"
    assert all(window["state"] in ("booked", state) for window in others)
    # a switch whose rules are on their way is over first
    assert seen.gone_after_s[request] < FREE_S + (TAU_S if state == "dark" else 0), request
    assert not never & set(states(seen.log, request))
    ends = [line for line in seen.log if line.get("request") == request and line["state"] == "expired"]
    assert sorted(line["window"] for line in ends) == sorted(window["window"] for window in seen.before[request])
    assert {line["reason"] for line in ends} == {f"{first['prefill']} is gone: its grant stream has ended"}


def check_nothing_is_left(seen: Seen) -> None:
    assert seen.at_the_end["reservations"] == {"windows": []}
    assert seen.at_the_end["circuits"] == {"standing": {"p4": "d0"}, "dark": {}}
    assert seen.at_the_end["health"] == {"ready": True, "datapaths": 1, "fault": None}
    last = {line["window"]: line["state"] for line in seen.log if line["event"] == "window"}
    assert set(last.values()) == {"released", "expired"}
