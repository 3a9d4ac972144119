"""The uplink looked up for a source port is the uplink its packets take."""

from collections import Counter

import pytest
from cluster_cases import cluster_of

from emulation.linux.netns import NamespaceError, in_each, run_in
from emulation.linux.route_lookup import RouteLookup
from emulation.network.ecmp import FIRST_PORT, LAST_PORT, EcmpError, port_pools, source_ports
from emulation.network.links import read_device_counters
from emulation.probe.link import ProbedPath, check_tcp
from topologies.cluster import Cluster

KV_PORT = 7100
PAYLOAD_BYTES = 15_000


def cluster_with(uplinks: int, **changes: object) -> Cluster:
    options = {"prefill_instances": 4, "decode_instances": 3, "kv_goodput_bps": 100e6, "fabric": "eps"}
    return cluster_of(uplinks=uplinks, **(options | changes))


def uplink_bytes(testbed, leaf: str, uplinks: int) -> list[int]:
    (counters,) = in_each([testbed.namespace(leaf)], lambda _: read_device_counters())
    return [counters[f"ks{uplink}"].tx_bytes for uplink in range(uplinks)]


@pytest.mark.parametrize(("uplinks", "ranks"), [(2, 1), (3, 2), (11, 1)])
def test_every_flow_takes_the_uplink_of_its_pool(make_testbed, uplinks, ranks):
    cluster = cluster_with(uplinks, gpus_per_instance=ranks)
    testbed = make_testbed(cluster)
    pools = port_pools(testbed, cluster, destination_port=KV_PORT, ports_per_path=4)
    instances = {instance.name: instance for instance in cluster.instances}
    right, flows = 0, 0
    for prefill, decodes in pools.items():
        for decode, by_rank in decodes.items():
            for rank, by_uplink in enumerate(by_rank):
                for uplink, ports in enumerate(by_uplink):
                    source, target = instances[prefill].gpu_ips[rank], instances[decode].gpu_ips[rank]
                    namespaces = testbed.namespace(prefill), testbed.namespace(decode)
                    before = uplink_bytes(testbed, "kl0", uplinks)
                    path = ProbedPath(namespaces[0], source, namespaces[1], target, ports[0], KV_PORT)
                    check_tcp(path, payload_bytes=PAYLOAD_BYTES)
                    after = uplink_bytes(testbed, "kl0", uplinks)
                    crossed = [n for n in range(uplinks) if after[n] - before[n] >= PAYLOAD_BYTES]
                    idle = [n for n in range(uplinks) if after[n] == before[n]]
                    flows += 1
                    right += crossed == [uplink] and len(idle) == uplinks - 1
    assert (right, flows) == (flows, 4 * 3 * ranks * uplinks)


def test_pools_are_disjoint_full_below_the_ephemeral_ports_and_the_same_each_time(make_testbed):
    cluster = cluster_with(4)
    testbed = make_testbed(cluster)
    pools = port_pools(testbed, cluster, destination_port=KV_PORT, ports_per_path=64)
    assert {prefill: sorted(decodes) for prefill, decodes in pools.items()} == {
        f"p{n}": ["d0", "d1", "d2"] for n in range(4)
    }
    for decodes in pools.values():
        for (by_uplink,) in decodes.values():
            ports = Counter(port for pool in by_uplink for port in pool)
            assert [len(pool) for pool in by_uplink] == [64] * 4
            assert set(ports.values()) == {1}
            assert min(ports) >= FIRST_PORT
            assert max(ports) <= LAST_PORT < 32_768
    assert port_pools(testbed, cluster, destination_port=KV_PORT, ports_per_path=64) == pools


def test_more_ports_than_the_range_holds_are_refused(make_testbed):
    cluster = cluster_with(2, prefill_instances=1, decode_instances=1)
    testbed = make_testbed(cluster)
    with pytest.raises(EcmpError, match=r"p0 to d0, rank 0: .* ask for fewer"):
        port_pools(testbed, cluster, destination_port=KV_PORT, ports_per_path=7000)


def test_only_the_uplinks_asked_for_get_ports(make_testbed):
    cluster = cluster_with(4, prefill_instances=1, decode_instances=1)
    testbed = make_testbed(cluster)
    route = ("p0", "d0", 0)
    found = source_ports(testbed, cluster, {route: [0, 3, 0, 1]}, destination_port=KV_PORT)
    assert [len(ports) for ports in found[route]] == [0, 3, 0, 1]
    every = source_ports(testbed, cluster, {route: [3, 3, 3, 3]}, destination_port=KV_PORT)
    assert (found[route][1], found[route][3]) == (every[route][1], every[route][3][:1])


@pytest.mark.parametrize(
    ("destination", "iif", "complaint"),
    [
        ("192.0.2.1", "p0-gpu0", r"no route from 10\.64\.\S+ to 192\.0\.2\.1: .*(unreachable|No route)"),
        ("10.64.0.9", "gpu9", "no interface gpu9 to look up a route"),
    ],
)
def test_a_way_that_is_not_there_is_named(make_testbed, destination, iif, complaint):
    cluster = cluster_with(2, prefill_instances=1, decode_instances=1)
    testbed = make_testbed(cluster)
    source = cluster.instances[0].gpu_ips[0]

    def look() -> list[str]:
        with RouteLookup() as lookup:
            return lookup.egress(source, destination, iif=iif, source_ports=[1], destination_port=KV_PORT)

    with pytest.raises(NamespaceError, match=complaint):
        run_in(testbed.namespace("kl0"), look)
