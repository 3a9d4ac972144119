"""A stock Debian kernel, booted by QEMU: the datapath, qdiscs and congestion controls that a Vagrant box brings, and a
small experiment over them. `kernel_datapath.py` runs there; what it found is judged here."""

import json

import pytest

from scripts.vm.boot import CannotBoot, boot

ROUNDS = 8  # of swaps, and one that joins the pairs
LINKS = 4  # of a path between racks, each way


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the booted machine reports."""
    exchange = tmp_path_factory.mktemp("exchange")
    command = [".venv/bin/python", "tests/vm/kernel_datapath.py", "/exchange/result.json"]
    try:
        ended = boot(command, exchange, timeout_s=1200, report=print)
    except CannotBoot as error:
        pytest.skip(f"no machine can be booted here: {error}")
    assert ended.status == 0, ended.console[-4000:]
    return json.loads((exchange / "result.json").read_text())


def test_the_kernel_has_what_a_vagrant_box_is_for(found: dict) -> None:
    assert found["datapath"] == "system"
    doctor = found["doctor"]
    assert doctor["datapath"]["value"] == "system (kernel module openvswitch)"
    for name in ("qdisc netem", "qdisc fq", "qdisc prio", "congestion control dctcp", "congestion control bbr"):
        assert doctor[name]["state"] == "ok", doctor[name]
    assert [name for name, capability in doctor.items() if capability["required"] and capability["state"] != "ok"] == []


def test_an_experiment_runs_over_circuits_that_the_kernel_switches(found: dict) -> None:
    run = found["circuits"]
    assert run["failure"] in (None, "")
    assert (run["completed"], run["fidelity"]["datapath"]) == (run["offered"], "system")
    assert run["switched"] >= 2
    errors = {m["name"]: m["emulated"] for m in run["fidelity"]["measures"] if m["name"].startswith("goodput error")}
    assert errors
    assert max(errors.values()) < 0.2, errors
    assert run["goodput_bps"] <= 50e6
    # Packets that cross in the dark, or a circuit that is live too early, would be our fault and not the machine's.
    assert not [reason for reason in run["fidelity"]["reasons"] if "dark" in reason], run["fidelity"]["reasons"]


def test_a_link_delay_is_one_way_and_on_every_link(found: dict) -> None:
    added_s = found["link_delay"]["with_s"] - found["link_delay"]["without_s"]
    assert added_s == pytest.approx(2 * LINKS * 0.02, rel=0.2)


def test_no_frame_crosses_a_circuit_in_the_dark(found: dict) -> None:
    dark = found["dark_time"]
    assert dark["faults"] == []
    assert dark["leaks_s"] == []
    assert dark["switches"] == 2 * (ROUNDS + 1)
    assert dark["dark_s"]  # not of every switch: a circuit that stands for 5 ms does not always carry a frame here
    assert min(dark["dark_s"]) >= 0.025
