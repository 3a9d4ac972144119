"""What the built network and this machine do before a run's clock starts, one reading of each kind of path: constants
for the scheduler and for the twin, and the reason to begin or not to.

The KV paths are read by `emulation/probe/paths.py`; here are the host network, the controller and the timers.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import statistics
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from emulation.agents.kernel import set_timer_slack
from emulation.linux.netns import socket_in
from emulation.probe.link import ProbedPath, ProbeError, check_tcp, round_trip_s
from emulation.probe.paths import PathProbe
from emulation.run.components import Parts
from emulation.run.controller_process import CALL_TIMEOUT_S, NORTHBOUND_PORT
from emulation.scale import ScaleModel
from emulation.verdict.measures import percentile

#: Steps of a switch that are not tau itself.
EXCESS_STEPS = ("remove", "barrier", "purge", "install", "barrier2", "purge2")
PROBE_PORT = 7990
CONTROL_ROUNDS, HOST_ROUNDS = 20, 10
TIMERS, TIMER_S = 50, 0.002


@dataclass(frozen=True, slots=True)
class Calibration:
    """Wall-clock seconds, medians unless named otherwise. `host_rtt_s`: gateway and prefill instance over the host
    network; `control_rtt_s`: a call of the controller from a prefill instance; `timer_lateness_s`: of a real-time
    thread like an agent's; `excess_s`: of a switch beyond its delay (None without circuits); `kv_rtt_s` and
    `goodput_ratio` (measured over configured): of the KV paths that were read."""

    host_rtt_s: float
    control_rtt_s: float
    control_rtt_p99_s: float
    timer_lateness_s: float
    timer_lateness_p99_s: float
    excess_s: float | None
    kv_rtt_s: float | None
    goodput_ratio: float | None

    def described(self, scale: ScaleModel) -> dict[str, Any]:
        """For `fidelity.json`: every figure in wall milliseconds and real ones, and the twin's constants (real
        seconds; `simulation/constants.py` says what each is)."""
        figures = {
            name: {"emulated_ms": value * 1e3, "real_ms": scale.real_s(value) * 1e3}
            for name, value in (
                ("host round trip", self.host_rtt_s),
                ("control round trip", self.control_rtt_s),
                ("control round trip, p99", self.control_rtt_p99_s),
                ("timer lateness", self.timer_lateness_s),
                ("timer lateness, p99", self.timer_lateness_p99_s),
                ("excess of a switch", self.excess_s),
                ("KV round trip", self.kv_rtt_s),
            )
            if value is not None
        }
        one_way_s, host_s = self.control_rtt_s / 2, self.host_rtt_s / 2
        constants = {"request_s": host_s, "control_s": one_way_s, "return_s": host_s}
        if self.excess_s is not None:
            switching = {"calibrated_excess_s": self.excess_s, "switch_excess_s": self.excess_s}
            constants |= switching | {"live_told_s": one_way_s}
        return {
            "delays": figures,
            "goodput_ratio": self.goodput_ratio,
            "constants": {name: scale.real_s(value) for name, value in constants.items()},
        }


def calibrate(parts: Parts, probe: PathProbe) -> Calibration:
    """Read what `probe` has not: in a quarter of a second. Raises ProbeError where the host network or the controller
    does not answer."""
    cluster, testbed = parts.cluster, parts.testbed
    prefill = next(instance for instance in cluster.instances if instance.role == "prefill")
    host = ProbedPath(
        testbed.namespace("gw"),
        cluster.gateway_ip,
        testbed.namespace(prefill.name),
        prefill.host_ip,
        destination_port=PROBE_PORT,
    )
    check_tcp(host)
    control_s = _control_rtt_s(testbed.namespace(prefill.name), cluster.controller_ip)
    late_s = timer_lateness_s()
    return Calibration(
        host_rtt_s=round_trip_s(host, rounds=HOST_ROUNDS),
        control_rtt_s=statistics.median(control_s),
        control_rtt_p99_s=percentile(control_s, 99) or 0.0,
        timer_lateness_s=statistics.median(late_s),
        timer_lateness_p99_s=percentile(late_s, 99) or 0.0,
        excess_s=excess_s(parts.controller.events()),
        kv_rtt_s=statistics.median(probe.rtt_s.values()) if probe.rtt_s else None,
        goodput_ratio=statistics.median(probe.goodput_ratios.values()) if probe.goodput_ratios else None,
    )


def excess_s(controller_events: Iterable[Mapping[str, Any]]) -> float | None:
    """Wall seconds that a switch takes beyond its delay: the median over the circuits laid while connecting."""
    steps = [event["steps_s"] for event in controller_events if event.get("event") == "setup"]
    if not steps:
        return None
    return statistics.median(sum(step.get(name, 0.0) for name in EXCESS_STEPS) for step in steps)


def _control_rtt_s(namespace: str, controller_ip: str) -> list[float]:
    """Round trips of a small call over one kept connection, as the agents make them."""
    connection = http.client.HTTPConnection(controller_ip, NORTHBOUND_PORT, timeout=CALL_TIMEOUT_S)
    connection.sock = opened = socket_in(namespace)
    opened.settimeout(CALL_TIMEOUT_S)
    taken_s = []
    try:
        opened.connect((controller_ip, NORTHBOUND_PORT))
        for _ in range(CONTROL_ROUNDS):
            began_s = time.perf_counter()
            connection.request("GET", "/v1/health")
            connection.getresponse().read()
            taken_s.append(time.perf_counter() - began_s)
    except (OSError, http.client.HTTPException) as error:
        raise ProbeError(f"the controller at {controller_ip} does not answer from {namespace}: {error}") from error
    finally:
        connection.close()
    return taken_s


def timer_lateness_s(timers: int = TIMERS, timer_s: float = TIMER_S) -> list[float]:
    """How late timers fire in a thread that is scheduled as an agent is (in real time, where that is permitted)."""
    late_s: list[float] = []

    def body() -> None:
        set_timer_slack()
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # 0: this thread
        for _ in range(timers):
            due_s = time.monotonic() + timer_s
            time.sleep(timer_s)
            late_s.append(time.monotonic() - due_s)

    thread = threading.Thread(target=body, name="timers")
    thread.start()
    thread.join()
    return late_s
