"""The KV paths of a fabric before its run: which source port leads to which uplink, and whether each keeps its rate.

Every GPU NIC and every uplink is read once: a path more tells nothing new of the links it shares with others. Paths
that share no link are read at once, but no more than a machine carries beside them: what it does under the load of the
run, the run says itself.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from statistics import median
from typing import Any, TypeAlias

from emulation.network.ecmp import port_pools, source_ports
from emulation.network.testbed import Testbed
from emulation.plan.fabric_plan import KV_PORT, FabricPlan
from emulation.probe.link import LINK_RATE_TOLERANCE, ProbedPath, check_tcp, goodputs, round_trip_s
from topologies.cluster import Cluster
from topologies.shape import links_of

#: The agents hold KV_PORT while we probe.
PROBE_PORT = KV_PORT + 1
#: A link that reads out of tolerance is read again, after a growing pause: a bad reading may be the machine's, all of
#: them are the link's. Every retry is in the notes of the verdict.
ATTEMPTS, PAUSE_S = 6, 0.2
#: A connection that was closed holds its source port for a minute: each one gets a port of its own.
PORTS_PER_PATH = ATTEMPTS + 2
#: Paths are read together up to this sum of their rates, and this many: two threads each serve a path.
TOGETHER_BPS, MOST_TOGETHER = 300e6, 32
#: Checks of TCP and round trips that go on at the same time.
CHECKERS = 8


#: ("nic", instance, rank), or the two routers of a link in its direction.
Link: TypeAlias = tuple[str, str, int] | tuple[str, str]


def ecmp_ports(plan: FabricPlan, cluster: Cluster, testbed: Testbed) -> dict[str, Any]:
    """Source ports by uplink for the KV transfers of a packet fabric; nothing elsewhere. Raises EcmpError."""
    if plan.fabric.kind != "eps":
        return {}
    return port_pools(testbed, cluster, destination_port=KV_PORT)


@dataclass(frozen=True, slots=True)
class _Route:
    """A path to probe, the source ports of its connections, and the links that it crosses."""

    name: str
    path: ProbedPath
    ports: Iterator[int]
    links: tuple[Link, ...] = ()

    def connection(self) -> ProbedPath:
        return replace(self.path, source_port=next(self.ports))


class PathProbe:
    """Reads of every kind of path: `goodput_ratios` (measured over configured) and `rtt_s`, by "p0-d1 rank 0"."""

    def __init__(self, plan: FabricPlan, cluster: Cluster, testbed: Testbed) -> None:
        self._plan, self._cluster, self._testbed = plan, cluster, testbed
        self._instances = {instance.name: instance for instance in cluster.instances}
        self._read_instances: set[str] = set()
        self.goodput_ratios: dict[str, float] = {}
        self.rtt_s: dict[str, float] = {}
        self.notes: list[str] = []

    def pairs(self, pairs: Mapping[str, str]) -> None:
        """Standing circuits: TCP over one rank of each pair, and the rate of every rank of an instance that has not
        been read yet. No instance may be in two pairs. Raises ProbeError."""
        new = {pair for pair in pairs.items() if not self._read_instances.issuperset(pair)}
        self._check([self._circuit(*pair, rank=0) for pair in pairs.items() if pair not in new])
        ranks = range(self._cluster.shape.gpus_per_instance)
        self._read([self._circuit(*pair, rank) for pair in pairs.items() if pair in new for rank in ranks])
        self._read_instances.update(*new)

    def _circuit(self, prefill: str, decode: str, rank: int) -> _Route:
        return _Route(f"{prefill}-{decode} rank {rank}", self._path(prefill, decode, rank), repeat(0))

    def packet_paths(self) -> None:
        """Every GPU NIC and every uplink of a packet fabric. Raises ProbeError."""
        reachable, paths = self._cluster.reachable, self._cluster.kv_paths
        decodes = [instance.name for instance in self._cluster.instances if instance.role == "decode"]
        chosen = self._cover(list(reachable), decodes, reachable)
        wanted: dict[tuple[str, str, int], list[int]] = {}
        for prefill, decode, rank, number in chosen:
            route = prefill, decode, rank
            if paths.cross(*route):
                wanted.setdefault(route, [0] * len(paths.between(*route)))[number] = PORTS_PER_PATH
        ports = source_ports(self._testbed, self._cluster, wanted, destination_port=PROBE_PORT)
        self._read(
            [
                self._packet_route(*path, ports=iter(ports[path[:3]][path[3]]) if path[:3] in ports else repeat(0))
                for path in chosen
            ]
        )

    def _packet_route(self, prefill: str, decode: str, rank: int, number: int, *, ports: Iterator[int]) -> _Route:
        path = self._cluster.kv_paths.between(prefill, decode, rank)[number]
        name = f"{prefill}-{decode} rank {rank}" + (f" by {', '.join(path[1:-1])}" if len(path) > 2 else "")
        links: list[Link] = [("nic", prefill, rank), ("nic", decode, rank), *links_of(path)]
        return _Route(name, self._path(prefill, decode, rank), ports, tuple(links))

    def _cover(
        self, prefills: list[str], decodes: list[str], reachable: Mapping[str, Collection[str]]
    ) -> list[tuple[str, str, int, int]]:
        """(prefill, decode, rank, path) that touch every GPU NIC, and every link between routers, at least once."""
        ranks, paths = range(self._cluster.shape.gpus_per_instance), self._cluster.kv_paths
        pairs = [(prefill, decode) for prefill in prefills for decode in decodes if decode in reachable[prefill]]
        needed: set[Any] = {("nic", name, rank) for pair in pairs for name in pair for rank in ranks}
        for rank in ranks:
            for source, destination in {tuple(self._instances[name].rack for name in pair) for pair in pairs}:
                for path in paths.graph.paths_between(source, destination, rank):
                    needed.update(map(frozenset, links_of(path)))
        most = max(len(paths.between(*pair, rank)) for pair in pairs for rank in ranks)
        # along the diagonals, so that neighbours in the list share as few links as possible
        pairs.sort(key=lambda pair: (decodes.index(pair[1]) - prefills.index(pair[0])) % len(prefills))
        chosen = []
        for row in range(most):
            # the ranks of a rack's pairs cross one path after the other; each row begins further on, so that what is
            # still to be read is not all read by the first pairs
            first = row * len(pairs) // most
            for step in [*range(first, len(pairs)), *range(first)]:
                prefill, decode = pairs[step]
                for rank in ranks:
                    choices = paths.between(prefill, decode, rank)
                    number = (step * len(ranks) + row + rank) % len(choices)
                    touched: set[Any] = {("nic", prefill, rank), ("nic", decode, rank)}
                    touched.update(map(frozenset, links_of(choices[number])))
                    if touched & needed:
                        needed -= touched
                        chosen.append((prefill, decode, rank, number))
        return chosen

    def wrong(self) -> list[str]:
        """The links that do not carry their rate, in words."""
        return [
            f"{name} carries {ratio:.3f} of its rate; 3 % is allowed. Lower scale.rate_scale, raise "
            "scale.time_dilation, or end what else runs on this machine"
            for name, ratio in self.goodput_ratios.items()
            if abs(ratio - 1) > LINK_RATE_TOLERANCE
        ]

    def _path(self, prefill: str, decode: str, rank: int) -> ProbedPath:
        source, destination = self._instances[prefill], self._instances[decode]
        return ProbedPath(
            self._testbed.namespace(prefill),
            source.gpu_ips[rank],
            self._testbed.namespace(decode),
            destination.gpu_ips[rank],
            destination_port=PROBE_PORT,
        )

    def _check(self, routes: Sequence[_Route]) -> None:
        """TCP moves a few packets of payload over each, and the round trip."""

        def check(route: _Route) -> tuple[str, float]:
            check_tcp(route.connection(), congestion_control=self._plan.congestion_control)
            return route.name, round_trip_s(route.connection(), rounds=5)

        with ThreadPoolExecutor(CHECKERS) as pool:
            self.rtt_s.update(pool.map(check, routes))

    def _read(self, routes: Sequence[_Route]) -> None:
        """The rate of each, in waves of paths that share no more of a link than it carries."""
        rate_bps = self._plan.kv_goodput_bps
        most = max(1, min(MOST_TOGETHER, int(TOGETHER_BPS / rate_bps)))
        waiting = list(routes)
        while waiting:
            wave = self._wave(waiting, most)
            self._check(wave)
            self._read_wave(wave)
            waiting = [route for route in waiting if route not in wave]

    def _wave(self, routes: Sequence[_Route], most: int) -> list[_Route]:
        """Up to `most` paths that can be read at once; those that cross the most wanted links go first, lest they be
        left to go one by one."""
        wanted = Counter(link for route in routes for link in route.links)
        used: Counter[Link] = Counter()
        wave: list[_Route] = []
        for route in sorted(
            routes, key=lambda route: max((wanted[link] for link in route.links), default=0), reverse=True
        ):
            if len(wave) < most and all(used[link] < self._paths_at_once(link) for link in route.links):
                used.update(route.links)
                wave.append(route)
        return wave

    def _paths_at_once(self, link: Link) -> int:
        """How many paths at full rate a link carries: one, or more where it is wider than a NIC's."""
        if len(link) == 3:
            return 1
        return max(1, math.floor(self._cluster.linkInfo(*link)["goodput_bps"] / self._plan.kv_goodput_bps))

    def _read_wave(self, routes: Sequence[_Route]) -> None:
        left = {route.name: route for route in routes}
        readings: dict[str, list[float]] = {route.name: [] for route in routes}
        for attempt in range(ATTEMPTS):
            time.sleep(attempt * PAUSE_S)
            found = goodputs(
                [route.connection() for route in left.values()],
                transfer_bytes=1_300_000,
                congestion_control=self._plan.congestion_control,
            )
            for name, goodput in zip(left, found, strict=True):
                readings[name].append(goodput.goodput_bps / self._plan.kv_goodput_bps)
            left = {name: route for name, route in left.items() if abs(readings[name][-1] - 1) > LINK_RATE_TOLERANCE}
            if not left:
                break
        for name, ratios in readings.items():
            good = [ratio for ratio in ratios if abs(ratio - 1) <= LINK_RATE_TOLERANCE]
            self.goodput_ratios[name] = good[0] if good else median(ratios)
            if len(ratios) > 1:
                said = ", ".join(f"{ratio:.3f}" for ratio in ratios)
                self.notes.append(f"{name} was probed {len(ratios)} times: {said} of its rate")
