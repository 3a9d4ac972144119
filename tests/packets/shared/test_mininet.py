"""Stock Mininet builds the same topologies: in a namespace of its own, so that nothing of the machine is touched."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from namespaces import inside

from emulation.network.ovs import OpenVSwitch

ROOT = Path(__file__).resolve().parents[3]
LOAD = """
import sys
from mininet.net import Mininet
from mininet.log import setLogLevel
setLogLevel("warning")
customs = {}
path = sys.argv[1]
exec(compile(open(path).read(), path, "exec"), customs, customs)
"""


@pytest.fixture
def in_namespace(ledger):
    """Run a program in a namespace of the test's own; returns its output."""
    if shutil.which("mnexec") is None:
        pytest.skip("mnexec is missing: apt-get install --no-install-recommends mininet")
    if (tried := subprocess.run(["mnexec", "-n", "true"], capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"mnexec makes no namespace here (a chroot whose root is no mount point?): {tried.stderr.strip()}")
    namespace = f"{ledger.prefix}-mn"
    ledger.namespaces([namespace])

    def run(program: str, file: str, **environment: str) -> str:
        words = inside(namespace)
        command = [*words, sys.executable, "-c", LOAD + program, str(ROOT / "topologies" / file)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | environment, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run.namespace = namespace
    return run


def test_pingall_reaches_every_host_and_router_of_the_leaf_spine(in_namespace):
    program = """
net = Mininet(topo=customs["topos"]["leafspine"](racks=2, hosts_per_rack=2, uplinks=2), controller=None)
net.start()
try:
    loss = net.pingAll(timeout="2")
    policy = net["leaf0"].cmd("cd /proc/sys/net/ipv4; cat fib_multipath_hash_policy fib_multipath_hash_fields")
    print("loss", loss, "nodes", len(net.hosts), "policy", *policy.split())
finally:
    net.stop()
"""
    assert "loss 0.0 nodes 8 policy 3 55" in in_namespace(program, "leaf_spine.py")


def test_the_circuit_layer_carries_what_its_rules_say_and_nothing_without(in_namespace, ledger):
    ovs = OpenVSwitch(ledger, "ovs-mn", in_namespace.namespace, "netdev")
    ovs.start([], None)
    program = """
net = Mininet(topo=customs["topos"]["circuit"](ports=3), controller=None, waitConnected=False)
net.start()
try:
    h0, h1, h2 = (net[name] for name in ("h0", "h1", "h2"))
    dark = net.ping([h0, h1], timeout="1")
    for a, b in ((1, 2), (2, 1)):
        net["plane0"].dpctl("add-flow", "-O OpenFlow13", f"in_port={a},actions=output:{b}")
    print("dark", dark, "live", net.ping([h0, h1], timeout="2"), "other", net.ping([h0, h2], timeout="1"))
finally:
    net.stop()
"""
    try:
        directory = str(ovs.directory)
        answer = in_namespace(program, "circuit.py", OVS_RUNDIR=directory, OVS_LOGDIR=directory, OVS_DBDIR=directory)
        assert "dark 100.0 live 0.0 other 100.0" in answer
    finally:
        ovs.stop()


def test_pingall_reaches_every_host_and_router_of_the_three_tier_example(in_namespace):
    program = """
net = Mininet(topo=customs["topos"]["threetier"](racks=4, instances_per_rack=1), controller=None)
net.start()
try:
    print("loss", net.pingAll(timeout="2"), "nodes", len(net.hosts))
finally:
    net.stop()
"""
    assert "loss 0.0 nodes 14" in in_namespace(program, "../examples/three_tier.py", PYTHONPATH=str(ROOT))
