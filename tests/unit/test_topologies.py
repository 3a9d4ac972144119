"""Topologies are data: who is where, what reaches what, and by which addresses, without any network."""

import ipaddress
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_cases import cluster_of, spines_of

from topologies.circuit import CircuitLayer
from topologies.cluster import Cluster, leaf_port
from topologies.leaf_spine import LeafSpine
from topologies.wiring import Hop, Route, WiredTopo, mac_address

ROOT = Path(__file__).resolve().parents[2]


def demo(**changes: object) -> Cluster:
    options: dict[str, object] = {
        "prefill_instances": 4,
        "decode_instances": 3,
        "fabric": "eps",
        "uplinks": 2,
        "kv_goodput_bps": 36e6,
    }
    return cluster_of(**(options | changes))


def addresses(topo: WiredTopo) -> dict[str, tuple[str, str]]:
    """Address -> (node, interface)."""
    found = [
        (cidr.split("/")[0], (node, interface))
        for node in topo.hosts()
        for interface, cidr in topo.nodeInfo(node)["addresses"].items()
    ]
    assert len(dict(found)) == len(found), "an address is given twice"
    return dict(found)


def walk(topo: WiredTopo, source: str, destination_ip: str) -> set[tuple[str, ...]]:
    """Every path, as nodes, that longest-prefix matching over the routes allows from a node to an address."""
    where = addresses(topo)
    far_end = {}
    for node1, node2, info in topo.links(withInfo=True):
        far_end[node1, info["intfName1"]] = node2
        far_end[node2, info["intfName2"]] = node1
    paths: set[tuple[str, ...]] = set()

    def step(path: tuple[str, ...]) -> None:
        assert len(path) < 8, f"a loop: {path}"
        if where[destination_ip][0] == path[-1]:
            paths.add(path)
            return
        for hop in best_route(topo, path[-1], destination_ip).hops:
            step((*path, far_end[path[-1], hop.interface]))

    step((source,))
    return paths


def best_route(topo: WiredTopo, node: str, destination_ip: str) -> Route:
    def prefix(route: Route) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network("0.0.0.0/0" if route.prefix == "default" else route.prefix)

    address = ipaddress.IPv4Address(destination_ip)
    matching = [route for route in topo.nodeInfo(node)["routes"] if address in prefix(route)]
    assert matching, f"{node} has no route to {destination_ip}"
    return max(matching, key=lambda route: prefix(route).prefixlen)


def test_prefill_and_decode_sit_in_racks_of_their_own_and_the_gateway_beside_neither():
    cluster = demo(prefill_instances=6, instances_per_rack=4)
    assert [(i.name, i.role, i.rack) for i in cluster.instances] == [
        *((f"p{n}", "prefill", 0) for n in range(4)),
        *((f"p{n}", "prefill", 1) for n in (4, 5)),
        *((f"d{n}", "decode", 2) for n in range(3)),
    ]
    assert walk(cluster, "gw", cluster.controller_ip) == {("gw", "hl3", "ctl")}


def test_the_host_network_joins_every_pair_over_every_spine():
    cluster = demo()
    for source, target in itertools.permutations(cluster.instances, 2):
        paths = walk(cluster, source.name, target.host_ip)
        leaves = (f"hl{source.rack}", f"hl{target.rack}")
        if source.rack == target.rack:
            assert paths == {(source.name, leaves[0], target.name)}
        else:
            assert paths == {(source.name, leaves[0], f"hs{spine}", leaves[1], target.name) for spine in range(2)}


@pytest.mark.parametrize("uplinks", [1, 2, 4])
def test_kv_of_a_rank_has_one_equal_cost_path_for_each_uplink_and_arrives_at_the_same_rank(uplinks):
    cluster = demo(gpus_per_instance=2, uplinks=uplinks)
    where = addresses(cluster)
    assert spines_of(cluster) == uplinks
    for source, target in itertools.product(cluster.instances[:4], cluster.instances[4:]):
        for rank in range(2):
            assert where[target.gpu_ips[rank]] == (target.name, f"gpu{rank}")
            first = best_route(cluster, source.name, target.gpu_ips[rank])
            assert [hop.interface for hop in first.hops] == [f"gpu{rank}"]
            assert walk(cluster, source.name, target.gpu_ips[rank]) == {
                (source.name, "kl0", f"ks{spine}", "kl1", target.name) for spine in range(uplinks)
            }


@pytest.mark.parametrize("fabric", ["eps", "ocs"])
def test_every_next_hop_and_kv_peer_is_a_permanent_neighbour_at_the_right_mac(fabric):
    cluster = demo(fabric=fabric, gpus_per_instance=2)
    mac_of = {}
    for node1, node2, info in cluster.links(withInfo=True):
        mac_of[node1, info["intfName1"]], mac_of[node2, info["intfName2"]] = info["addr1"], info["addr2"]
    assert len(set(mac_of.values())) == len(mac_of)
    for node in cluster.hosts():
        info = cluster.nodeInfo(node)
        known = {(neighbour.ip, neighbour.interface): neighbour.mac for neighbour in info["neighbours"]}
        for route in info["routes"]:
            for hop in route.hops:
                if hop.via:
                    assert known[hop.via, hop.interface] in mac_of.values()
    if fabric == "ocs":
        decodes = {i.name: i for i in cluster.instances if i.role == "decode"}
        for prefill, peers in cluster.reachable.items():
            known = {(n.ip, n.interface): n.mac for n in cluster.nodeInfo(prefill)["neighbours"]}
            for peer in peers:
                assert known[decodes[peer].gpu_ips[1], "gpu1"] == mac_of[peer, "gpu1"]


def test_a_plane_numbers_its_ports_as_openflow_will():
    cluster = demo(fabric="ocs")
    (plane,) = cluster.planes
    assert (plane.bridge, plane.dpid) == ("plane0", 1)
    assert plane.ports == {"p0": 1, "p1": 2, "p2": 3, "p3": 4, "d0": 5, "d1": 6, "d2": 7}
    for instance, port in plane.ports.items():
        assert cluster.port(instance, "plane0")[1] == port


def test_a_slice_of_16_nodes_of_8_gpus_is_8_planes_of_16_ports_in_two_halves():
    cluster = demo(prefill_instances=16, decode_instances=16, gpus_per_instance=4, gpus_per_node=8, fabric="ocs")
    assert [len(plane.ports) for plane in cluster.planes] == [16] * 8
    assert [(plane.bridge, plane.dpid) for plane in cluster.planes] == [(f"plane{n}", n + 1) for n in range(8)]
    assert cluster.reachable["p0"] == [f"d{n}" for n in range(0, 16, 2)]
    assert cluster.reachable["p1"] == [f"d{n}" for n in range(1, 16, 2)]
    for plane in cluster.planes[:4]:
        assert set(plane.ports) == {f"{role}{n}" for role in "pd" for n in range(0, 16, 2)}
    for prefill, decodes in cluster.reachable.items():
        for plane in cluster.planes:
            assert (prefill in plane.ports) == all(decode in plane.ports for decode in decodes)


def test_without_a_kv_fabric_nothing_but_the_host_network_is_wired():
    cluster = demo(fabric="none", uplinks=None)
    assert not [node for node in cluster.nodes() if node[0] in "k" or node.startswith("plane")]
    assert cluster.planes == []
    assert cluster.graph is None


def test_the_rto_floor_is_on_kv_routes_only():
    info = demo(rto_min_ms=7).nodeInfo("p0")
    assert {route.prefix: route.rto_min_ms for route in info["routes"]} == {"default": None, "10.64.0.0/16": 7}


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_the_32_sources_of_a_rack_have_drr_classes_of_their_own_on_its_uplinks(ranks):
    instances = 32 // ranks
    cluster = demo(gpus_per_instance=ranks, prefill_instances=instances, instances_per_rack=instances)
    mask = cluster.linkInfo("kl0", "ks0")["source_mask"]
    sources = [ip for i in cluster.instances if i.rack == 0 for ip in i.gpu_ips]
    classes = {int(ipaddress.IPv4Address(ip)) & mask for ip in sources}
    assert mask.bit_count() == 5
    assert len(classes) == len(sources) == 32


def test_a_host_and_a_kv_link_carry_what_the_specification_says():
    cluster = demo(queue="fifo")
    assert cluster.linkInfo("hl0", "p0")["goodput_bps"] is None
    info = cluster.linkInfo("kl0", "p0")
    assert (info["goodput_bps"], info["queue"]) == (36e6, "fifo")
    assert {info["intfName1"], info["intfName2"]} == {leaf_port("p0", 0), "gpu0"}


def test_a_thousand_instances_fit_the_address_plan_and_interface_names():
    cluster = demo(prefill_instances=512, decode_instances=512, instances_per_rack=32, fabric="ocs")
    assert len(addresses(cluster)) >= 2048


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"fabric": "token-ring"}, "fabric 'token-ring'"),
        ({"uplinks": None}, "fabric 'eps' with graph None"),
        ({"uplinks": 0}, "0 spines: give 1 to 250"),
        ({"prefill_instances": 0}, "prefill_instances is 0"),
        ({"decode_instances": -1}, "decode_instances is -1"),
        ({"gpus_per_instance": 4, "gpus_per_node": 6}, "gpus_per_node is 6"),
        ({"queue": "red"}, "queue 'red'"),
        ({"decode_instances": 1, "gpus_per_instance": 4, "gpus_per_node": 8, "fabric": "ocs"}, "shares a GPU position"),
        ({"prefill_instances": 600, "decode_instances": 600, "instances_per_rack": 4}, "more than the address plan"),
    ],
)
def test_what_cannot_be_wired_is_refused_by_name_and_value(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        demo(**changes)


def test_a_leaf_spine_of_its_own_has_oversubscription_by_its_uplinks():
    topo = LeafSpine(racks=3, hosts_per_rack=4, uplinks=2)
    assert len(topo.hosts()) == 3 * 4 + 3 + 2
    assert walk(topo, "h0", "10.0.2.4") == {("h0", "leaf0", f"spine{s}", "leaf2", "h11") for s in range(2)}
    for source, target in itertools.product(topo.hosts(), addresses(topo)):
        assert walk(topo, source, target), f"{source} does not reach {target}"


def test_a_circuit_layer_of_its_own_has_a_secure_switch_for_each_plane():
    topo = CircuitLayer(ports=3, planes=2)
    assert topo.switches() == ["plane0", "plane1"]
    assert topo.nodeInfo("plane1")["failMode"] == "secure"
    assert topo.nodeInfo("plane1")["protocols"] == "OpenFlow13"
    assert topo.planes[1].ports == {"h0": 1, "h1": 2, "h2": 3}
    assert topo.nodeInfo("h2")["addresses"] == {"gpu0": "10.64.0.3/16", "gpu1": "10.65.0.3/16"}


@pytest.mark.parametrize(("file", "name"), [("leaf_spine.py", "leafspine"), ("circuit.py", "circuit")])
def test_mn_can_load_the_file_from_anywhere(file, name, tmp_path):
    """`mn --custom` executes the text in an empty dictionary, from any directory, and looks for `topos`."""
    program = (
        "import sys; path = sys.argv[1]; customs = {};"
        "exec(compile(open(path).read(), path, 'exec'), customs, customs);"
        f"print(len(customs['topos']['{name}']().nodes()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT / "topologies" / file)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 2


def test_routes_read_as_ip_route_expects_them():
    assert Route("10.0.0.0/8", (Hop("a", "1.1.1.1"),), 20).text() == "10.0.0.0/8 via 1.1.1.1 dev a onlink rto_min 20ms"
    assert Route("10.0.0.0/8", (Hop("a"),), 20, 64_000).text() == "10.0.0.0/8 dev a rto_min 20ms window 64000"
    assert Route("10.0.0.1/32", (Hop("a"),)).text() == "10.0.0.1/32 dev a"
    two = Route("10.0.0.0/8", (Hop("a", "1.1.1.1"), Hop("b", "1.1.1.2")))
    assert two.text() == "10.0.0.0/8 nexthop via 1.1.1.1 dev a onlink nexthop via 1.1.1.2 dev b onlink"


def test_macs_are_local_unicast_and_limited():
    assert mac_address(258) == "02:68:67:00:01:02"
    with pytest.raises(ValueError, match="MAC number"):
        mac_address(1 << 24)


def test_an_interface_name_the_kernel_cannot_hold_is_refused():
    topo = WiredTopo()
    topo.add_host("a")
    topo.add_host("b")
    with pytest.raises(ValueError, match="1 to 15 characters"):
        topo.wire((("a", "x" * 16), ("b", "y")), roles=("", ""))
    with pytest.raises(ValueError, match="node a is there already"):
        topo.add_host("a")


def test_mixed_racks_hold_both_roles_in_turn():
    cluster = demo(racks="mixed", prefill_instances=4, decode_instances=4)
    by_rack = {
        rack: sorted(i.name for i in cluster.instances if i.rack == rack) for rack in range(cluster.shape.rack_count)
    }
    assert by_rack == {0: ["d0", "d1", "p0", "p1"], 1: ["d2", "d3", "p2", "p3"]}
    addresses(cluster)


def test_where_both_roles_fit_into_one_rack_no_kv_crosses_an_uplink():
    cluster = demo(racks="mixed", instances_per_rack=8)
    assert cluster.shape.rack_count == 1
    ips = {instance.name: instance.gpu_ips[0] for instance in cluster.instances}
    for prefill, decodes in cluster.reachable.items():
        for decode in decodes:
            assert walk(cluster, prefill, ips[decode]) == {(prefill, "kl0", decode)}


def test_where_others_go_first_a_late_acknowledgement_is_no_timeout():
    assert kv_timeouts_ms(demo()) == {40}
    assert kv_timeouts_ms(demo(pooled=True, queue="priority")) == {5000}


def test_hosts_whose_packets_overtake_each_other_send_no_timestamps():
    for cluster, expected in ((demo(), None), (demo(pooled=True, queue="priority"), "0")):
        for instance in cluster.instances:
            assert cluster.nodeInfo(instance.name)["sysctls"].get("net.ipv4.tcp_timestamps") == expected


def kv_timeouts_ms(cluster: Cluster) -> set[int | None]:
    routes = [route for host in cluster.hosts() for route in cluster.nodeInfo(host)["routes"]]
    return {route.rto_min_ms for route in routes if route.rto_min_ms is not None}


def test_racks_are_apart_or_mixed():
    with pytest.raises(ValueError, match="racks 'shared': give apart or mixed"):
        demo(racks="shared")


def test_pooled_uplinks_are_one_link_of_their_summed_rate_and_gpu_links_stay_as_they_are():
    pooled = demo(fabric="eps", uplinks=2, pooled=True, kv_goodput_bps=36e6)
    assert spines_of(pooled) == 1
    rates = {}
    for first, second, info in pooled.links(withInfo=True):
        for role in (info["role1"], info["role2"]):
            rates.setdefault(role, set()).add(info["goodput_bps"])
        del first, second
    assert rates["gpu-nic"] == {36e6}
    kv_uplinks = {info["goodput_bps"] for _, _, info in pooled.links(withInfo=True) if info["intfName1"] == "ks0"}
    assert kv_uplinks == {72e6}
    spines = [name for name in pooled.hosts() if name.startswith("ks")]
    assert spines == ["ks0"]
