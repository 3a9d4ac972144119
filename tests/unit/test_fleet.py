"""The parent's view of its agents: who is there, who has fallen silent, and that nobody can hold it up."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents_stand_in import StandInController, a_request, loopback_config

from emulation.run import fleet as fleet_module
from emulation.run.fleet import Fleet, FleetError

pytestmark = pytest.mark.timed  # an agent that others keep from its heartbeat is silent too


class Started:
    """What a ledger would write down: the pid of the zygote."""

    def process(self, pid: int) -> None:
        self.pid = pid

    def agents(self) -> list[int]:
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in text.split()]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Fleet, Started]]:
    """Three agents on loopback that are ready, one request far in the future."""
    monkeypatch.setattr(fleet_module, "SILENCE_S", 2.5)
    controller = StandInController(["d0"], transfer="pull", circuits=True)
    config = loopback_config(tmp_path, [a_request(0, 60.0)], controller.port, fabric_kind="ocs", base=9)
    agents, started = Fleet(config, log=tmp_path / "agents.out"), Started()
    agents.start(started)  # type: ignore[arg-type]
    try:
        agents.wait_each("ready", agents.names, timeout_s=60, what="agents start")
        yield agents, started
    finally:
        agents.kill()
        controller.close()


def test_an_agent_that_is_frozen_before_it_is_ready_is_noticed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(fleet_module, "SILENCE_S", 1.0)
    with socket.socket() as nobody:  # bound, not listening: the agents try to reach their controller for long
        nobody.bind(("127.0.0.1", 0))
        config = loopback_config(tmp_path, [], nobody.getsockname()[1], fabric_kind="ocs", base=11)
        agents, started, attended = Fleet(config, log=tmp_path / "agents.out"), Started(), []
        agents.start(started)  # type: ignore[arg-type]
        try:
            while len(started.agents()) < 3:
                time.sleep(0.01)
            os.kill(started.agents()[1], signal.SIGSTOP)
            with pytest.raises(
                FleetError, match=r"agents start: an agent \(process \d+\) has been frozen for \d+\.\d s"
            ):
                agents.wait_ready(timeout_s=60, attend=lambda: attended.append(1))
            assert attended
        finally:
            agents.kill()


def test_agents_that_wait_are_not_silent(fleet) -> None:
    agents, _ = fleet
    with pytest.raises(FleetError, match="nothing within 4 s"):
        agents.wait(lambda message: False, timeout_s=4, what="a long wait")
    assert agents.silent() == []


def test_a_frozen_agent_is_named_and_does_not_hold_up_the_end(fleet) -> None:
    agents, started = fleet
    os.kill(started.agents()[1], signal.SIGSTOP)  # the gateway is the first
    with pytest.raises(FleetError, match=r"replay: agent p0 has said nothing for \d+\.\d s: it is frozen"):
        agents.wait(lambda message: False, timeout_s=60, what="replay")
    assert len(agents.silent()) == 1
    began_s = time.monotonic()
    agents.stop(timeout_s=60)
    assert time.monotonic() - began_s < 30
    assert set(agents.byes) >= {"gw", "d0"}


def test_a_frozen_parent_silences_all_and_takes_no_commands(fleet, monkeypatch) -> None:
    agents, started = fleet
    monkeypatch.setattr(fleet_module, "WRITE_TIMEOUT_S", 0.3)
    os.kill(started.pid, signal.SIGSTOP)
    with pytest.raises(FleetError, match=r"no agent has said anything for .*: their parent is frozen"):
        agents.wait(lambda message: False, timeout_s=60, what="replay")
    long_command = {"type": "connect", "decode": "x" * 1_000_000}  # a pipe takes some before it is full
    with pytest.raises(FleetError, match=r"has taken no command for 0\.3 s"):
        agents.broadcast(long_command)
    began_s = time.monotonic()
    agents.stop(timeout_s=60)
    assert time.monotonic() - began_s < 30


def test_a_command_to_a_parent_that_is_gone_says_so(fleet) -> None:
    agents, started = fleet
    os.kill(started.pid, signal.SIGKILL)
    while agents.zygote_pid is not None:  # its end of the pipe is closed when it has died, not when it is told to
        time.sleep(0.01)
    with pytest.raises(FleetError, match="the parent of the agents ended"):
        agents.broadcast({"command": "nothing"})


def test_a_run_that_was_stopped_itself_blames_nobody(fleet, monkeypatch) -> None:
    """As after Ctrl-Z and fg: everything heard is old, and what was said meanwhile is read in a moment."""
    agents, _ = fleet
    for name in agents.names:
        agents._heard_s[name] -= 60
    monkeypatch.setattr(fleet_module, "CATCH_UP_S", 1.5)
    assert agents.silent() == []
