"""`heliograph cost` and `heliograph link-budget`: tables on the terminal, JSON for machines, a figure when asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from commands import notes
from economics.bill import CircuitDesign
from economics.cost import Basis, CostRow, cost_rows, default_fabrics
from economics.link_budget import LightPath, budget, circuit_switch
from economics.optics import OPTICS
from economics.ranges import OutOfRange
from economics.requirements import down, requirements
from inputs.options import finite, whole
from inputs.scalars import UnclearScalar, whole_number
from outputs.terminal import Terminal, say

FIGURE_SUFFIXES = (".png", ".html")


def cost(
    gpus: Annotated[
        str | None,
        typer.Option(help="Cluster sizes in GPUs, comma-separated. Default: 256, 1024 and the reach of one OCS stage."),
    ] = None,
    book: Annotated[
        list[str] | None,
        typer.Option(help="Price book: A, B, or a YAML file of your own. Repeatable. Default: A and B."),
    ] = None,
    whole_switches: Annotated[
        bool,
        typer.Option(
            "--whole-switches", metavar="", help="Count whole boxes in the fewest tiers, and say what that changes."
        ),
    ] = False,
    leaf_cabling: Annotated[
        str,
        typer.Option(
            help="With --whole-switches: `full` cables every uplink of every leaf, `needed` only GPUs x uplink ratio."
        ),
    ] = "full",
    uplinks: Annotated[
        str,
        typer.Option(help="EPS uplinks per 32-GPU rack, comma-separated: 32 is 1:1, 16 is 2:1, 11 is 3:1 (2.91:1)."),
    ] = "32,16,11",
    plane_ports: Annotated[
        int, typer.Option(parser=whole(), metavar="N", help="Ports of an OCS plane: 192 or 384.")
    ] = 384,
    figure: Annotated[
        list[Path] | None,
        typer.Option(help="Write the figure of cost ratio against GPUs here, as .png or .html. Repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON instead of tables.")] = False,
) -> None:
    """Capital cost (USD) and power (W) of the network behind the 400G NICs: packet switches (EPS), circuits (OCS)."""
    from economics.price_book import PriceBookError, load

    try:
        figures = [_figure_path(path) for path in figure or []]
        basis = Basis(whole_switches, leaf_cabling)
        if leaf_cabling != "full" and not whole_switches:
            raise OutOfRange(
                "--leaf-cabling is for --whole-switches: priced per port, no leaf is cabled; add --whole-switches"
            )
        fabrics = default_fabrics(_whole_numbers(uplinks, "--uplinks"), plane_ports)
        sizes = sorted(_whole_numbers(gpus, "--gpus")) if gpus is not None else _default_sizes(plane_ports)
        books = [load(each) for each in book or ("A", "B")]
        names = [each.name for each in books]
        if len(set(names)) < len(names):
            raise OutOfRange(f"two price books share a name ({', '.join(names)}); give each its own `name`")
        rows = cost_rows(fabrics, sizes, books, basis)
        per_port = cost_rows(fabrics, sizes, books) if whole_switches else None
    except (OutOfRange, PriceBookError) as error:
        raise notes.refused(error) from error

    if as_json:
        notes.print_json(_cost_json(books, rows, per_port, basis))
    else:
        from economics import tables

        out = Terminal()
        for each in books:
            mine = [row for row in rows if row.book == each.name]
            out.print(tables.cost_table(each, mine))
        if per_port:
            out.print(tables.change_table(rows, per_port))
        notes.print_notes(out, tables.cost_notes(books, fabrics, rows, basis))

    if figures:
        from economics.figure import write_figure

        for path in figures:
            try:
                write_figure(path, fabrics, books, min(sizes), max(sizes), basis)
            except OSError as error:
                raise notes.refused(
                    f"figure {path}: {error.strerror}; give a path in a directory that exists and is writable"
                ) from error
            say(f"figure: {path}", err=True)


def link_budget(
    optics: Annotated[str, typer.Option(help="400G optics, comma-separated: dr4, fr4.")] = "dr4,fr4",
    connectors: Annotated[
        int, typer.Option(parser=whole(), metavar="N", help="Mated connector pairs in the path.")
    ] = 4,
    connector_loss_db: Annotated[
        float, typer.Option(parser=finite, metavar="NUMBER", help="Loss of a mated connector pair, dB.")
    ] = 0.75,
    fibre_m: Annotated[float, typer.Option(parser=finite, metavar="NUMBER", help="Fibre length, m.")] = 500.0,
    fibre_loss_db_per_km: Annotated[
        float, typer.Option(parser=finite, metavar="NUMBER", help="Fibre loss, dB/km.")
    ] = 0.5,
    splices: Annotated[int, typer.Option(parser=whole(), metavar="N", help="Splices in the path.")] = 0,
    splice_loss_db: Annotated[float, typer.Option(parser=finite, metavar="NUMBER", help="Loss of a splice, dB.")] = 0.3,
    ocs_ports: Annotated[
        int, typer.Option(parser=whole(), metavar="N", help="Port count of the OCS in the path: 192 or 384.")
    ] = 384,
    ocs_loss_db: Annotated[
        float | None,
        typer.Option(
            parser=finite,
            help="Loss of one pass through the OCS, dB, instead of that of --ocs-ports; 0 for no OCS.",
        ),
    ] = None,
    launch_oma_dbm: Annotated[
        float | None,
        typer.Option(parser=finite, metavar="NUMBER", help="Launch OMA per lane, dBm. Default: the maximum."),
    ] = None,
    tdecq_db: Annotated[
        float,
        typer.Option(
            parser=finite, metavar="NUMBER", help="TDECQ of the transmitter, dB. Default: the worst compliant one."
        ),
    ] = 3.4,
    margin_db: Annotated[float, typer.Option(parser=finite, metavar="NUMBER", help="Wanted margin, dB.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON instead of tables.")] = False,
) -> None:
    """Does the light get through: loss (dB), launch and sensitivity (dBm), margin (dB), and what the optics must do."""
    try:
        switch = circuit_switch(ocs_ports) if ocs_loss_db is None else None
        path = LightPath(
            connectors,
            connector_loss_db,
            fibre_m,
            fibre_loss_db_per_km,
            splices,
            splice_loss_db,
            switch.loss_db if switch else ocs_loss_db if ocs_loss_db is not None else 0.0,
        )
        chosen = [OPTICS[name] for name in _optics(optics)]
        budgets = [
            budget(each, path, tdecq_db=tdecq_db, launch_oma_dbm=launch_oma_dbm, wanted_margin_db=margin_db)
            for each in chosen
        ]
        required = requirements(chosen, path, ocs_ports=switch.ports if switch else None, wanted_margin_db=margin_db)
    except OutOfRange as error:
        raise notes.refused(error) from error

    inferred = " (inferred)" if switch and switch.loss_inferred else ""
    said = [f"{each.name}: {each.source}." for each in chosen]
    if switch:
        said.append(f"{switch.ports}-port OCS, {switch.loss_db:g} dB{inferred}: {switch.loss_source}.")
    said += [
        "The defaults for connectors, fibre and splices are inferred: of the source's path, 5.95 dB in all and 2.7 dB "
        "of OCS are published, the split of the rest is not.",
        "Limits are rounded down to a tenth (to a hundredth in brackets). OMA: outer optical modulation amplitude, the "
        "maximum unless --launch-oma-dbm is given. MPI: multi-path interference.",
    ]
    if as_json:
        notes.print_json(
            {
                "schema": 1,
                "path": {**asdict(path), "parts_db": path.parts_db, "loss_db": path.loss_db},
                "ocs": {**asdict(switch)} if switch else {"loss_db": ocs_loss_db, "loss_source": "given"},
                "budgets": [
                    {
                        **asdict(found),
                        "largest_tdecq_db_rounded_down": _down(found.largest_tdecq_db),
                        "largest_loss_at_worst_tdecq_db_rounded_down": _down(found.largest_loss_at_worst_tdecq_db),
                    }
                    for found in budgets
                ],
                "requirements": [asdict(row) for row in required],
                "notes": said,
            }
        )
        return
    from economics import tables

    out = Terminal()
    out.print(tables.path_table(path, f"{switch.ports}-port OCS{inferred}" if switch else "OCS, loss as given"))
    out.print(tables.budget_table(budgets))
    out.print(tables.requirement_table(required))
    notes.print_notes(out, said)


def _cost_json(
    books: Sequence[Any], rows: Sequence[CostRow], per_port: Sequence[CostRow] | None, basis: Basis
) -> dict[str, Any]:
    records = [asdict(row) for row in rows]
    if per_port:
        for record, port in zip(records, per_port, strict=True):
            record["per_port"] = {
                key: asdict(getattr(port, key))
                for key in ("cost_usd", "cost_usd_per_gpu", "ratio_to_eps_2to1", "ratio_to_eps_3to1")
            } | {"power_w": port.power_w, "power_w_per_gpu": port.power_w_per_gpu}
    return {
        "schema": 1,
        "basis": "whole switches" if basis.whole_switches else "per port",
        "leaf_cabling": basis.cabling if basis.whole_switches else None,
        "books": [each.model_dump(mode="json", exclude_none=True) for each in books],
        "rows": records,
    }


def _default_sizes(plane_ports: int) -> list[int]:
    return [256, 1024, CircuitDesign(plane_ports=plane_ports).reach]


def _whole_numbers(text: str, option: str) -> list[int]:
    try:
        numbers = [whole_number(item) for item in text.split(",")]
    except UnclearScalar as error:
        raise OutOfRange(
            f"{option} {text!r} is not whole numbers separated by commas, such as 256,1024 ({error})"
        ) from error
    if len(set(numbers)) < len(numbers):
        raise OutOfRange(f"{option} {text!r} names a number twice")
    return numbers


def _optics(text: str) -> list[str]:
    names = [name.strip().lower() for name in text.split(",")]
    unknown = [name for name in names if name not in OPTICS]
    if unknown or len(set(names)) < len(names):
        raise OutOfRange(f"--optics {text!r}: give each of {', '.join(OPTICS)} at most once, separated by commas")
    return names


def _figure_path(path: Path) -> Path:
    if path.suffix not in FIGURE_SUFFIXES:
        raise OutOfRange(f"--figure {path}: the ending says the format; give one of {', '.join(FIGURE_SUFFIXES)}")
    if not path.parent.is_dir():
        raise OutOfRange(f"--figure {path}: there is no directory {path.parent}; create it first")
    return path


def _down(value: float | None) -> float | None:
    return None if value is None else down(value)
