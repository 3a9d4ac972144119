"""Doctor finds what is there by trying it, and says what to do about what is not."""

import os
import resource
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from emulation.doctor import kernel_probe, preflight
from emulation.doctor.kernel_probe import ProbeResult, parse_probe
from emulation.doctor.preflight import Capability, can_run, doctor_table
from outputs.terminal import Terminal


def capability(**changes: object) -> Capability:
    fields = {
        "name": "qdisc htb",
        "state": "ok",
        "value": "works",
        "why_it_matters": "shapes",
        "remedy": "",
        "required": True,
    }
    return Capability(**{**fields, **changes})  # type: ignore[arg-type]


def shown(caps: Sequence[Capability]) -> str:
    console = Terminal(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(doctor_table(caps))
    return console.export_text()


def features(results: dict[str, ProbeResult]) -> dict[str, Capability]:
    return {cap.name: cap for cap in preflight._kernel_features(results)}


def test_a_machine_with_everything_can_run() -> None:
    assert can_run([capability(), capability(name="root")])


def test_a_missing_requirement_stops_a_run() -> None:
    assert not can_run([capability(), capability(state="missing")])


@pytest.mark.parametrize(("state", "required"), [("missing", False), ("degraded", True), ("degraded", False)])
def test_what_is_optional_or_only_degraded_does_not_stop_a_run(state: str, required: bool) -> None:
    assert can_run([capability(state=state, required=required)])


def test_the_table_gives_the_remedy_for_what_is_not_ok_and_only_there() -> None:
    text = shown(
        [
            capability(remedy="unneeded advice"),
            capability(name="ping", state="missing", value="not found", remedy="install it"),
        ]
    )
    assert "install it" in text
    assert "not found" in text
    assert "unneeded advice" not in text


def test_the_table_tells_optional_gaps_from_those_that_stop_a_run() -> None:
    assert "missing (optional)" in shown([capability(state="missing", required=False)])
    assert "missing (optional)" not in shown([capability(state="missing", required=True)])


def test_the_table_shows_a_value_with_brackets_as_it_is() -> None:
    assert "tc [sch_htb] said no" in shown([capability(value="tc [sch_htb] said no")])


def test_the_probe_s_lines_are_read_by_name() -> None:
    assert parse_probe("htb\tok\t\nnetem\tfailed\tError: unknown. \n") == {
        "htb": ProbeResult(True, ""),
        "netem": ProbeResult(False, "Error: unknown."),
    }


@pytest.mark.parametrize("line", ["htb ok", "htb\tperhaps\t", "sh: probe: not found"])
def test_a_probe_line_of_another_form_is_an_error_that_shows_it(line: str) -> None:
    with pytest.raises(ValueError, match="line 2: expected") as caught:
        parse_probe(f"veth\tok\t\n{line}\n")
    assert repr(line) in str(caught.value)


def test_a_qdisc_the_kernel_refuses_is_missing_with_what_tc_said() -> None:
    cap = features({"htb": ProbeResult(False, "Error: Specified qdisc kind is unknown.")})["qdisc htb"]
    assert (cap.state, cap.value, cap.required) == ("missing", "Error: Specified qdisc kind is unknown.", True)
    assert "modules" in cap.remedy


def test_a_missing_netem_is_told_but_stops_nothing() -> None:
    cap = features({"netem": ProbeResult(False, "unknown")})["qdisc netem"]
    assert (cap.state, cap.required) == ("missing", False)
    assert can_run([cap])


def test_without_root_or_user_namespaces_an_untried_feature_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(preflight, "module_available", lambda name, load=False: name == "sch_htb")
    found = features({})
    assert (found["qdisc htb"].state, found["qdisc htb"].value) == ("ok", "module sch_htb, not tried")
    assert (found["qdisc bfifo"].state, found["qdisc bfifo"].remedy) == ("degraded", "sudo ./heliograph doctor")
    assert found["ECMP hash policy 3"].state == "degraded"


def test_root_that_can_make_no_namespace_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = features({})
    assert found["network namespaces"].state == "missing"
    assert not can_run(found.values())


def test_a_machine_without_unshare_is_probed_as_one_that_allows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError("unshare")

    monkeypatch.setattr(subprocess, "run", absent)
    assert kernel_probe.probe_kernel() == {}


@pytest.mark.parametrize(("uid", "tells"), [(0, True), (1000, False)])
def test_refusals_count_only_where_the_namespace_had_its_rights(
    uid: int, tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "namespaces\tfailed\tunshare: permission denied\nhtb\tfailed\tOperation not permitted\n"
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: subprocess.CompletedProcess([], 0, stdout=refused))
    assert ("htb" in kernel_probe.probe_kernel()) == tells


@pytest.mark.parametrize(("module", "datapath"), [(True, "system"), (False, "netdev")])
def test_the_kernel_s_datapath_is_chosen_where_its_module_is(
    module: bool, datapath: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(preflight, "module_available", lambda name, load: asked.append(name) or module)
    assert preflight.choose_datapath() == datapath
    assert asked == ["openvswitch"]


def test_a_congestion_control_is_tried_on_a_socket() -> None:
    assert preflight.congestion_control_works("reno")  # in every Linux kernel
    assert not preflight.congestion_control_works("no-such-control")


@pytest.mark.parametrize(
    ("said", "version"),
    [("ovs-vswitchd (Open vSwitch) 3.1.0", (3, 1, 0)), ("tool 2.17.9-0ubuntu1", (2, 17, 9)), ("no version here", None)],
)
def test_versions_are_read_from_what_programs_say(said: str, version: tuple[int, ...] | None) -> None:
    assert preflight.parse_version(said) == version


def test_an_open_vswitch_without_user_space_segmentation_offload_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "which", lambda program: f"/usr/sbin/{program}")
    old = subprocess.CompletedProcess([], 0, stdout="ovs-vswitchd (Open vSwitch) 2.12.1\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: old)
    cap = preflight._open_vswitch()
    assert (cap.state, cap.value) == ("missing", "ovs-vswitchd (Open vSwitch) 2.12.1")
    assert "2.13" in cap.remedy


def test_absent_programs_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "which", lambda program: None if program == "ovs-ofctl" else f"/bin/{program}")
    cap = preflight._open_vswitch()
    assert (cap.state, cap.value, cap.remedy) == ("missing", "not found: ovs-ofctl", "sudo ./heliograph setup")


def test_a_dead_run_s_leftovers_are_shown_and_clean_is_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulation.linux.ledger.dead_runs", lambda: [Path("/run/heliograph/r1")])
    cap = preflight._leftovers()
    assert (cap.state, cap.value) == ("degraded", "/run/heliograph/r1")
    assert "heliograph clean" in cap.remedy


def test_this_machine_is_examined_in_two_seconds_and_nothing_stays_behind() -> None:
    """Of processor time, its programs' included: the suite shares its cores. By the clock, it never hangs."""

    def used_s() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in used)

    start_s, before_s = time.monotonic(), used_s()
    caps = preflight.capabilities()
    assert used_s() - before_s < 2
    assert time.monotonic() - start_s < 30
    names = [cap.name for cap in caps]
    assert len(names) == len(set(names))
    assert not Path("/sys/class/net/probe0").exists()
    assert all(cap.remedy for cap in caps if cap.state != "ok")


def test_an_open_vswitch_that_is_stopped_while_it_says_its_version_is_missing_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in preflight.OPEN_VSWITCH_BINARIES:
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    monkeypatch.setattr(preflight, "search_environment", lambda: environment)
    monkeypatch.setattr(preflight, "which", lambda name: str(tmp_path / name))
    monkeypatch.setattr(preflight, "PROBE_TIMEOUT_S", 0.5)
    monkeypatch.setenv("PATH", environment["PATH"])
    found = preflight._open_vswitch()
    assert found.state == "missing"
    assert "ovs-vswitchd --version has not ended within 0.5 s" in found.value
