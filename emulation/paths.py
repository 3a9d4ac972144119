"""The KV paths of a fabric before its run: which source port leads to which uplink, and whether each keeps its rate."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from statistics import median
from typing import Any

from emulation.ecmp import port_pools
from emulation.fabric_plan import KV_PORT, FabricPlan
from emulation.fidelity import LINK_RATE_TOLERANCE
from emulation.probe import Path, check_tcp, goodputs, round_trip_s
from emulation.testbed import Testbed
from topologies.cluster import Cluster

#: The agents hold KV_PORT while we probe.
PROBE_PORT = KV_PORT + 1
#: A link that reads out of tolerance is read again, after a growing pause: a bad reading may be the machine's, all of
#: them are the link's. Every retry is in the notes of the verdict.
ATTEMPTS, PAUSE_S = 6, 0.2
#: A connection that was closed holds its source port for a minute: each one gets a port of its own.
PORTS_PER_UPLINK = ATTEMPTS + 2


def ecmp_ports(plan: FabricPlan, cluster: Cluster, testbed: Testbed) -> dict[str, Any]:
    """Source ports by uplink for the KV transfers of a packet fabric; nothing elsewhere. Raises EcmpError."""
    if plan.fabric.kind != "eps":
        return {}
    return port_pools(testbed, cluster, destination_port=KV_PORT)


@dataclass(frozen=True, slots=True)
class _Route:
    """A path to probe, and the source ports of its connections."""

    path: Path
    ports: Iterator[int]

    def connection(self) -> Path:
        return replace(self.path, source_port=next(self.ports))


class PathProbe:
    """Reads of every kind of path: `goodput_ratios` (measured over configured) and `rtt_s`, by "p0-d1 rank 0"."""

    def __init__(self, plan: FabricPlan, cluster: Cluster, testbed: Testbed) -> None:
        self._plan, self._cluster, self._testbed = plan, cluster, testbed
        self._instances = {instance.name: instance for instance in cluster.instances}
        self.goodput_ratios: dict[str, float] = {}
        self.rtt_s: dict[str, float] = {}
        self.notes: list[str] = []

    def pairs(self, pairs: Mapping[str, str]) -> None:
        """Every rank of these pairs at once: no instance may be in two. Raises ProbeError."""
        self._read(
            {
                f"{prefill}-{decode} rank {rank}": _Route(self._path(prefill, decode, rank), repeat(0))
                for prefill, decode in pairs.items()
                for rank in range(len(self._instances[prefill].gpu_ips))
            }
        )

    def packet_paths(self) -> None:
        """Every GPU NIC and every uplink of a packet fabric, as many at once as share no link. Raises ProbeError."""
        pools = port_pools(self._testbed, self._cluster, destination_port=PROBE_PORT, ports_per_uplink=PORTS_PER_UPLINK)
        uplinks = self._cluster.uplinks
        prefills = list(pools)
        decodes = [instance.name for instance in self._cluster.instances if instance.role == "decode"]
        waiting = self._cover(prefills, decodes, pools, uplinks)
        ports = {
            (prefill, decode, rank, uplink): iter(found)
            for prefill, by_decode in pools.items()
            for decode, by_rank in by_decode.items()
            for rank, by_uplink in enumerate(by_rank)
            for uplink, found in enumerate(by_uplink)
        }
        while waiting:
            chosen: dict[str, _Route] = {}
            busy: set[tuple[Any, ...]] = set()
            later = []
            for prefill, decode, rank, number in waiting:
                uplink = number
                racks = (self._instances[prefill].rack, self._instances[decode].rack)
                nics = {("nic", prefill, rank), ("nic", decode, rank)}
                links = nics | {("up", racks[0], uplink), ("down", racks[1], uplink)}
                if links & busy:
                    later.append((prefill, decode, rank, number))
                    continue
                busy |= links
                route = _Route(self._path(prefill, decode, rank), ports[prefill, decode, rank, uplink])
                chosen[f"{prefill}-{decode} rank {rank} by uplink {uplink}"] = route
            self._read(chosen)
            waiting = later

    def _cover(
        self, prefills: list[str], decodes: list[str], pools: Mapping[str, Any], uplinks: int
    ) -> list[tuple[str, str, int, int]]:
        """(prefill, decode, rank, uplink) that touch every GPU NIC, and every uplink of every rack, at least once."""
        ranks = range(len(self._instances[prefills[0]].gpu_ips))
        pairs = [(prefill, decode) for prefill in prefills for decode in decodes if decode in pools[prefill]]
        rack = {name: instance.rack for name, instance in self._instances.items()}
        needed: set[tuple[Any, ...]] = {("nic", name, rank) for pair in pairs for name in pair for rank in ranks}
        needed |= {(rack[name], uplink) for pair in pairs for name in pair for uplink in range(uplinks)}
        # along the diagonals, so that neighbours in the list share as few links as possible
        pairs.sort(key=lambda pair: (decodes.index(pair[1]) - prefills.index(pair[0])) % len(prefills))
        chosen = []
        for row in range(uplinks):
            for step, (prefill, decode) in enumerate(pairs):
                for rank in ranks:
                    uplink = (step + row + rank) % uplinks
                    nics = {("nic", prefill, rank), ("nic", decode, rank)}
                    touched = nics | {(rack[prefill], uplink), (rack[decode], uplink)}
                    if touched & needed:
                        needed -= touched
                        chosen.append((prefill, decode, rank, uplink))
        return chosen

    def wrong(self) -> list[str]:
        """The links that do not carry their rate, in words."""
        return [
            f"{name} carries {ratio:.3f} of its rate; 3 % is allowed. Lower scale.rate_scale, raise "
            "scale.time_dilation, or end what else runs on this machine"
            for name, ratio in self.goodput_ratios.items()
            if abs(ratio - 1) > LINK_RATE_TOLERANCE
        ]

    def _path(self, prefill: str, decode: str, rank: int) -> Path:
        source, destination = self._instances[prefill], self._instances[decode]
        return Path(
            self._testbed.namespace(prefill),
            source.gpu_ips[rank],
            self._testbed.namespace(decode),
            destination.gpu_ips[rank],
            destination_port=PROBE_PORT,
        )

    def _read(self, routes: Mapping[str, _Route]) -> None:
        for name, route in routes.items():
            check_tcp(route.connection())
            self.rtt_s[name] = round_trip_s(route.connection(), rounds=5)
        left = dict(routes)
        readings: dict[str, list[float]] = {name: [] for name in routes}
        for attempt in range(ATTEMPTS):
            time.sleep(attempt * PAUSE_S)
            found = goodputs([route.connection() for route in left.values()], transfer_bytes=1_300_000)
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
