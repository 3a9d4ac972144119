"""Capital cost in USD and power in W of a fabric, per GPU and in total, from its bill and a price book."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from economics.bill import GPUS_PER_NODE, Bill, CircuitDesign, Fabric, PacketDesign
from economics.price_book import PriceBook

EPS_2TO1 = PacketDesign(uplinks=16)
EPS_3TO1 = PacketDesign(uplinks=11)  # 2.91:1, the nearest to 3:1 with whole uplinks on a 32-GPU rack


@dataclass(frozen=True, slots=True)
class Range:
    """A figure and, when an inferred price moves it, its extremes over the bounds (otherwise low = value = high)."""

    value: float
    low: float
    high: float
    inferred: bool


@dataclass(frozen=True, slots=True)
class CostRow:
    """One fabric at one size in one book."""

    book: str
    fabric: str
    label: str
    gpus: int
    tiers: int
    switches: int | None
    ocs_switches: int | None
    cost_usd: Range
    cost_usd_per_gpu: Range
    ratio_to_eps_2to1: Range
    ratio_to_eps_3to1: Range
    power_w: float
    power_w_per_gpu: float
    power_ratio_to_eps_2to1: float
    power_leaves_out: tuple[str, ...]  # parts of the bill for which the book has no power figure


def cost_usd(bill: Bill, book: PriceBook, gpus_per_node: int = GPUS_PER_NODE) -> float:
    """Sum of counts x prices, in USD; linear in every price."""
    prices = book.prices_usd
    fr4_module_usd = book.ratios.fr4_module_to_module_400g.value * prices.module_400g.value
    return (
        bill.nics * prices.nic_400g.value
        + float(bill.modules_400g) * prices.module_400g.value
        + bill.modules_fr4 * fr4_module_usd
        + float(bill.switch_ports) * prices.switch_port_400g.value
        + bill.ocs_ports * prices.ocs_port.value
        + (bill.control_gpus * book.control_network.usd_per_gpu(gpus_per_node) if bill.control_gpus else 0.0)
    )


def power_w(bill: Bill, book: PriceBook) -> tuple[float, tuple[str, ...]]:
    """Power in W of the parts the book has figures for, and the names of the parts it has none for."""
    powers = book.power_w
    parts = {
        "switch ports": (float(bill.switch_ports), powers.switch_port_400g),
        "OCS ports": (bill.ocs_ports, powers.ocs_port),
        "NICs": (bill.nics, powers.nic_400g),
        "400G modules": (float(bill.modules_400g), powers.module_400g),
        "FR4 modules": (bill.modules_fr4, powers.module_fr4),
        "control network": (bill.control_gpus, powers.control_network_per_gpu),
    }
    used = {name: part for name, part in parts.items() if part[0]}
    total_w = sum(count * quote.value for count, quote in used.values() if quote is not None)
    return total_w, tuple(name for name, (_, quote) in used.items() if quote is None)


def over_bounds(book: PriceBook, figure: Callable[[PriceBook], float]) -> Range:
    """`figure` of the book, and its extremes over the bounds of the book's inferred values."""
    value = figure(book)
    ends = [figure(corner) for corner in book.corners()]
    low, high = min(ends), max(ends)
    # A figure that no inferred price enters does not move; floating point may still differ in the last digit.
    moves = high - low > 1e-9 * max(abs(value), 1.0)
    return Range(value, low, high, True) if moves else Range(value, value, value, False)


@dataclass(frozen=True, slots=True)
class Basis:
    """How switches are counted: per port, or (`whole_switches`) as whole boxes with `cabling` full or needed."""

    whole_switches: bool = False
    cabling: str = "full"

    def bill(self, fabric: Fabric, gpus: int) -> Bill:
        if isinstance(fabric, CircuitDesign):
            return fabric.bill(gpus, whole_switches=self.whole_switches)
        return fabric.bill(gpus, whole_switches=self.whole_switches, cabling=self.cabling)


PER_PORT = Basis()


def cost_row(fabric: Fabric, gpus: int, book: PriceBook, basis: Basis = PER_PORT) -> CostRow:
    """One fabric at one size. Raises `OutOfRange` for a size the fabric does not reach."""
    bill, eps_2to1, eps_3to1 = (basis.bill(each, gpus) for each in (fabric, EPS_2TO1, EPS_3TO1))
    per_node = fabric.gpus_per_node if isinstance(fabric, CircuitDesign) else GPUS_PER_NODE

    def total_usd(at: PriceBook) -> float:
        return cost_usd(bill, at, per_node)

    draws_w, leaves_out = power_w(bill, book)
    return CostRow(
        book=book.name,
        fabric=fabric.key,
        label=fabric.label,
        gpus=gpus,
        tiers=bill.tiers,
        switches=bill.switches,
        ocs_switches=bill.ocs_switches,
        cost_usd=over_bounds(book, total_usd),
        cost_usd_per_gpu=over_bounds(book, lambda at: total_usd(at) / gpus),
        ratio_to_eps_2to1=over_bounds(book, lambda at: total_usd(at) / cost_usd(eps_2to1, at)),
        ratio_to_eps_3to1=over_bounds(book, lambda at: total_usd(at) / cost_usd(eps_3to1, at)),
        power_w=draws_w,
        power_w_per_gpu=draws_w / gpus,
        power_ratio_to_eps_2to1=draws_w / power_w(eps_2to1, book)[0],
        power_leaves_out=leaves_out,
    )


def cost_rows(
    fabrics: Sequence[Fabric], sizes_gpus: Sequence[int], books: Sequence[PriceBook], basis: Basis = PER_PORT
) -> list[CostRow]:
    """Every fabric at every size in every book: by book, then size, then fabric."""
    return [cost_row(fabric, gpus, book, basis) for book in books for gpus in sizes_gpus for fabric in fabrics]


def default_fabrics(uplinks: Sequence[int] = (32, 16, 11), plane_ports: int = 384) -> list[Fabric]:
    """EPS at the given uplinks per 32-GPU rack, then OCS with FR4 and DR4 at one and two ports per fibre pair."""
    packet: list[Fabric] = [PacketDesign(uplinks=count) for count in uplinks]
    circuit = [CircuitDesign(optics, ports, plane_ports) for optics in ("fr4", "dr4") for ports in (1, 2)]
    return [*packet, *circuit]
