"""A stock Debian kernel, booted by QEMU: the datapath, qdiscs and congestion controls that a Vagrant box brings, link
delays and circuits that are swapped. `kernel_datapath.py` runs there; what it found is judged here."""

import pytest

PARTS = ("doctor", "link_delay", "dark_time")
ROUNDS = 8  # of swaps, and one that joins the pairs
LINKS = 4  # of a path between racks, each way


def test_the_kernel_has_what_a_vagrant_box_is_for(found: dict) -> None:
    assert found["datapath"] == "system"
    doctor = found["doctor"]
    assert doctor["datapath"]["value"] == "system (kernel module openvswitch)"
    for name in ("qdisc netem", "qdisc fq", "qdisc prio", "congestion control dctcp", "congestion control bbr"):
        assert doctor[name]["state"] == "ok", doctor[name]
    assert [name for name, capability in doctor.items() if capability["required"] and capability["state"] != "ok"] == []


def test_a_link_delay_is_one_way_and_on_every_link(found: dict) -> None:
    added_s = found["link_delay"]["with_s"] - found["link_delay"]["without_s"]
    assert added_s == pytest.approx(2 * LINKS * 0.02, rel=0.2)


def test_no_frame_crosses_a_circuit_in_the_dark(found: dict) -> None:
    dark = found["dark_time"]
    assert dark["faults"] == []
    assert dark["leaks_s"] == []
    assert dark["switches"] == 2 * (ROUNDS + 1)
    assert len(dark["dark_s"]) >= ROUNDS  # of twice as many: not each circuit need carry a frame here
    assert min(dark["dark_s"]) >= 0.025
