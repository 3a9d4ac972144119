"""The packet audit: what captures prove about a run. Pure: segments and records in, violations out.

On circuits
  1. nothing is delivered to a port while it is dark: between the end of the purge that follows the removal of its
     rules and the start of the installation of new ones;
  2. every such dark time is at least tau;
  3. the bytes delivered are those the transfers asked for, retransmissions apart; transfers that did not end may have
     delivered some of theirs;
  4. the first and the last byte of a transfer are delivered when `transfers.csv` says, within BYTE_TOLERANCE_S.
On a packet fabric
  5. every flow takes the path that was recorded for it, and no other; one within a leaf crosses no other router.
A violation names its packet (file and number, as Wireshark counts). What cannot be told, since a capture lost packets
or a record is missing, is a gap.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

from emulation.linux.wall_clock import ClockPair
from topologies.graph import Path as RouterPath
from topologies.shape import KvPaths, links_of

#: The receiver's clock is read after the packet reached its socket and its process woke up: a few hundred microseconds
#: on a quiet machine, more than 10 ms now and then on a busy one, which is the verdict's to judge by its distribution.
BYTE_TOLERANCE_S = 0.025
#: A window that is live this long before its first packet was not waited for: its KV was not ready.
FIRST_PACKET_S = 0.050
#: The controller reads its clock around a step, the packet its own at the NIC.
CLOCK_SLACK_S = 20e-6


@dataclass(frozen=True, slots=True)
class Segment:
    """One captured TCP packet with payload (possibly a GSO packet of several segments); `at_s` is run-clock time."""

    file: str
    number: int
    at_s: float
    source: str
    source_port: int
    destination: str
    sequence: int
    payload_bytes: int

    @property
    def packet(self) -> str:
        return f"packet {self.number} of {self.file}"


@dataclass
class Audit:
    """What the packets say; real seconds. `dark_s`: of every reconfiguration, from the end of the purge behind the
    removal of its rules to the start of the installation; `first_packet_s`: from the same moment to the first packet
    that was delivered to either port, where the circuit was waited for; `excess_s`: step of a switch -> what each took
    beyond the delay; `byte_delay_s`: from a first or last packet to the byte on record; `violations` in words, `gaps`:
    what could not be checked, and why; `complete`: no capture has lost a packet."""

    packets: int = 0
    payload_bytes: int = 0
    retransmitted_bytes: int = 0
    dark_s: list[float] = field(default_factory=list)
    first_packet_s: list[float] = field(default_factory=list)
    excess_s: dict[str, list[float]] = field(default_factory=dict)
    byte_delay_s: list[float] = field(default_factory=list)
    flows: int = 0
    violations: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    complete: bool = True

    def missed(self, what: str) -> None:
        """A packet that should be there is not: a violation, unless the capture may have lost it."""
        (self.violations if self.complete else self.gaps).append(what)


def read(path: Path, *, clocks: ClockPair, t0_monotonic_s: float, time_dilation: float) -> Iterator[Segment]:
    """The segments of a capture that carry payload. Raises scapy's error for a file that is no capture."""
    from scapy.layers.inet import IP, TCP
    from scapy.utils import PcapReader

    with PcapReader(str(path)) as packets:
        packet: Any  # scapy makes the fields of its layers at run time
        for number, packet in enumerate(packets, 1):
            if IP not in packet or TCP not in packet:
                continue
            ip, tcp = packet[IP], packet[TCP]
            payload_bytes = ip.len - 4 * ip.ihl - 4 * tcp.dataofs
            if payload_bytes > 0:
                at_s = (clocks.monotonic_s(float(packet.time)) - t0_monotonic_s) / time_dilation
                yield Segment(path.name, number, at_s, ip.src, tcp.sport, ip.dst, tcp.seq, payload_bytes)


@dataclass
class _Flow:
    """What of one direction of a connection was seen; offsets are sequence numbers unwrapped."""

    first: int
    reached: int = 0
    holes: list[tuple[int, int]] = field(default_factory=list)

    def take(self, sequence: int, size: int) -> int:
        """Note a segment; how many of its bytes are new."""
        # the difference to what was reached last is small, so it tells on which turn of the sequence numbers we are
        start = self.reached + (sequence - self.first - self.reached + (1 << 31)) % (1 << 32) - (1 << 31)
        stop, fresh = start + size, 0
        holes = []
        for low, high in self.holes:
            cut_low, cut_high = max(low, start), min(high, stop)
            if cut_low < cut_high:
                fresh += cut_high - cut_low
                holes += [(left, right) for left, right in ((low, cut_low), (cut_high, high)) if left < right]
            else:
                holes.append((low, high))
        if start > self.reached:
            holes.append((self.reached, start))
        if stop > self.reached:
            fresh += stop - max(start, self.reached)
            self.reached = stop
        self.holes = holes
        return fresh


def new_bytes(segments: Iterable[Segment]) -> tuple[list[Segment], int, int]:
    """(segments with a byte that is seen for the first time, such bytes, bytes seen again), over any number of
    connections."""
    bringing, fresh, again = [], 0, 0
    flows: dict[tuple[str, int, str], _Flow] = {}
    for segment in segments:
        key = (segment.source, segment.source_port, segment.destination)
        new = flows.setdefault(key, _Flow(segment.sequence)).take(segment.sequence, segment.payload_bytes)
        if new:
            bringing.append(segment)
        fresh, again = fresh + new, again + segment.payload_bytes - new
    return bringing, fresh, again


def audit_circuits(
    segments: Sequence[Segment],
    controller_events: Iterable[Mapping[str, Any]],
    transfers: Iterable[Mapping[str, Any]],
    *,
    addresses: Mapping[str, Sequence[str]],
    reconfiguration_s: float,
    time_dilation: float,
    unfinished_bytes: int = 0,
    complete: bool = True,
) -> Audit:
    """Checks 1 to 4. `addresses`: instance -> its GPU addresses; `transfers`: rows of transfers.csv that have a last
    byte; `unfinished_bytes`: what others may have delivered at most; `complete`: no capture has lost a packet."""
    found = Audit(packets=len(segments), complete=complete)
    segments = sorted(segments, key=lambda segment: segment.at_s)  # they come from several files
    by_address: dict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        by_address[segment.source].append(segment)
        by_address[segment.destination].append(segment)
    windows: dict[int, Mapping[str, Any]] = {}
    for event in controller_events:
        if event.get("event") == "window" and event["state"] == "dark":
            windows[event["window"]] = event
        elif event.get("event") == "switch":
            _check_dark(found, event, windows[event["window"]], by_address, addresses, reconfiguration_s)
    bringing, found.payload_bytes, found.retransmitted_bytes = new_bytes(segments)
    # A segment that was sent again brings nothing new, and may come long after its transfer has ended.
    delivered: dict[tuple[str, str], list[Segment]] = defaultdict(list)
    for segment in bringing:
        delivered[segment.source, segment.destination].append(segment)
    rows = list(transfers)
    asked = sum(int(row["emulated_bytes"]) for row in rows)
    more = f", and at most {unfinished_bytes} by transfers that did not end" if unfinished_bytes else ""
    sums = f"{found.payload_bytes} bytes were delivered, {asked} were asked for{more}"
    if found.payload_bytes > asked + unfinished_bytes:
        found.violations.append(sums)
    elif found.payload_bytes < asked:
        found.missed(sums)
    _check_first_bytes(found, rows, delivered, addresses, BYTE_TOLERANCE_S / time_dilation)
    _check_last_bytes(found, rows, by_address, addresses, BYTE_TOLERANCE_S / time_dilation)
    return found


def _check_dark(
    found: Audit,
    switch: Mapping[str, Any],
    window: Mapping[str, Any],
    by_address: Mapping[str, Sequence[Segment]],
    addresses: Mapping[str, Sequence[str]],
    reconfiguration_s: float,
) -> None:
    steps = switch["steps_s"]
    installed_s = switch["t_s"] - sum(steps[name] for name in ("install", "barrier2", "purge2"))
    began_s = installed_s - steps["dark_wait"]
    found.dark_s.append(installed_s - began_s)
    for step, seconds in steps.items():
        found.excess_s.setdefault(step, []).append(seconds - (reconfiguration_s if step == "dark_wait" else 0.0))
    if installed_s - began_s < reconfiguration_s - CLOCK_SLACK_S:
        found.violations.append(
            f"window {window['window']}: dark for {(installed_s - began_s) * 1e3:.3f} ms "
            f"of {reconfiguration_s * 1e3:g} ms"
        )
    ports = [address for instance in (window["prefill"], window["decode"]) for address in addresses[instance]]
    touching = {(s.file, s.number): s for address in ports for s in by_address.get(address, ())}
    # a switch whose window moves nothing (its request died) is followed by somebody else's packets, or none
    after = [s.at_s for s in touching.values() if began_s + CLOCK_SLACK_S < s.at_s <= switch["t_s"] + FIRST_PACKET_S]
    if after:
        found.first_packet_s.append(min(after) - began_s)
    for segment in touching.values():
        if began_s + CLOCK_SLACK_S < segment.at_s < installed_s - CLOCK_SLACK_S:
            found.violations.append(
                f"{segment.packet}: {segment.payload_bytes} bytes from {segment.source} delivered to "
                f"{segment.destination} {(segment.at_s - began_s) * 1e3:.3f} ms into the dark of window "
                f"{window['window']} ({window['prefill']}-{window['decode']})"
            )


def _check_first_bytes(
    found: Audit,
    transfers: Sequence[Mapping[str, Any]],
    delivered: Mapping[tuple[str, str], Sequence[Segment]],
    addresses: Mapping[str, Sequence[str]],
    tolerance_s: float,
) -> None:
    """A packet came just before the recorded first byte, and none since the transfer before it came sooner."""
    reached_s: dict[tuple[str, str], float] = {}  # last byte so far of each pair of addresses
    for row in sorted(transfers, key=lambda row: float(row["first_byte_s"])):
        rank, first_s = int(row["rank"]), float(row["first_byte_s"])
        source, destination = addresses[row["prefill"]][rank], addresses[row["decode"]][rank]
        before_s = reached_s.get((source, destination), -math.inf)
        reached_s[source, destination] = max(before_s, float(row["last_byte_s"]))
        if before_s >= first_s:  # the parts of two transfers take turns on their connection: who was first is not seen
            continue
        port = row["source_port"]  # missing where the sender's record is
        seen = [
            s
            for s in delivered.get((source, destination), ())
            if before_s < s.at_s <= first_s and (s.source_port == port or not isinstance(port, Integral))
        ]
        if seen:
            found.byte_delay_s.append(first_s - seen[0].at_s)
        if seen and first_s - seen[0].at_s > tolerance_s:
            found.violations.append(
                f"transfer {row['request']} rank {rank}: its first packet ({seen[0].packet}) came "
                f"{(first_s - seen[0].at_s) * 1e3:.3f} ms before the recorded first byte"
            )
        elif not seen:
            found.missed(f"transfer {row['request']} rank {rank}: no packet came before its first byte")


def _check_last_bytes(
    found: Audit,
    transfers: Sequence[Mapping[str, Any]],
    by_address: Mapping[str, Sequence[Segment]],
    addresses: Mapping[str, Sequence[str]],
    tolerance_s: float,
) -> None:
    for row in transfers:
        rank = int(row["rank"])
        source, destination = addresses[row["prefill"]][rank], addresses[row["decode"]][rank]
        # one that was sent again may be what brought the last byte: the capture sees what the socket then drops, too
        seen = [s for s in by_address.get(destination, ()) if s.source == source and s.at_s <= row["last_byte_s"]]
        if not seen:
            found.missed(f"transfer {row['request']} rank {rank}: none of its packets was captured")
            continue
        found.byte_delay_s.append(row["last_byte_s"] - seen[-1].at_s)
        if row["last_byte_s"] - seen[-1].at_s > tolerance_s:
            found.missed(
                f"transfer {row['request']} rank {rank}: its last packet ({seen[-1].packet}) came "
                f"{(row['last_byte_s'] - seen[-1].at_s) * 1e3:.3f} ms before the recorded last byte"
            )


def audit_paths(
    segments: Mapping[tuple[str, str], Sequence[Segment]],
    transfers: Iterable[Mapping[str, Any]],
    *,
    addresses: Mapping[str, Sequence[str]],
    paths: KvPaths,
    complete: bool = True,
) -> Audit:
    """Check 5. `segments`: by the link, in its direction, at which they were captured; a flow is a source and a source
    port, since each transfer has its own. `paths`: a transfer's `uplink` is the number of the one on record.
    `complete`: no capture has lost a packet."""
    found = Audit(complete=complete)
    taken: dict[tuple[str, int, str], dict[tuple[str, str], Segment]] = defaultdict(dict)
    first_links = {path[:2] for path in _all_paths(paths)}
    for link, captured in segments.items():
        found.packets += len(captured)
        for segment in captured:
            taken[segment.source, segment.source_port, segment.destination].setdefault(link, segment)
        if link in first_links:  # further on the same bytes come by again
            _, fresh, again = new_bytes(captured)
            found.payload_bytes += fresh
            found.retransmitted_bytes += again
    for row in transfers:
        ends = row["prefill"], row["decode"], int(row["rank"])
        port, recorded = row["source_port"], row["uplink"]
        transfer = f"transfer {row['request']} rank {ends[2]}"
        apart = paths.cross(*ends)
        if not isinstance(port, Integral) or (apart and not isinstance(recorded, Integral)):  # its sender's are missing
            found.gaps.append(f"{transfer}: no record says which port and uplink it took")
            continue
        found.flows += 1
        seen = taken.get((addresses[ends[0]][ends[2]], int(port), addresses[ends[1]][ends[2]]), {})
        if not apart and isinstance(recorded, Integral):
            found.violations.append(f"{transfer}: stays within a leaf, but uplink {recorded} is on record for it")
        choices = paths.between(*ends)
        if apart and not 0 <= recorded < len(choices):
            found.violations.append(f"{transfer}: uplink {recorded} is on record for it; there are {len(choices)}")
            continue
        meant = links_of(choices[int(recorded)]) if apart else ()
        for link in meant:
            if link in segments and link not in seen:
                found.missed(f"{transfer}: none of its packets crossed {'-'.join(link)}")
        for link, segment in seen.items():
            if link not in meant:
                path = "-".join((meant[0][0], *(end for _, end in meant))) if meant else "its own leaf"
                found.violations.append(f"{segment.packet}: {transfer} took {'-'.join(link)}, not {path}")
    return found


def _all_paths(paths: KvPaths) -> Iterator[RouterPath]:
    graph = paths.graph
    for source in graph.leaves:
        for destination in graph.leaves:
            yield from graph.paths(source, destination)
