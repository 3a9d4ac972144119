"""Costs and link budgets as terminal tables. Every inferred figure says so, with its bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from economics.bill import CircuitDesign, Fabric
from economics.cost import Basis, CostRow, Range
from economics.link_budget import LightPath, LinkBudget
from economics.price_book import PriceBook, Quote
from economics.requirements import Requirement, limit, margin_verdict
from outputs.sheet import Cell, Column, Sheet


def _with_bounds(figure: Range, value: Callable[[float], str]) -> str:
    """The figure, and under it its bounds when it is inferred."""
    bounds = f"\n{value(figure.low)}..{value(figure.high)}" if figure.inferred else ""
    return value(figure.value) + bounds


def dollars(figure: Range) -> str:
    """USD, rounded to whole dollars."""
    return _with_bounds(figure, lambda usd: f"{usd:,.0f}")


def million(figure: Range) -> str:
    """USD in millions."""
    digits = 2 if figure.high < 10e6 else 1
    return _with_bounds(figure, lambda usd: f"{usd / 1e6:,.{digits}f}")


def ratio(figure: Range) -> str:
    """A ratio to two digits, as the source prints them."""
    return _with_bounds(figure, lambda plain: f"{plain:.2f}")


def _columns(*headers: str, names: int = 1) -> list[Column]:
    """The first of names, the others of figures."""
    return [Column(header, "name" if number < names else "figure") for number, header in enumerate(headers)]


def _two_lines(figure: str) -> Cell:
    return tuple(figure.split("\n"))


def cost_table(book: PriceBook, rows: Sequence[CostRow]) -> Sheet:
    """Rows of one book, in a section for each size."""
    flag = "\ninferred" if book.inferred() else ""
    columns = _columns(
        "fabric",
        f"USD\nper GPU{flag}",
        f"total,\nmillion USD{flag}",
        f"cost /\nEPS 2:1{flag}",
        f"cost /\nEPS 3:1{flag}",
        "W per\nGPU",
        "total\nkW",
    )
    cells: list[Sequence[Cell]] = []
    size_gpus = None
    for row in rows:
        if row.gpus != size_gpus:
            size_gpus = row.gpus
            cells.append([f"{size_gpus:,} GPUs"])
        cells.append(
            [
                row.label,
                _two_lines(dollars(row.cost_usd_per_gpu)),
                _two_lines(million(row.cost_usd)),
                _two_lines(ratio(row.ratio_to_eps_2to1)),
                _two_lines(ratio(row.ratio_to_eps_3to1)),
                f"{row.power_w_per_gpu:.2f}",
                f"{row.power_w / 1e3:,.2f}",
            ]
        )
    return Sheet(columns, cells, title=f"Price book {book.name}: {book.about}")


def quoted(key: str, quote: Quote) -> str:
    """One figure with unit and bounds: `nic_400g 1,499 USD, inferred, 1,450 to 1,550 USD`."""
    section, field = key.split(".")
    unit = {"prices_usd": " USD", "control_network": " USD", "power_w": " W", "ratios": ""}[section]
    name = f"control network {field}" if section == "control_network" else field
    bounds = quote.inferred
    inferred = f", inferred, {bounds.low:,g} to {bounds.high:,g}{unit}" if bounds else ""
    return f"{name} {quote.value:,g}{unit}{inferred}"


def cost_notes(
    books: Sequence[PriceBook], fabrics: Sequence[Fabric], rows: Sequence[CostRow], basis: Basis
) -> list[str]:
    """What a reader must know beside the numbers."""
    notes = []
    for book in books:
        if book.inferred():
            figures = "; ".join(quoted(key, quote) for key, quote in book.inferred().items())
            notes.append(f"Book {book.name}: {figures}. Under an inferred figure stand its extremes over these bounds.")
    left_out = sorted({part for row in rows for part in row.power_leaves_out})
    if left_out:
        notes.append(f"Power leaves out, for want of a figure in the book: {', '.join(left_out)}.")
    circuits = [fabric for fabric in fabrics if isinstance(fabric, CircuitDesign)]
    if circuits:
        first = circuits[0]
        notes.append(
            f"One OCS stage of {first.plane_ports}-port planes reaches {first.reach:,} GPUs: a plane joins one GPU "
            f"position of every {first.gpus_per_node}-GPU node. FR4 at one port per pair takes {first.gpus_per_node} "
            f"planes; each more port per GPU takes {first.gpus_per_node} more."
        )
    tiers = {row.gpus: row.tiers for row in rows if row.fabric.startswith("eps")}
    if tiers:
        each = ", ".join(f"{count} at {gpus:,} GPUs" for gpus, count in tiers.items())
        notes.append(f"EPS tiers, the fewest of 51.2T switches (128 x 400G): {each}.")
    single = sorted({row.gpus for row in rows if row.fabric.startswith("eps") and row.tiers == 1})
    if single:
        sizes = ", ".join(f"{gpus:,}" for gpus in single)
        notes.append(
            f"At {sizes} GPUs one 51.2T switch joins all: there is no uplink, so oversubscription changes nothing."
        )
    if basis.whole_switches:
        idle = "all uplinks of a leaf cabled" if basis.cabling == "full" else "only GPUs x uplink ratio cabled"
        notes.append(
            f"Whole switches: the fewest 128-port boxes in the fewest tiers, {idle}; idle ports are paid and powered."
        )
    else:
        notes.append("Prices are per port; --whole-switches counts whole boxes and says what that changes.")
    return notes


def change_table(rows: Sequence[CostRow], per_port: Sequence[CostRow]) -> Sheet:
    """What counting whole switches changes in cost / EPS 2:1, and how many boxes there are."""
    headers = ("book", "GPUs", "fabric", "boxes", "per port", "whole\nswitches", "change")
    cells: list[Sequence[Cell]] = []
    for whole, port in zip(rows, per_port, strict=True):
        before, after = port.ratio_to_eps_2to1, whole.ratio_to_eps_2to1
        boxes = whole.switches if whole.switches is not None else whole.ocs_switches
        change = f"{after.value / before.value - 1:+.1%}" + ("\ninferred" if after.inferred else "")
        figures = map(_two_lines, (ratio(before), ratio(after), change))
        cells.append([whole.book, f"{whole.gpus:,}", whole.label, f"{boxes:,}", *figures])
    return Sheet(_columns(*headers, names=3), cells, names=3, title="What whole switches change in cost / EPS 2:1")


def path_table(path: LightPath, ocs: str) -> Sheet:
    """Where the light is lost."""
    names = {
        "connectors": f"{path.connectors} connectors x {path.connector_loss_db:g} dB",
        "fibre": f"{path.fibre_m:g} m of fibre x {path.fibre_loss_db_per_km:g} dB/km",
        "splices": f"{path.splices} splices x {path.splice_loss_db:g} dB",
        "ocs": ocs,
    }
    rows = [(names[part], f"{loss_db:.2f}") for part, loss_db in path.parts_db.items() if loss_db]
    rows.append(("whole path", f"{path.loss_db:.2f}"))
    return Sheet(_columns("part", "loss, dB"), rows, title="LightPath, per lane")


def budget_table(budgets: Sequence[LinkBudget]) -> Sheet:
    """One column per optics."""
    wanted = f"{budgets[0].wanted_margin_db:g} dB"
    lines: list[tuple[str, Callable[[LinkBudget], str]]] = [
        ("fibre pairs per 400G link", lambda each: str(each.fibre_pairs)),
        ("launch OMA, dBm", lambda each: f"{each.launch_oma_dbm:.2f}"),
        ("path loss, dB", lambda each: f"{each.loss_db:.2f}"),
        ("channel allocation, dB", lambda each: f"{each.allocation_db:.2f}"),
        ("loss over the allocation, dB", lambda each: f"{each.loss_over_allocation_db:+.2f}"),
        ("TDECQ, dB", lambda each: f"{each.tdecq_db:.2f}"),
        ("receiver sensitivity (OMA), dBm", lambda each: f"{each.sensitivity_dbm:.2f}"),
        (f"margin, dB ({wanted} wanted)", lambda each: f"{each.margin_db:.2f} {margin_verdict(each)}"),
        ("  with the MPI penalty", lambda each: f"{each.margin_with_mpi_db:.2f}"),
        ("  at the lowest compliant launch", lambda each: f"{each.margin_at_lowest_launch_db:.2f}"),
        (f"largest TDECQ for {wanted} on this path, dB", lambda each: limit(each.largest_tdecq_db)),
        ("  with the MPI penalty", lambda each: limit(each.largest_tdecq_with_mpi_db)),
        (f"largest loss for {wanted} at any TDECQ, dB", lambda each: limit(each.largest_loss_at_worst_tdecq_db)),
        ("  with the MPI penalty", lambda each: limit(each.largest_loss_at_worst_tdecq_with_mpi_db)),
    ]
    rows = [(name, *map(cell, budgets)) for name, cell in lines]
    return Sheet(_columns("", *(budget.optics for budget in budgets)), rows, title="Link budget, per lane")


def requirement_table(rows: Sequence[Requirement]) -> Sheet:
    """The requirements and who meets them."""
    columns = [Column(header, "words") for header in ("requirement", "required", "of", "met", "how")]
    cells = [(row.requirement, f"{row.required:g} {row.unit}", row.subject, row.met, row.how) for row in rows]
    return Sheet(columns, cells, title="Requirements on the optical layer")
