"""`fabrics.N.topology`: a user's own routers, checked before anything is built and the same for packets and twin."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_topologies import walk

from emulation.plan.fabric_plan import FabricPlan
from experiments.schema import plugins
from experiments.schema.errors import SpecError
from experiments.schema.spec import load
from simulation.twin import Twin

ROOT = Path(__file__).resolve().parents[2]
DEMO, THREE_TIER = ROOT / "experiments" / "demo.yaml", ROOT / "examples" / "three_tier.py"
RACKS_OF_TWO = ["cluster.instances_per_rack=2", "workload.window_s=20"]


def fabric(topology: str, **more: object) -> str:
    pairs = ", ".join(f"{key}: {value}" for key, value in {"name": "own", "kind": "eps", **more}.items())
    return f"fabrics=[{{{pairs}, topology: '{topology}'}}]"


@pytest.fixture
def three_tier():
    return load(DEMO, [fabric(f"{THREE_TIER}:ThreeTier"), *RACKS_OF_TWO])


def test_kv_has_every_shortest_path_of_three_tiers_on_packets_too(three_tier):
    cluster = FabricPlan(three_tier, three_tier.fabrics[0], 1, ()).cluster()
    ips = {instance.name: instance.gpu_ips[0] for instance in cluster.instances}
    assert len(cluster.kv_paths.between("p0", "d0", 0)) == 8  # an aggregation, a core, and an aggregation again
    assert len(cluster.kv_paths.between("p0", "p2", 0)) == 2  # within the pod
    for path in cluster.kv_paths.between("p0", "d0", 0):
        assert ("p0", *path, "d0") in walk(cluster, "p0", ips["d0"])


def test_routers_of_one_path_hash_different_fields_or_the_second_would_always_choose_as_the_first(three_tier):
    cluster = FabricPlan(three_tier, three_tier.fabrics[0], 1, ()).cluster()
    path = cluster.kv_paths.between("p0", "d0", 0)[0]
    hashed = [cluster.nodeInfo(router)["sysctls"]["net.ipv4.fib_multipath_hash_fields"] for router in path[:3]]
    assert len(set(hashed)) == 3


def test_the_twin_shares_the_links_of_the_path_that_each_flow_is_hashed_to(three_tier):
    requests = three_tier.requests(1)
    result = Twin(three_tier, three_tier.fabrics[0], 1, requests).run()
    assert set(result.frames.requests["status"]) == {"completed"}
    carried = result.links.groupby("role")["tx_bytes"].sum()
    assert carried["uplink"] == carried["downlink"] == 2 * carried["gpu-nic"]  # up two tiers and down two
    assert set(result.frames.transfers["uplink"]) == set(range(8))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Own: pass", "not a class derived from mininet.topo.Topo"),
        ("from mininet.topo import Topo\nclass Own(Topo): pass", "0 switches"),
        ("from mininet.topo import Topo\nclass Own(Topo):\n def build(self, **_): 1 / 0", "ZeroDivisionError"),
        ("from mininet.topo import Topo\nclass Own(Topo):\n def build(self): pass", "racks"),
        ("raise SystemExit(0)", "SystemExit"),
    ],
)
def test_a_topology_that_cannot_be_is_refused_with_its_file_before_anything_is_built(tmp_path, text, said):
    (tmp_path / "own.py").write_text(text)
    experiment = load(DEMO, [fabric(f"{tmp_path}/own.py:Own")])
    (line,) = plugins.refusals(experiment)
    assert line.startswith("fabrics.0.topology: ")
    assert "own.py:Own" in line
    assert said in line


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"oversubscription": 2}, "oversubscription: 2 with a topology"),
        ({"uplinks": 2}, "uplinks: 2 with a topology"),
        ({"routing": "srpt"}, "routing: 'srpt' pools the uplinks of a leaf-spine"),
    ],
)
def test_what_a_topology_replaces_is_refused_beside_it(more, said):
    with pytest.raises(SpecError, match=said):
        load(DEMO, [fabric(f"{THREE_TIER}:ThreeTier", **more)])


def test_the_documented_topology_is_the_file_that_runs():
    assert f"```python\n{THREE_TIER.read_text()}```" in (ROOT / "docs/how-to/own-topology.md").read_text()
    assert len(THREE_TIER.read_text().splitlines()) <= 60
