"""The probes before a run touch every GPU NIC and every uplink of every rack."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from cluster_cases import spines_of

from emulation.plan.fabric_plan import FabricPlan
from emulation.probe import paths
from emulation.probe.paths import PathProbe
from experiments.schema.spec import load
from topologies.shape import ClusterShape, KvPaths

SLICE = Path(__file__).resolve().parents[2] / "experiments" / "paper" / "slice.yaml"


@pytest.mark.parametrize(
    ("prefills", "decodes", "ranks", "uplinks", "per_rack"),
    [(4, 3, 1, 2, 4), (5, 3, 1, 2, 4), (6, 6, 1, 4, 4), (4, 4, 2, 4, 4), (1, 1, 1, 3, 4), (16, 16, 4, 16, 8)],
)
def test_every_nic_and_every_uplink_of_every_rack_is_probed(prefills, decodes, ranks, uplinks, per_rack):
    shape = ClusterShape(prefills, decodes, ranks, per_rack)
    probe = object.__new__(PathProbe)
    probe._cluster = SimpleNamespace(shape=shape, kv_paths=KvPaths(shape, shape.leaf_spine(uplinks)))
    probe._instances = {instance.name: instance for instance in shape.instances}
    names = [f"p{i}" for i in range(prefills)], [f"d{i}" for i in range(decodes)]
    chosen = probe._cover(*names, {prefill: dict.fromkeys(names[1]) for prefill in names[0]})
    nics = {(name, rank) for one in chosen for name in one[:2] for rank in [one[2]]}
    assert nics == {(name, rank) for name in probe._instances for rank in range(ranks)}
    racks = {instance.rack for instance in probe._instances.values()}
    crossed = {(probe._instances[name].rack, one[3]) for one in chosen for name in one[:2]}
    assert crossed == {(rack, uplink) for rack in racks for uplink in range(uplinks)}


@pytest.mark.parametrize("fabric", ["eps-1to1-ecmp", "eps-2to1-ecmp", "eps-2to1-adaptive"])
def test_the_128_gpus_of_the_slice_are_probed_in_two_waves_that_share_no_link(fabric, monkeypatch):
    experiment = load(SLICE)
    plan = FabricPlan(experiment, next(each for each in experiment.fabrics if each.name == fabric), 1, ())
    cluster = plan.cluster()
    waves: list[list[paths._Route]] = []
    every_port = [[20_000]] * spines_of(cluster)
    monkeypatch.setattr(paths, "source_ports", lambda *_, **__: defaultdict(lambda: every_port))
    monkeypatch.setattr(PathProbe, "_check", lambda probe, routes: None)
    monkeypatch.setattr(PathProbe, "_read_wave", lambda probe, routes: waves.append(list(routes)))
    PathProbe(plan, cluster, SimpleNamespace(namespace=str)).packet_paths()
    assert [len(wave) for wave in waves] == [32, 32]
    for wave in waves:
        sharing = Counter(link for each in wave for link in each.links)
        at_most = {link: 16 if spines_of(cluster) == 1 and len(link) == 2 else 1 for link in sharing}
        assert all(count <= at_most[link] for link, count in sharing.items()), sharing.most_common(3)
