"""What does not scale with the cluster, each with its ratio to the scaled quantity that it competes with.

A scaled cluster is faithful where these are small beside what they stand next to. Each is what it is whatever
`rate_scale` and `time_dilation` say; the ratio tells which of the two would make it smaller. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from emulation.network.shaping import GSO_MAX_BYTES, MSS_BYTES
from emulation.scale import ScaleModel

INITIAL_WINDOW_SEGMENTS = 10  # RFC 6928, Linux's TCP_INIT_CWND


@dataclass(frozen=True, slots=True)
class Quantities:
    """Medians of a run, wall-clock (emulated) units: KV bytes of a transfer and rank, goodput of a KV link, a prefill,
    the reconfiguration delay (None without circuits), the round trip of a KV path, an event's answer; TCP's window,
    the limit of a port's queue and TCP's least retransmission timeout as they were set, whether the latter grows with
    the time in which a window drains, and whether each transfer opens a connection of its own."""

    transfer_bytes: float
    link_bytes_per_s: float
    prefill_s: float | None = None
    reconfiguration_s: float | None = None
    round_trip_s: float | None = None
    control_s: float | None = None
    window_bytes: int | None = None
    queue_bytes: int | None = None
    rto_min_s: float | None = None
    rto_follows_window: bool = False
    new_connections: bool = False

    @property
    def transfer_s(self) -> float:
        """A transfer alone on its link."""
        return self.transfer_bytes / self.link_bytes_per_s


@dataclass(frozen=True, slots=True)
class Unscaled:
    """`emulated` in `unit` as it is, `real` what it stands for in the real cluster; `against` the quantity it competes
    with, of `against_emulated` in the same unit."""

    name: str
    unit: str
    emulated: float
    real: float
    against: str
    against_emulated: float
    remedy: str

    @property
    def ratio(self) -> float:
        """Of this to what it competes with."""
        return self.emulated / self.against_emulated

    def described(self) -> dict[str, Any]:
        """For `fidelity.json`."""
        return asdict(self) | {"ratio": self.ratio}


def unscaled(quantities: Quantities, scale: ScaleModel) -> list[Unscaled]:
    """Every one of them that this run can speak of."""
    return [*_bytes(quantities, scale), *_times(quantities, scale)]


def _bytes(quantities: Quantities, scale: ScaleModel) -> Iterator[Unscaled]:
    more_bytes = "a larger scale.rate_scale makes it smaller"
    sizes = [
        ("one segment (MTU)", MSS_BYTES),
        ("the last GSO packet, which a shaper lets out free", GSO_MAX_BYTES),
    ]
    if quantities.new_connections:
        sizes.append(("TCP's initial window", INITIAL_WINDOW_SEGMENTS * MSS_BYTES))
    for name, size in sizes:
        yield Unscaled(
            name, "bytes", size, size / scale.rate_scale, "a transfer", quantities.transfer_bytes, more_bytes
        )


def _times(quantities: Quantities, scale: ScaleModel) -> Iterator[Unscaled]:
    slower = "a larger scale.time_dilation makes it smaller"
    transfer = ("a transfer", quantities.transfer_s)
    window_s, queue_s = (
        None if size is None else size / quantities.link_bytes_per_s
        for size in (quantities.window_bytes, quantities.queue_bytes)
    )
    faster = "it grows with a window, so not with dilation: a larger scale.rate_scale makes it smaller"
    few_packets = "it holds a few packets whatever the scale"
    rto_remedy = faster if quantities.rto_follows_window else slower
    against = ("the reconfiguration delay", quantities.reconfiguration_s)
    if quantities.reconfiguration_s is None or not quantities.reconfiguration_s:
        against = ("a prefill", quantities.prefill_s)
    found = [
        ("round trip of a KV path", quantities.round_trip_s, transfer, slower),
        ("a KV connection's window, which may stand in a queue", window_s, transfer, few_packets),
        ("a full queue of a port, shared by several windows", queue_s, transfer, few_packets),
        ("TCP's least retransmission timeout", quantities.rto_min_s, transfer, rto_remedy),
        ("the controller's answer to an event", quantities.control_s, against, slower),
    ]
    for name, value_s, (beside, beside_s), remedy in found:
        if value_s is not None and beside_s:
            yield Unscaled(name, "ms", value_s * 1e3, scale.real_s(value_s) * 1e3, beside, beside_s * 1e3, remedy)
