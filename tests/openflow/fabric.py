"""The controller without Ryu's sockets: real core, real shell, fake switches with flow caches, probing packets."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ryu.lib import hub

from controllers import config as controller_config
from controllers.core.demand import Demand
from controllers.ryu_app.datapaths import Datapaths
from controllers.ryu_app.event_log import EventLog
from controllers.ryu_app.fabric_shell import FabricShell
from controllers.ryu_app.metrics import Metrics
from controllers.ryu_app.purge import UnixctlError
from controllers.ryu_app.reconfiguration import Switches
from tests.openflow.fake_switch import FakeDatapath


class FakeCaches:
    """Purges the fake switches' caches, after a moment; `broken` makes it fail."""

    def __init__(self, datapaths: list[FakeDatapath], takes_s: float) -> None:
        self._datapaths = datapaths
        self._takes_s = takes_s
        self.broken = False

    def purge(self) -> None:
        """As FlowCaches.purge."""
        hub.sleep(self._takes_s)
        if self.broken:
            raise UnixctlError("upcall/enable-megaflows on /nowhere: no such file")
        for datapath in self._datapaths:
            datapath.purge()


class Fabric:
    """A fabric of `planes` crossbars; times are real seconds at the given dilation."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        prefills: int = 3,
        decodes: int = 3,
        planes: int = 2,
        reconfiguration_s: float = 0.004,
        **settings: Any,
    ) -> None:
        self.reconfiguration_s = reconfiguration_s
        self.log_path = tmp_path / "controller.jsonl"
        names = [f"p{i}" for i in range(prefills)], [f"d{i}" for i in range(decodes)]
        self.ports = {name: port for port, name in enumerate([*names[0], *names[1]], start=1)}
        self.dilation = settings.pop("time_dilation", 1)
        latency_s = settings.pop("latency_s", 0.0002)
        transfer = settings.pop("transfer", "pull")
        barrier_timeout_s = settings.pop("barrier_timeout_s", 20.0)
        document = {
            "fabric": {
                "kind": "ocs",
                "reconfiguration_s": reconfiguration_s,
                "decode_choice": "circuit-aware",
                **settings,
            },
            "transfer": transfer,
            "rate_bytes_per_s": 1e9,
            "time_dilation": self.dilation,
            "prefills": names[0],
            "decodes": names[1],
            "planes": [
                {"bridge": f"plane{i}", "dpid": i + 1, "unixctl": "/nowhere", "ports": self.ports}
                for i in range(planes)
            ],
            "log": str(self.log_path),
        }
        self.config = controller_config.ControllerConfig.model_validate(document)
        self.datapaths = Datapaths([plane.plane() for plane in self.config.planes], barrier_timeout_s)
        self.switches = [FakeDatapath(i + 1, self.datapaths.answered, latency_s) for i in range(planes)]
        self.caches = FakeCaches(self.switches, 0.0003)
        switches = Switches(self.datapaths, self.caches)  # type: ignore[arg-type]
        core = controller_config.core(self.config)
        self.core: Any = core
        self.shell = FabricShell(self.config, core, switches, EventLog(self.log_path), Metrics())
        self._probes: list[Any] = []
        self.deliveries: list[tuple[float, int, int, tuple[int, ...]]] = []

    def connect(self) -> None:
        """Every plane connects; returns when all are ready."""
        for switch in self.switches:
            self.connect_one(switch)
        self.wait(lambda: self.shell.ready)

    def connect_one(self, switch: FakeDatapath) -> None:
        """One plane's handshake is over."""
        assert self.datapaths.connected(switch)
        self.shell.plane_connected(switch.id)

    def lose(self, switch: FakeDatapath) -> None:
        """One plane's connection ends."""
        if self.datapaths.lost(switch):
            self.shell.plane_lost(switch.id, f"plane{switch.id - 1}")

    def start(self) -> None:
        """The run clock starts now."""
        self.shell.start_clock(time.monotonic(), None)

    def now_s(self) -> float:
        """The run clock."""
        now_s = self.shell.now_s()
        assert now_s is not None
        return now_s

    def ask(self, request: str, prefill: str, head_bytes: int = 1_000_000) -> str:
        """A request up to its last chunk, which ends now: the decode it was given."""
        demand = Demand(request, "t", "", prefill, head_bytes, 0, 0, 0.0, True)
        self.shell.admitted(demand, self.now_s())
        self.shell.prefill_started(request, self.now_s(), self.now_s())
        return self.shell.last_chunk_started(request, self.now_s(), self.now_s()).decode

    def state(self, request: str) -> str:
        """The state of the request's latest window."""
        return [window.state for window in self.core.windows.values() if window.request_id == request][-1]

    def probe(self, period_s: float = 0.0005) -> None:
        """From now on a packet enters every port each period; `deliveries` gets (time, plane, port, outputs)."""

        def run() -> None:
            while True:
                now_s = time.monotonic()
                for plane, switch in enumerate(self.switches):
                    for port in self.ports.values():
                        self.deliveries.append((now_s, plane, port, switch.forward(port)))
                hub.sleep(period_s)

        self._probes.append(hub.spawn(run))

    def dark_times_s(self) -> list[float]:
        """For each port and plane: from its last packet to one output until its first to another."""
        last: dict[tuple[int, int], tuple[float, int]] = {}
        dark = []
        for at_s, plane, port, outputs in self.deliveries:
            assert len(outputs) <= 1, outputs
            if not outputs:
                continue
            before = last.get((plane, port))
            if before and before[1] != outputs[0]:
                dark.append(at_s - before[0])
            last[plane, port] = (at_s, outputs[0])
        return dark

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Lines of the log."""
        return [line for line in map(json.loads, self.log_path.read_text().splitlines()) if line["event"] == kind]

    def wait(self, condition: Any, timeout_s: float = 30.0) -> None:
        """Let the greenlets run until the condition holds."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {timeout_s} s; health {self.shell.health()}"
            hub.sleep(0.0005)

    def stop(self) -> None:
        """End the greenlets."""
        for probe in self._probes:
            hub.kill(probe)
        for switch in self.switches:
            switch.stop()
