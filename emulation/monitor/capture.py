"""Captures of the KV packets of a run, with the kernel's timestamps: the packets themselves as witnesses.

On circuits at the decode side of every GPU NIC (what was delivered), on a packet fabric wherever a router has hashed a
flow onto one of several links (which path was taken). The files open in Wireshark.
"""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from emulation.linux.children import last_lines, spawn
from emulation.linux.ledger import RunLedger
from emulation.linux.wall_clock import ClockOffset, ClockPair, read_clocks
from emulation.network.testbed import Testbed
from emulation.plan.fabric_plan import KV_PORT
from process.rights import CAP_NET_RAW, unprivileged
from topologies.cluster import Cluster
from topologies.shape import links_of

#: Ethernet, IPv4 and TCP headers with every option TCP uses, and the start of a KV header.
SNAP_BYTES = 96
BUFFER_KIB = 16_384
START_TIMEOUT_S = 5.0


class CaptureError(RuntimeError):
    """tcpdump did not start: says where, with its last words."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where packets are captured: `node`'s `interface`, `direction` "in" or "out"."""

    node: str
    interface: str
    direction: str

    @property
    def name(self) -> str:
        return f"{self.node}-{self.interface}"


def points(cluster: Cluster, fabric_kind: str) -> list[Point]:
    """The capture points of a fabric of this kind."""
    if fabric_kind == "ocs":
        decodes = [instance for instance in cluster.instances if instance.role == "decode"]
        return [Point(i.name, f"gpu{rank}", "in") for i in decodes for rank in range(len(i.gpu_ips))]
    if fabric_kind == "eps":
        return [Point(*link, "out") for link in hashed_links(cluster)]
    return []


def hashed_links(cluster: Cluster) -> list[tuple[str, str]]:
    """The links that tell the paths of a packet fabric apart: out of each router that has several next hops for some
    KV, in the order of the paths."""
    graph, rack_of = cluster.kv_paths.graph, cluster.shape.rack_of
    found: dict[tuple[str, str], None] = {}
    ends = {(rack_of[p], rack_of[d]) for p, decodes in cluster.reachable.items() for d in decodes}
    for source, destination in sorted(ends):
        for rank in range(cluster.shape.gpus_per_instance):
            paths = graph.paths_between(source, destination, rank)
            # with one path there is nothing to tell apart, but whether it was taken
            found |= dict.fromkeys(link for path in paths for link in links_of(path)[:1] if len(paths) == 1)
            for path in paths:
                for link in links_of(path):
                    if len(graph.next_hops(link[0], path[-1])) > 1:
                        found[link] = None
    return list(found)


@dataclass
class Captures:
    """tcpdump at every point, from `start` to `stop`. `clocks`: what its stamps are held against, once stopped."""

    directory: Path
    files: dict[Point, Path] = field(default_factory=dict)
    clocks: ClockPair | None = None
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _started: ClockOffset | None = None

    def start(self, testbed: Testbed, cluster: Cluster, fabric_kind: str, ledger: RunLedger) -> None:
        """Start every capture and wait until it captures. Raises CaptureError."""
        self._started = read_clocks()
        logs = {}
        for point in points(cluster, fabric_kind):
            path = self.files[point] = self.directory / f"{point.name}.pcap"
            logs[point] = log = self.directory / f"{point.name}.tcpdump"
            command = ["tcpdump", "-n", "-i", point.interface, "-Q", point.direction, "-s", str(SNAP_BYTES)]
            command += ["-p"]  # what is not for this NIC does not reach it; a link that turns promiscuous is a change
            command += ["-B", str(BUFFER_KIB), "--immediate-mode", "-U", "-w", "-"]
            command += [f"tcp and dst port {KV_PORT}"]
            namespace = testbed.namespace(point.node)
            try:
                with path.open("wb") as packets:  # ours to open: tcpdump has no right but that to see packets
                    child = spawn(
                        command,
                        ledger=ledger,
                        log=log,
                        namespace=namespace,
                        stdout=packets,
                        run_as=unprivileged(),
                        keep=(CAP_NET_RAW,),
                    )
                self._children.append(child)
            except FileNotFoundError as error:
                raise CaptureError("tcpdump is not installed: apt-get install tcpdump") from error
            except subprocess.SubprocessError as error:  # of what is done in the child before its first line
                raise CaptureError(f"tcpdump at {point.name} could not be started without rights: {error}") from error
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for point, log in logs.items():
            while "listening on" not in last_lines(log):
                if time.monotonic() > deadline_s:
                    raise CaptureError(f"tcpdump at {point.name} does not listen: {last_lines(log)}")
                time.sleep(0.01)

    def pids(self) -> list[int]:
        """Process ids of the captures that run."""
        return [child.pid for child in self._children if child.poll() is None]

    def stop(self) -> dict[str, int]:
        """End every capture; packets that the kernel dropped before tcpdump saw them, by point."""
        for child in self._children:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)  # it writes out what it has, and its counts
        for child in self._children:
            try:
                child.wait(3.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(5.0)
        self._children.clear()
        if self._started is not None:
            self.clocks = ClockPair(self._started, read_clocks())
        lost = {}
        for point in self.files:
            log = self.directory / f"{point.name}.tcpdump"
            for line in last_lines(log).splitlines():
                if "dropped by kernel" in line:
                    lost[point.name] = int(line.split()[0])
        return lost
