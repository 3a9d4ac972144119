"""A topology becomes real namespaces, is read back, and leaves nothing."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from cluster_cases import cluster_of
from namespaces import inside

from controllers.core.switching import circuit_rule
from emulation.linux.ledger import LedgerError, RunLedger, clean, dead_runs, no_run
from emulation.linux.netns import NETNS_DIR, NamespaceError, batch, run_in, socket_in, write_sysctls
from emulation.linux.processes import RCU_EXPEDITED, start_ticks
from emulation.network.ecmp import source_ports
from emulation.network.testbed import Testbed, TestbedError
from emulation.probe.link import ProbedPath as ProbePath
from emulation.probe.link import check_tcp
from topologies.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
#: Many times what a build takes.
HANG_S = 120.0


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def demo(fabric: str, **changes: object) -> Cluster:
    options = {"prefill_instances": 4, "decode_instances": 3, "uplinks": 2, "kv_goodput_bps": 36e6}
    return cluster_of(fabric=fabric, **(options | changes))


def namespaces_with(prefix: str) -> list[str]:
    return [name for name in os.listdir(NETNS_DIR) if name.startswith(prefix)] if NETNS_DIR.exists() else []


def ip(testbed: Testbed, node: str, command: str) -> str:
    return run_in(testbed.namespace(node), lambda: batch("ip", command + "\n", where=node))


@pytest.mark.parametrize("fabric", ["eps", "ocs", "none"])
def test_every_instance_reaches_gateway_and_controller_over_the_host_network(make_testbed, fabric):
    cluster = demo(fabric)
    testbed = make_testbed(cluster)
    for instance in cluster.instances:
        for node, address in (("gw", cluster.gateway_ip), ("ctl", cluster.controller_ip)):
            namespaces = testbed.namespace(instance.name), testbed.namespace(node)
            check_tcp(ProbePath(namespaces[0], instance.host_ip, namespaces[1], address))


def test_the_namespaces_are_those_of_the_nodes_under_the_prefix_of_the_run(make_testbed, ledger):
    cluster = demo("ocs")
    make_testbed(cluster)
    expected = {f"{ledger.prefix}-{node}" for node in (*cluster.hosts(), "ovs0")}
    assert set(namespaces_with(ledger.prefix)) == expected


@pytest.mark.parametrize("fabric", ["eps", "ocs"])
def test_nothing_is_left_after_close(run_base, fabric):
    expedited = RCU_EXPEDITED.read_text() if RCU_EXPEDITED.exists() else ""
    with RunLedger.open("one", base=run_base) as ledger:
        testbed = Testbed(demo(fabric), ledger).build()
        servers = [int(entry["pid"]) for entry in ledger.entries("process")]
        assert len(servers) == (2 if fabric == "ocs" else 0)
        testbed.close()
        testbed.close()
        assert namespaces_with(ledger.prefix) == []
        assert [start_ticks(pid) for pid in servers] == [None] * len(servers)
    assert [path.name for path in run_base.iterdir()] == ["lock"]
    assert expedited == (RCU_EXPEDITED.read_text() if RCU_EXPEDITED.exists() else "")


def test_the_papers_128_gpus_cost_little_to_build_and_leave_nothing(ledger):
    """3 s on two cores, in CPU seconds: other programs do not change them. scripts/build_benchmark.py
    has the clock's."""
    shape = {"gpus_per_instance": 4, "gpus_per_node": 8, "instances_per_rack": 8, "kv_goodput_bps": 9e6}
    cluster = cluster_of(prefill_instances=16, decode_instances=16, fabric="eps", uplinks=32, **shape)
    before_s, began_s = cpu_s(), time.monotonic()
    with Testbed(cluster, ledger) as testbed:
        built_s, used_s = time.monotonic() - began_s, cpu_s() - before_s
        route, last = ("p15", "d15", 3), 31
        ports = source_ports(testbed, cluster, {route: [0] * last + [1]}, destination_port=7101)[route][last]
        ends = {instance.name: instance for instance in cluster.instances}
        namespaces = testbed.namespace("p15"), testbed.namespace("d15")
        addresses = ends["p15"].gpu_ips[3], ends["d15"].gpu_ips[3]
        path = ProbePath(namespaces[0], addresses[0], namespaces[1], addresses[1], ports[0], 7101)
        check_tcp(path, timeout_s=10.0)
        closing_s = time.monotonic()
    print(f"built in {built_s:.2f} s ({used_s:.2f} s of CPU), removed in {time.monotonic() - closing_s:.2f} s")
    assert namespaces_with(ledger.prefix) == []
    assert used_s < 6.0


def test_one_ledger_serves_one_fabric_after_another(ledger):
    for fabric in ("eps", "ocs", "none"):
        with Testbed(demo(fabric), ledger) as testbed:
            testbed.verify()


@pytest.mark.parametrize("fabric", ["eps", "ocs"])
def test_a_builder_killed_outright_is_cleaned_up_by_its_ledger(run_base, fabric):
    program = (
        "import sys, time; sys.path[:0] = [sys.argv[1], sys.argv[1] + '/tests/unit']\n"
        "from pathlib import Path\n"
        "from emulation.linux.ledger import RunLedger\n"
        "from emulation.network.testbed import Testbed\n"
        "from cluster_cases import cluster_of\n"
        "shape = dict(prefill_instances=4, decode_instances=3, uplinks=2, kv_goodput_bps=36e6)\n"
        f"cluster = cluster_of(fabric={fabric!r}, **shape)\n"
        "run = RunLedger.open('victim', base=Path(sys.argv[2]))\n"
        "print(run.prefix, flush=True)\n"
        "Testbed(cluster, run).build()\n"
        "print('built', flush=True); time.sleep(60)\n"
    )
    for delay_s in (0.0, 0.03, 0.08, None):  # None: when it has been built
        command = [sys.executable, "-c", program, str(ROOT), str(run_base)]
        builder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert builder.stdout is not None
        hung = threading.Timer(HANG_S, builder.kill)
        hung.start()
        try:
            prefix = builder.stdout.readline().strip()
            if delay_s is None:
                assert builder.stdout.readline() == "built\n"
                assert namespaces_with(prefix)
            else:
                time.sleep(delay_s)
        finally:
            hung.cancel()
            builder.kill()
            builder.wait()
        # as the command does: what the builder was starting holds its lock until it has become another program
        with no_run(run_base):
            (run,) = dead_runs(run_base)
            removed = clean(run)
        assert namespaces_with(prefix) == [], removed
        assert clean(run) == []
        assert dead_runs(run_base) == []


def test_a_namespace_of_someone_else_is_neither_used_nor_removed(run_base):
    with RunLedger.open("one", base=run_base) as ledger:
        foreign = f"{ledger.prefix}-foreign"
        batch("ip", f"netns add {foreign}\n", where="the test")
        try:
            with pytest.raises(LedgerError, match="exists already"):
                ledger.namespaces([foreign])
            ledger.write(kind="namespace", name=foreign, inode=1)
            assert ledger.remove() == []
            assert (NETNS_DIR / foreign).exists()
        finally:
            batch("ip", f"netns del {foreign}\n", where="the test")


def test_a_failed_build_leaves_nothing_and_says_what_failed(ledger):
    cluster = demo("eps")
    cluster.nodeInfo("p0")["routes"].append(cluster.nodeInfo("p0")["routes"][0])
    with pytest.raises(NamespaceError, match=r"p0: .*File exists.*route add default"):
        Testbed(cluster, ledger).build()
    assert namespaces_with(ledger.prefix) == []


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("tc qdisc del dev gpu0 root", "p0 gpu0: the root qdisc is .*, not htb"),
        ("tc class change dev gpu0 classid 1:10 htb rate 1gbit ceil 1gbit quantum 9000", "p0 gpu0: class 1:10"),
        ("ip link set gpu0 gso_max_size 65536", "p0 gpu0: gso_max_size is 65536, not 9000"),
        ("ip link set gpu0 down", "p0 gpu0: is down"),
        ("ip link del gpu0", "p0 gpu0: is gone"),
    ],
)
def test_what_changed_behind_our_back_is_named(make_testbed, command, complaint):
    testbed = make_testbed(demo("eps", uplinks=1))
    testbed.verify()
    subprocess.run([*inside(testbed.namespace("p0")), *command.split()], check=True)
    with pytest.raises((TestbedError, NamespaceError), match=complaint):
        testbed.verify()


def test_a_dead_switch_is_named(make_testbed, ledger):
    testbed = make_testbed(demo("ocs"))
    for entry in ledger.entries("process"):
        os.kill(entry["pid"], signal.SIGKILL)
    time.sleep(0.05)
    with pytest.raises(Exception, match="ended with status -9"):
        testbed.verify()


def test_counters_count_what_was_sent_on_the_links_it_crossed(make_testbed):
    cluster = demo("eps", uplinks=1)
    testbed = make_testbed(cluster)
    before = {(row["node"], row["interface"]): row for row in testbed.counters()}
    source, target = cluster.instances[0], cluster.instances[4]
    payload_bytes = 100_000
    path = ProbePath(testbed.namespace("p0"), source.gpu_ips[0], testbed.namespace("d0"), target.gpu_ips[0])
    check_tcp(path, payload_bytes=payload_bytes)
    for row in testbed.counters():
        sent = row["tx_bytes"] - before[row["node"], row["interface"]]["tx_bytes"]
        end = row["node"], row["interface"]
        if end in {("p0", "gpu0"), ("kl0", "ks0"), ("ks0", "kl1"), ("kl1", "d0-gpu0")}:
            assert payload_bytes * 1514 / 1448 <= sent < payload_bytes * 1514 / 1448 + 2000, end
            assert row["wire_bps"] == pytest.approx(row["goodput_bps"] * 1514 / 1448, abs=8)
        elif end in {("d0", "gpu0"), ("kl1", "ks0"), ("ks0", "kl0"), ("kl0", "p0-gpu0")}:
            assert 0 < sent < payload_bytes / 10, end  # acknowledgements
        else:
            assert sent == 0, end
    roles = Counter(row["role"] for row in before.values())
    assert roles["gpu-nic"] == roles["leaf-to-gpu"] == 7
    assert len(before) == 2 * len(cluster.links())


def test_switches_wait_for_a_controller_and_carry_nothing_without_one(make_testbed):
    cluster = demo("ocs")
    testbed = make_testbed(cluster, controller_listens=False)
    with socket_in(testbed.namespace("ctl")) as listener:
        listener.bind((testbed.openflow_address, 6653))
        listener.listen(8)
        listener.settimeout(5.0)
        testbed.connect_controller()
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(5.0)
            assert connection.recv(8)[:2] == b"\x04\x00"  # the hello of OpenFlow 1.3
    assert Path(testbed.unixctls["plane0"]).is_socket()
    assert testbed.ovs is not None
    assert testbed.ovs.of("plane0").vsctl("get", "Bridge", "plane0", "fail_mode").strip() == "secure"
    silent = socket_in(testbed.namespace("d0"), socket.AF_INET, socket.SOCK_DGRAM)
    sender = socket_in(testbed.namespace("p0"), socket.AF_INET, socket.SOCK_DGRAM)
    with silent, sender:
        silent.bind((cluster.instances[4].gpu_ips[0], 9000))
        silent.settimeout(0.2)
        sender.sendto(b"into the dark", (cluster.instances[4].gpu_ips[0], 9000))
        with pytest.raises(TimeoutError):
            silent.recv(100)


def test_tcp_crosses_a_circuit_with_checksum_offload_on(make_testbed):
    """On the user-space datapath ping would work and data would hang, if offload were not handled."""
    cluster = demo("ocs")
    testbed = make_testbed(cluster)
    assert testbed.ovs is not None
    (plane,) = cluster.planes
    for a, b in (("p0", "d0"), ("d0", "p0")):
        flow = circuit_rule(plane.ports[a], plane.ports[b])
        target = f"unix:{testbed.ovs.of(plane.bridge).directory}/{plane.bridge}.mgmt"
        subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "add-flow", target, flow], check=True)
    p0, d0 = cluster.instances[0], cluster.instances[4]
    path = ProbePath(testbed.namespace("p0"), p0.gpu_ips[0], testbed.namespace("d0"), d0.gpu_ips[0])
    assert check_tcp(path, payload_bytes=300_000) < 1.0


def test_planes_are_shared_by_two_open_vswitches(ledger):
    """Where one ovs-vswitchd is not enough: each in its own namespace, both joined to the one controller."""
    cluster = demo("ocs", gpus_per_instance=2)
    with Testbed(cluster, ledger, switch_daemons=2) as testbed:
        assert {f"{ledger.prefix}-ovs0", f"{ledger.prefix}-ovs1"} <= set(namespaces_with(ledger.prefix))
        assert len(set(testbed.unixctls.values())) == 2
        assert testbed.ovs is not None
        assert set(testbed.ovs.pids()) == {"ovsdb-server", "ovs-vswitchd", "ovsdb-server 1", "ovs-vswitchd 1"}
        for plane in cluster.planes:
            rules = [circuit_rule(plane.ports[a], plane.ports[b]) for a, b in (("p0", "d0"), ("d0", "p0"))]
            target = f"unix:{testbed.ovs.of(plane.bridge).directory}/{plane.bridge}.mgmt"
            for rule in rules:
                subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "add-flow", target, rule], check=True)
        ends = {instance.name: instance.gpu_ips for instance in cluster.instances}
        for source, target in zip(ends["p0"], ends["d0"], strict=True):
            check_tcp(ProbePath(testbed.namespace("p0"), source, testbed.namespace("d0"), target))
        text = "".join(f"route get 10.254.0.{host}\n" for host in (2, 3))
        assert "openflow0" in (routes := ip(testbed, "ctl", text.rstrip()))
        assert "openflow1" in routes
        os.kill(ledger.entries("process")[-1]["pid"], signal.SIGKILL)
        time.sleep(0.5)
        with pytest.raises(Exception, match="ended with status -9"):
            testbed.verify()
    assert namespaces_with(ledger.prefix) == []


def test_kernel_settings_are_those_of_a_host_and_of_a_router(make_testbed):
    testbed = make_testbed(demo("eps"))

    def sysctl(node: str, name: str) -> str:
        return run_in(testbed.namespace(node), lambda: Path("/proc/sys/net/ipv4", name).read_text().strip())

    assert sysctl("kl0", "ip_forward") == "1"
    assert sysctl("kl0", "fib_multipath_hash_policy") == "3"
    assert sysctl("kl0", "fib_multipath_hash_fields") == "55"
    assert sysctl("kl0", "conf/ks0/rp_filter") == "0"
    assert sysctl("p0", "ip_forward") == "0"
    assert sysctl("p0", "tcp_slow_start_after_idle") == "0"
    assert "rto_min lock 40ms" in ip(testbed, "p0", "route show 10.64.0.0/16")


def test_an_unknown_sysctl_is_refused_by_name(make_testbed):
    testbed = make_testbed(demo("none"))
    with pytest.raises(NamespaceError, match=r"net\.ipv4\.no_such_thing"):
        run_in(testbed.namespace("p0"), lambda: write_sysctls({"net.ipv4.no_such_thing": "1"}))


def test_entering_a_namespace_that_is_not_there_says_so():
    with pytest.raises(NamespaceError, match="/run/netns/hg-nowhere"):
        run_in("hg-nowhere", lambda: None)
