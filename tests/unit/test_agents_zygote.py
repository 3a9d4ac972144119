"""The zygote: starts, multiplexes, reports, and leaves no process behind however it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents_stand_in import (
    ROOT,
    AgentsUnderTest,
    StandInController,
    a_request,
    loopback_config,
    loopback_network,
)

Launch = Callable[..., AgentsUnderTest]

pytestmark = pytest.mark.timed  # an agent that others keep from ending for a second is killed


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Four agents that are ready, one request far in the future."""
    controller = StandInController(["d0"], transfer="pull", circuits=True)
    opened: list[AgentsUnderTest] = []

    def start(**options: Any) -> AgentsUnderTest:
        options = {"prefills": 2, "fabric_kind": "ocs", "base": 4, **options}
        config = loopback_config(tmp_path, [a_request(0, 60.0)], controller.port, **options)
        opened.append(AgentsUnderTest(config))
        return opened[-1]

    yield start
    for agents in opened:
        agents.close()
    controller.close()


def ready(launch: Launch) -> tuple[AgentsUnderTest, list[int]]:
    agents = launch()
    agents.wait_for("ready", 4)
    pids = agents.pids()
    assert len(pids) == 4
    return agents, pids


def alive(pids: list[int]) -> list[int]:
    """Which of these still run (a zombie waits for its parent only)."""
    running = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            running.append(pid)
    return running


def gone_within(pids: list[int], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pids)


def test_every_line_carries_its_agent_and_every_exit_is_reported(launch: Launch) -> None:
    agents, _ = ready(launch)
    assert {line["agent"] for line in agents.of("ready")} == {"gw", "p0", "p1", "d0"}
    assert agents.finish() == 0
    assert {(line["agent"], line["status"]) for line in agents.of("exit")} == {
        (name, 0) for name in ("gw", "p0", "p1", "d0")
    }
    assert {line["agent"] for line in agents.of("bye")} == {"gw", "p0", "p1", "d0"}


def test_stdin_closing_ends_everything_and_flushes_the_records(launch: Launch) -> None:
    agents, pids = ready(launch)
    agents.start()
    agents.wait_for("progress", 1)
    assert agents.process.stdin is not None
    agents.process.stdin.close()
    assert agents.drain() == 0
    assert alive(pids) == []
    (record,) = agents.records("request")
    assert (record["status"], record["reason"]) == ("unfinished", "never sent")


def test_sigterm_ends_everything_in_order(launch: Launch) -> None:
    agents, pids = ready(launch)
    os.kill(agents.process.pid, signal.SIGTERM)
    assert agents.drain() == 0  # 1 where an agent had to be killed, which a second's silence brings about
    assert alive(pids) == []


def test_an_agent_that_does_not_end_is_killed_after_a_second(launch: Launch) -> None:
    agents, pids = ready(launch)
    os.kill(pids[1], signal.SIGSTOP)
    begin_s = time.monotonic()
    os.kill(agents.process.pid, signal.SIGTERM)
    assert agents.drain() == 1
    assert time.monotonic() - begin_s > 0.9
    assert alive(pids) == []
    assert [line["status"] for line in agents.of("exit") if line["status"] != 0] == [-signal.SIGKILL]


def test_a_zygote_whose_parent_stopped_reading_still_ends(launch: Launch) -> None:
    agents, pids = ready(launch)
    # More answers than a pipe holds, and nobody reads them.
    for _ in range(900):
        agents.command({"agent": "p0", "type": "connect", "decode": "d9"})
    time.sleep(0.3)
    os.kill(agents.process.pid, signal.SIGTERM)
    assert gone_within([agents.process.pid, *pids], 30)


def test_a_killed_zygote_takes_its_agents_along(launch: Launch) -> None:
    agents, pids = ready(launch)
    os.kill(pids[0], signal.SIGSTOP)  # cannot see its link end: the kernel must do it
    os.kill(agents.process.pid, signal.SIGKILL)
    assert gone_within(pids, 30)


def test_a_killed_parent_takes_zygote_and_agents_along(launch: Launch, tmp_path: Path) -> None:
    config = launch_config(launch, tmp_path)
    read_end, write_end = os.pipe()  # we hold stdin open: only the parent's death can end the zygote
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-E', '-s', '-m', 'emulation.agents.zygote'],"
        " stdin=int(sys.argv[1]), stdout=subprocess.PIPE)\n"
        "seen = [child.stdout.readline() for _ in range(4)]\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(read_end)]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, pass_fds=[read_end])
    try:
        os.write(write_end, json.dumps(config).encode() + b"\n")
        assert parent.stdout is not None
        zygote = int(parent.stdout.readline())
        pids = [int(pid) for pid in Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()]
        assert len(pids) == 4
        parent.kill()
        parent.wait()
        assert gone_within([zygote, *pids], 30)
    finally:
        parent.kill()
        parent.wait()
        if parent.stdout is not None:
            parent.stdout.close()
        os.close(read_end)
        os.close(write_end)


def launch_config(launch: Launch, tmp_path: Path) -> dict[str, Any]:
    """The configuration of a launch that was ended at once."""
    agents = launch(base=5)
    agents.wait_for("ready", 4)
    agents.finish()
    config: dict[str, Any] = agents.config
    return config


def test_a_crashed_agent_is_reported_and_its_requests_fail(launch: Launch, tmp_path: Path) -> None:
    agents, _ = ready(launch)
    agents.start()
    prefill = next(pid for pid in agents.pids() if f"{loopback_network(4)}.1.1:7000" in listening(pid))
    os.kill(prefill, signal.SIGKILL)
    agents.wait_for("exit", 1)
    (exited,) = agents.of("exit")
    assert (exited["agent"], exited["status"]) == ("p0", -signal.SIGKILL)
    agents.wait_for("error", 1)
    assert agents.of("error")[0]["where"] == "link to p0"
    assert agents.finish() == 1


def listening(pid: int) -> set[str]:
    """Addresses a process listens on, from the socket inodes it holds."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(descriptor)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            address, port = fields[1].split(":")
            octets = reversed([int(address[i : i + 2], 16) for i in range(0, 8, 2)])
            found.add(f"{'.'.join(map(str, octets))}:{int(port, 16)}")
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transfer": "push"}, "transfer is 'push'; allowed: layerwise, pull"),
        ({"kv_rate_bytes_per_s": 0}, "kv_rate_bytes_per_s is 0"),
        ({"tenants": {"t": {"prefills": ["p9"], "decodes": ["d0"]}}}, "'p9' is no prefill instance"),
        ({"tenants": {"x": {"prefills": ["p0"], "decodes": ["d0"]}}}, r"requests of unknown tenants ['t']; known: x"),
        ({"controller": {"host": "127.0.0.1"}}, "lacks the key 'port'"),
        ({"model": {}}, "wrong type"),
    ],
)
def test_a_malformed_configuration_is_refused_by_key_and_value(
    launch: Launch, change: dict[str, Any], message: str
) -> None:
    agents = launch(**change)
    assert agents.drain() == 2
    (error,) = agents.of("error")
    assert message in error["text"]


def test_a_namespace_that_does_not_exist_ends_the_agent_with_its_name(launch: Launch, tmp_path: Path) -> None:
    agents = launch(gateway={"name": "gw", "namespace": "hg-nowhere", "host_ip": f"{loopback_network(4)}.0.1"})
    agents.wait_for("exit", 1)
    (error,) = agents.of("error")
    assert error["agent"] == "gw"
    assert "/run/netns/hg-nowhere" in error["text"]


def test_the_zygote_imports_the_standard_library_and_our_pure_rooms_only() -> None:
    script = (
        "import sys; before = set(sys.modules); import emulation.agents.zygote;"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    result = subprocess.run([sys.executable, "-E", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["emulation", "inputs", "process", "workloads"]
