"""What a run's parts may do once the network stands: nothing that their user may not, whatever code a plug-in is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_runs import Command, Commands, user

from process.rights import CAP_NET_RAW, NOBODY_ELSE

RAW = 1 << CAP_NET_RAW
EXPERIMENT = """\
name: rights
cluster: {{prefill_instances: 2, decode_instances: 1, gpus_per_instance: 1, instances_per_rack: 2}}
model: {{name: llama-3.1-70b, tp: 4}}
transfer: pull
workload:
  window_s: 60
  warmup_s: 0
  tenants:
    - {{name: agentic, source: synthetic-agentic, load: 0.5}}
fabrics:
  - {fabric}
"""
CIRCUITS = "{name: circuits, kind: ocs, reconfiguration_ms: 25}"
PACKETS = "{name: packets, kind: eps, oversubscription: 2}"
PLUGIN = """\
import os
from controllers.decode_choices.by_load import LeastLoaded

class Curious(LeastLoaded):
    def __init__(self):
        for place in %r:
            try:
                with open(place, "a"):
                    said = "written"
            except OSError as error:
                said = error.strerror
            print(f"{os.getuid()} {place}: {said}", flush=True)
"""


@pytest.fixture(params=[None, "54321"], ids=["root", "sudo"])
def commands(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)
        if request.param:
            monkeypatch.setenv(name, request.param)
    with user(tmp_path) as found:
        yield found


def started(commands: Commands, folder: Path, experiment: str, *options: object) -> Command:
    (folder / "rights.yaml").write_text(experiment)
    run = commands.start("run", folder / "rights.yaml", *options, "--artifact-dir", folder / "out")
    run.wait_for(" s  sent ")
    return run


def parts(commands: Commands) -> dict[str, list[int]]:
    """Pids of what runs unprivileged, by kind."""
    found: dict[str, list[int]] = {"ryu_app/manager.py": [], "emulation.agents.zygote": [], "tcpdump": []}
    for line in commands.processes():
        pid, words = line.removeprefix("process ").split(": ", 1)
        for kind in found:
            if kind in words:
                found[kind].append(int(pid))
    return found


def threads(pid: int) -> Iterator[dict[str, str]]:
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        yield dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)


@pytest.mark.parametrize("fabric", [CIRCUITS, PACKETS], ids=["circuits", "packets"])
def test_no_part_but_the_switches_has_root_or_a_capability(commands: Commands, tmp_path: Path, fabric: str) -> None:
    run = started(commands, tmp_path, EXPERIMENT.format(fabric=fabric), "--pcap")
    expected = os.environ.get("SUDO_UID", str(NOBODY_ELSE))
    found = parts(commands)
    # the gateway and three instances, and their parent
    assert (len(found["ryu_app/manager.py"]), len(found["emulation.agents.zygote"])) == (1, 5), found
    assert found["tcpdump"]
    for kind, pids in found.items():
        for pid in pids:
            for status in threads(pid):
                assert status["Uid"].split() == status["Gid"].split() == [expected] * 4, (kind, status)
                assert status["Groups"].split() == []
                assert status["NoNewPrivs"] == "1", kind
                kept = RAW if kind == "tcpdump" else 0
                assert {int(status[each], 16) for each in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {kept}
    run.process.send_signal(signal.SIGINT)
    assert run.ended(60) == 130, run.said()


def test_they_end_with_a_run_that_is_killed(commands: Commands, tmp_path: Path) -> None:
    """The kernel forgets whose death ends a process when that becomes somebody else."""
    run = started(commands, tmp_path, EXPERIMENT.format(fabric=CIRCUITS), "--pcap")
    run.process.kill()
    run.ended(10)
    commands.until("ended", lambda: not commands.processes(), 5.0)
    assert commands.start("clean").ended(60) == 0


def test_a_plugin_in_the_controller_can_write_nothing_of_roots(commands: Commands, tmp_path: Path) -> None:
    """Its file is read while there are rights to: it may lie where its user alone may look."""
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    treasure = secret / "treasure"
    treasure.write_text("gold")
    treasure.chmod(0o600)
    places = [str(treasure), "/run/heliograph/lock"]
    (tmp_path / "curious.py").write_text(PLUGIN % places)
    (tmp_path / "curious.py").chmod(0o600)
    fabric = CIRCUITS[:-1] + ", decode_choice: 'curious:Curious'}"
    run = started(commands, tmp_path, EXPERIMENT.format(fabric=fabric).replace("window_s: 60", "window_s: 2"))
    assert run.ended(120) in (0, 3), run.said()
    (out,) = (tmp_path / "out").rglob("controller.out")
    said = out.read_text()
    uid = os.environ.get("SUDO_UID", str(NOBODY_ELSE))
    for place in places:
        assert f"{uid} {place}: Permission denied" in said, said
    assert treasure.read_text() == "gold"
