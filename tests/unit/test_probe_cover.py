"""The probes before a run touch every GPU NIC and every uplink of every rack."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from emulation.paths import PathProbe


@pytest.mark.parametrize(
    ("prefills", "decodes", "ranks", "uplinks", "per_rack"),
    [(4, 3, 1, 2, 4), (5, 3, 1, 2, 4), (6, 6, 1, 4, 4), (4, 4, 2, 4, 4), (1, 1, 1, 3, 4), (16, 16, 4, 16, 8)],
)
def test_every_nic_and_every_uplink_of_every_rack_is_probed(prefills, decodes, ranks, uplinks, per_rack):
    probe = object.__new__(PathProbe)
    names = [f"p{i}" for i in range(prefills)], [f"d{i}" for i in range(decodes)]
    first_decode_rack = -(-prefills // per_rack)
    probe._instances = {
        name: SimpleNamespace(rack=offset + number // per_rack, gpu_ips=("",) * ranks)
        for role, offset in ((names[0], 0), (names[1], first_decode_rack))
        for number, name in enumerate(role)
    }
    chosen = probe._cover(*names, {prefill: dict.fromkeys(names[1]) for prefill in names[0]}, uplinks)
    nics = {(name, rank) for one in chosen for name in one[:2] for rank in [one[2]]}
    assert nics == {(name, rank) for name in probe._instances for rank in range(ranks)}
    racks = {instance.rack for instance in probe._instances.values()}
    crossed = {(probe._instances[name].rack, one[3]) for one in chosen for name in one[:2]}
    assert crossed == {(rack, uplink) for rack in racks for uplink in range(uplinks)}
