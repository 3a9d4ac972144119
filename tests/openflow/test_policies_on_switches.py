"""Every commit policy on fake switches, many requests at once; and plug-ins that fail end the run, never hang it."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from ryu.lib import hub

from controllers.core.demand import Demand
from controllers.ryu_app import fabric_shell
from controllers.ryu_app.fabric_shell import Faulted
from inputs.plugin_fault import PluginFault
from tests.openflow.fabric import Fabric

POLICIES = ("last-chunk", "admission", "none")

PLUGINS = """
import time
from ryu.lib import hub
from controllers.core.demand import Placement
from controllers.core.reservations import Reservations

class Computes:
    def choose(self, demand, candidates, now_s):
        while True:
            pass

class Blocks:
    def choose(self, demand, candidates, now_s):
        time.sleep(60)

class Waits:
    def choose(self, demand, candidates, now_s):
        hub.sleep(60)

class Raises(Reservations):
    def last_chunk_started(self, request_id, predicted_end_s, now_s):
        return {}["no such key"]

class HoldsOn(Reservations):
    def expire(self, request_id, reason, now_s):
        raise KeyError("never let go")

class Exits(Reservations):
    def last_chunk_started(self, request_id, predicted_end_s, now_s):
        raise SystemExit(0)

class ExitsWhenDue(Reservations):
    def due(self, now_s):
        raise SystemExit(0)

class Elsewhere(Reservations):
    def last_chunk_started(self, request_id, predicted_end_s, now_s):
        super().last_chunk_started(request_id, predicted_end_s, now_s)
        return Placement("d99", True)
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of a module with plug-ins that fail; one decision may take 0.2 s."""
    (tmp_path / "failing_plugins.py").write_text(PLUGINS)
    monkeypatch.setattr(fabric_shell, "LIMIT_S", 0.2)
    return str(tmp_path / "failing_plugins.py")


class Connected:
    """A fabric that stops itself."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.fabric = Fabric(tmp_path, **settings)

    def __enter__(self) -> Fabric:
        self.fabric.connect()
        self.fabric.start()
        return self.fabric

    def __exit__(self, *error: object) -> None:
        self.fabric.stop()


@pytest.mark.parametrize("transfer", ["pull", "layerwise"])
@pytest.mark.parametrize("commit", POLICIES)
def test_concurrent_requests_never_double_book_a_port(tmp_path: Path, commit: str, transfer: str) -> None:
    choice = "least-loaded" if commit == "none" else "circuit-aware"
    with Connected(tmp_path, commit=commit, decode_choice=choice, transfer=transfer, reconfiguration_s=0.002) as fabric:
        draw = random.Random(7)
        done: list[str] = []

        def serve(number: int) -> None:
            request, shell = f"r{number}", fabric.shell
            hub.sleep(draw.uniform(0, 0.1))
            demand = Demand(request, "t", "", f"p{number % 3}", 3_000_000, 300_000, 3_750, 0.005, True)
            shell.admitted(demand, fabric.now_s())
            hub.sleep(draw.uniform(0, 0.01))
            end_s = fabric.now_s() + 0.005
            shell.prefill_started(request, end_s, fabric.now_s())
            if shell.last_chunk_started(request, end_s, fabric.now_s()) is None:
                hub.sleep(0.005)
                assert shell.last_chunk_started(request, fabric.now_s(), fabric.now_s()) is not None
            for part in ("head", "tail") if transfer == "layerwise" else ("all",):
                while (window := fabric.core.timetable.open_window(request, part)) is None or window.state != "live":
                    hub.sleep(0.001)
                hub.sleep(draw.uniform(0, 0.006))
                shell.transfer_done(request, part, fabric.now_s(), False)
            done.append(request)

        for number in range(30):
            hub.spawn(serve, number)
        while len(done) < 30:
            assert not fabric.shell.fault, fabric.shell.fault
            for calendar in fabric.core.timetable.calendars.values():
                for earlier, later in zip(calendar.windows, calendar.windows[1:], strict=False):
                    assert earlier.end_s <= later.start_s + 1e-9
            fabric.wait(lambda: True)
            hub.sleep(0.001)
        assert all(not calendar.windows for calendar in fabric.core.timetable.calendars.values())
        dark = [line for line in fabric.events("switch") if line["dark_s"] < 0.002]
        assert not dark, "a circuit was live before tau had passed"


def test_without_reservation_the_answer_is_null_until_the_kv_is_ready(tmp_path: Path) -> None:
    with Connected(tmp_path, commit="none", decode_choice="least-loaded") as fabric:
        shell = fabric.shell
        shell.admitted(Demand("r0", "t", "", "p0", 1_000_000, 0, 0, 0.0, True), fabric.now_s())
        shell.prefill_started("r0", fabric.now_s(), fabric.now_s())
        assert shell.last_chunk_started("r0", fabric.now_s(), fabric.now_s()) is None
        assert fabric.events("window") == []
        placement = shell.last_chunk_started("r0", fabric.now_s(), fabric.now_s())
        assert placement is not None
        assert placement.decode == "d0"
        assert fabric.state("r0") == "dark"
        fabric.wait(lambda: fabric.state("r0") == "live")


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"decode_choice": "Computes"}, ["Computes took longer than 0.2 s", "while True", "failing_plugins.py"]),
        ({"decode_choice": "Blocks"}, ["Blocks took longer than 0.2 s", "time.sleep(60)"]),
        ({"decode_choice": "Waits"}, ["Waits took longer than 0.2 s", "hub.sleep(60)"]),
        ({"commit": "Raises"}, ["Raises failed", "KeyError: 'no such key'", 'return {}["no such key"]']),
        ({"commit": "Exits"}, ["Exits failed", "SystemExit: 0"]),
        ({"commit": "Elsewhere"}, ["Elsewhere placed a request on 'd99'", "d0, d1, d2"]),
    ],
)
def test_a_plugin_that_fails_is_named_with_its_traceback_and_never_hangs(
    tmp_path: Path, plugins: str, policy: dict[str, str], says: list[str]
) -> None:
    ((key, name),) = policy.items()
    with Connected(tmp_path, **{key: f"{plugins}:{name}"}) as fabric:
        began_s = time.monotonic()
        with pytest.raises(PluginFault) as fault:
            fabric.ask("r0", "p0")
        assert time.monotonic() - began_s < 30  # they would take a minute, or for ever
        for text in [*says, f"{plugins}:{name}"]:
            assert text in str(fault.value)


def test_a_commit_rule_that_exits_where_circuits_are_asked_for_is_a_fault_of_the_run(
    tmp_path: Path, plugins: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Connected(tmp_path, commit=f"{plugins}:ExitsWhenDue") as fabric:
        fabric.shell._keeper.spawn(fabric.shell._keeper.advance)  # as its alarm does
        fabric.wait(lambda: fabric.shell.fault is not None)
        assert "advance: SystemExit: 0" in fabric.shell.fault
    caplog.clear()


def test_a_plugin_that_failed_is_not_asked_again(tmp_path: Path, plugins: str) -> None:
    with Connected(tmp_path, decode_choice=f"{plugins}:Computes") as fabric:
        with pytest.raises(PluginFault):
            fabric.ask("r0", "p0")
        began_s = time.monotonic()
        for number in range(1, 20):
            with pytest.raises(Faulted, match=r"nothing is decided any more: .*Computes took longer"):
                fabric.ask(f"r{number}", "p1")
        assert time.monotonic() - began_s < 2, "at 0.2 s each it would take 4 s, and the run would call it frozen"


def test_a_commit_rule_that_fails_where_a_sender_has_died_is_a_fault_of_the_run(
    tmp_path: Path, plugins: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Connected(tmp_path, commit=f"{plugins}:HoldsOn") as fabric:
        stream = fabric.shell.listen("p0")
        fabric.ask("r0", "p0")
        fabric.wait(lambda: fabric.state("r0") == "live")
        stream.close()
        assert fabric.shell.fault
        for text in [f"commit rule {plugins}:HoldsOn failed", "KeyError: 'never let go'"]:
            assert text in fabric.shell.fault
    caplog.clear()
