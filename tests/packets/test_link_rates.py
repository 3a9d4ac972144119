"""Links carry the goodput they are configured with, and share it equally: closed-form expectations as ratios.

A busy machine disturbs a measurement but cannot make a wrong rate right, so a share is the best of a few tries.
"""

import contextlib
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from cluster_cases import cluster_of

from controllers.core.switching import circuit_rule
from emulation.linux.netns import socket_in
from emulation.network.ecmp import port_pools
from emulation.probe.link import ProbedPath, ProbeError, check_tcp, goodputs, least_squares_bps, round_trip_s

KV_PORT = 7100
GOODPUT_BPS = 36e6


class Fabric:
    """A built packet fabric, and paths over chosen uplinks with a fresh source port each."""

    def __init__(self, make_testbed, **changes: object) -> None:
        options = {"prefill_instances": 4, "decode_instances": 3, "uplinks": 2, "kv_goodput_bps": GOODPUT_BPS}
        self.cluster = cluster_of(fabric="eps", **(options | changes))
        self.testbed = make_testbed(self.cluster)
        self.pools = port_pools(self.testbed, self.cluster, destination_port=KV_PORT)
        self.ips = {instance.name: instance.gpu_ips[0] for instance in self.cluster.instances}
        self._used: dict[tuple[str, str, int], int] = {}

    def path(self, prefill: str, decode: str, uplink: int) -> ProbedPath:
        index = self._used[prefill, decode, uplink] = self._used.get((prefill, decode, uplink), -1) + 1
        port = self.pools[prefill][decode][0][uplink][index]
        ends = self.testbed.namespace(prefill), self.ips[prefill], self.testbed.namespace(decode), self.ips[decode]
        return ProbedPath(*ends, port, KV_PORT)

    def shares(self, routes: list[tuple[str, str, int]]) -> list[float]:
        """Each path's rate as a share of the link's goodput, all sending at once."""
        return [result.goodput_bps / GOODPUT_BPS for result in goodputs([self.path(*route) for route in routes])]


@contextlib.contextmanager
def background(path: ProbedPath) -> Iterator[None]:
    """A flow that has left slow start behind, for as long as the block lasts."""
    with socket_in(path.destination_namespace) as listener, socket_in(path.source_namespace) as sender:
        for end in (listener, sender):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((path.destination_ip, KV_PORT))
        listener.listen(1)
        sender.bind((path.source_ip, path.source_port))
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        ends = [
            threading.Thread(target=body, args=(end,), daemon=True)
            for body, end in ((drain, receiver), (flood, sender))
        ]
        for end in ends:
            end.start()
        time.sleep(0.3)
        try:
            yield
        finally:
            for end in (sender, receiver):
                end.shutdown(socket.SHUT_RDWR)
            for end in ends:
                end.join(10)
            receiver.close()


def flood(sender: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            sender.send(bytes(65_536))


def drain(receiver: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while receiver.recv(65_536):
            pass


@pytest.fixture
def fabric(make_testbed) -> Fabric:
    return Fabric(make_testbed)


def closest(attempts: list[list[float]], expected: float) -> list[float]:
    return min(attempts, key=lambda shares: max(abs(share - expected) for share in shares))


def test_a_lone_flow_gets_the_whole_link(fabric):
    shares = closest([fabric.shares([("p0", "d0", 0)]) for _ in range(3)], 1.0)
    assert shares == [pytest.approx(1.0, rel=0.03)]


def test_two_flows_that_share_an_uplink_get_half_each(fabric):
    shares = closest([fabric.shares([("p0", "d0", 1), ("p1", "d1", 1)]) for _ in range(3)], 0.5)
    assert shares == [pytest.approx(0.5, rel=0.03)] * 2


def test_two_flows_on_different_uplinks_do_not_meet(fabric):
    shares = closest([fabric.shares([("p0", "d0", 0), ("p1", "d1", 1)]) for _ in range(3)], 1.0)
    assert shares == [pytest.approx(1.0, rel=0.03)] * 2


@pytest.fixture
def adaptive(make_testbed) -> Fabric:
    """Four GPU links of a rack over two uplinks, spread ideally."""
    return Fabric(make_testbed, decode_instances=4, pooled=True)


@pytest.mark.parametrize(("flows", "share"), [(1, 1.0), (2, 1.0), (3, 2 / 3), (4, 0.5)])
def test_adaptive_routing_gives_every_flow_its_max_min_share(adaptive, flows, share):
    routes = [(f"p{i}", f"d{i}", 0) for i in range(flows)]
    assert closest([adaptive.shares(routes) for _ in range(3)], share) == pytest.approx([share] * flows, rel=0.05)


def test_incast_from_four_prefills_shares_the_decode_port(fabric):
    routes = [(f"p{n}", "d0", n % 2) for n in range(4)]
    shares = closest([fabric.shares(routes) for _ in range(3)], 0.25)
    assert shares == [pytest.approx(0.25, rel=0.05)] * 4


def test_a_fifo_uplink_is_never_idle_while_two_flows_have_bytes_to_send(make_testbed):
    fabric = Fabric(make_testbed, queue="fifo")
    paths = [fabric.path("p0", "d0", 1), fabric.path("p1", "d1", 1)]
    results = goodputs(paths, transfer_bytes=3_000_000)
    work_s = sum(8 * result.bytes for result in results) / GOODPUT_BPS
    assert max(result.seconds for result in results) == pytest.approx(work_s, rel=0.05)


def test_a_short_transfer_beside_a_long_one_runs_at_half_the_link(fabric):
    """Per-source round robin: a newcomer has its fair share at once, however long the queue of the other."""
    long = fabric.path("p0", "d0", 1)
    ratios = []
    for _ in range(3):
        with background(long):
            short = goodputs([fabric.path("p1", "d1", 1)], transfer_bytes=1_250_000)[0]
        ratios.append(short.goodput_bps / (GOODPUT_BPS / 2))
        long = fabric.path("p0", "d0", 1)
    assert min(ratios, key=lambda ratio: abs(ratio - 1)) == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("goodput_bps", [3.6e6, 360e6])
def test_slower_and_faster_links_keep_their_rate_too(make_testbed, goodput_bps):
    fabric = Fabric(make_testbed, kv_goodput_bps=goodput_bps, prefill_instances=1, decode_instances=1, uplinks=1)
    size = 1_300_000 if goodput_bps < GOODPUT_BPS else 20_000_000
    attempts = [goodputs([fabric.path("p0", "d0", 0)], transfer_bytes=size)[0].goodput_bps for _ in range(2)]
    best = min(attempts, key=lambda rate: abs(rate - goodput_bps))
    assert best == pytest.approx(goodput_bps, rel=0.03)


def test_a_546_kb_transfer_takes_its_bytes_over_the_goodput(fabric):
    """First byte sent to last byte received over an open connection, median of ten."""
    size, ratios = 546_000, []
    for _ in range(10):
        path = fabric.path("p0", "d0", 0)
        with socket_in(path.destination_namespace) as listener, socket_in(path.source_namespace) as sender:
            listener.bind((path.destination_ip, KV_PORT + 1 + len(ratios)))
            listener.listen(1)
            sender.connect(listener.getsockname())
            receiver, _ = listener.accept()
            with receiver:
                sender.setsockopt(1, 7, 2 * size)  # SO_SNDBUF: the whole transfer, so that one thread can do both ends
                sender.settimeout(5)
                receiver.settimeout(5)
                time.sleep(0.02)
                started_s = time.monotonic()
                sender.sendall(bytes(size))
                left = size
                while left:
                    left -= len(receiver.recv(65_536))
                ratios.append((time.monotonic() - started_s) / (size * 8 / GOODPUT_BPS))
    assert 0.97 <= statistics.median(ratios) <= 1.02, ratios


def test_a_circuit_carries_the_rate_of_its_nic(make_testbed):
    cluster = cluster_of(prefill_instances=2, decode_instances=1, fabric="ocs", kv_goodput_bps=GOODPUT_BPS)
    testbed = make_testbed(cluster)
    (plane,) = cluster.planes
    for a, b in (("p0", "d0"), ("d0", "p0")):
        flow = circuit_rule(plane.ports[a], plane.ports[b])
        target = f"unix:{testbed.ovs.of(plane.bridge).directory}/{plane.bridge}.mgmt"
        subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "add-flow", target, flow], check=True)
    ips = {instance.name: instance.gpu_ips[0] for instance in cluster.instances}
    path = ProbedPath(testbed.namespace("p0"), ips["p0"], testbed.namespace("d0"), ips["d0"])
    shares = closest([[result.goodput_bps / GOODPUT_BPS for result in goodputs([path])] for _ in range(3)], 1.0)
    assert shares == [pytest.approx(1.0, rel=0.03)]


def test_the_round_trip_is_a_fraction_of_a_packets_time(fabric):
    assert 0 < round_trip_s(fabric.path("p0", "d0", 0)) < 9000 * 8 / GOODPUT_BPS


def test_a_path_without_an_end_is_reported_with_its_name(fabric):
    path = fabric.path("p0", "d0", 0)
    nowhere = ProbedPath(path.source_namespace, path.source_ip, path.destination_namespace, "10.64.0.99")
    with pytest.raises(ProbeError, match=r"10\.64\.0\.99"):
        check_tcp(nowhere, timeout_s=0.3)


def test_an_unknown_congestion_control_is_refused(fabric):
    with pytest.raises(ProbeError, match=r"no-such-cc.*was refused.*tcp_available_congestion_control"):
        goodputs([fabric.path("p0", "d0", 0)], congestion_control="no-such-cc")


def test_a_slope_ignores_the_start():
    start = [(0.0, 1), (5.0, 100)]
    line = [(10.0 + n, 1000 + 100 * n) for n in range(50)]
    assert least_squares_bps([*start, *line]) == pytest.approx(800)


def test_a_probe_too_short_for_a_slope_is_refused():
    with pytest.raises(ValueError, match="transfer_bytes is 100000"):
        goodputs([], transfer_bytes=100_000)
