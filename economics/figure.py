"""The figure of cost ratio against GPUs, as PNG (matplotlib) or as a self-contained HTML page (plotly).

The plotting libraries are imported inside the writers: tables must not wait for them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from economics.bill import GPUS_PER_NODE, Fabric, PacketDesign
from economics.cost import PER_PORT, Basis, CostRow, cost_row
from economics.price_book import PriceBook
from outputs.files import write_whole

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#d55e00", "#000000", "#999999", "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#cc79a7")
POINTS = 60


@dataclass(frozen=True, slots=True)
class Curve:
    """Cost over EPS 2:1 of one fabric in one book, at each size; low and high are the bounds of inferred prices."""

    book: str
    label: str
    dashed: bool
    colour: str
    gpus: list[int]
    value: list[float]
    low: list[float]
    high: list[float]
    inferred: bool


def sizes(smallest_gpus: int, largest_gpus: int) -> list[int]:
    """Up to about 60 sizes between the two, both included, in whole nodes."""
    nodes = range(smallest_gpus // GPUS_PER_NODE, largest_gpus // GPUS_PER_NODE + 1)
    step = max(1, len(nodes) // POINTS)
    return sorted({*(node * GPUS_PER_NODE for node in nodes[::step]), smallest_gpus, largest_gpus})


def curves(
    fabrics: Sequence[Fabric],
    books: Sequence[PriceBook],
    smallest_gpus: int,
    largest_gpus: int,
    basis: Basis = PER_PORT,
) -> list[Curve]:
    """One curve per fabric and book. Raises `OutOfRange` as the cost model does."""
    grid = sizes(smallest_gpus, largest_gpus)
    return [
        _curve(
            [cost_row(fabric, gpus, book, basis) for gpus in grid],
            isinstance(fabric, PacketDesign),
            COLOURS[index % len(COLOURS)],
        )
        for book in books
        for index, fabric in enumerate(fabrics)
    ]


def _curve(rows: Sequence[CostRow], dashed: bool, colour: str) -> Curve:
    ratios = [row.ratio_to_eps_2to1 for row in rows]
    return Curve(
        book=rows[0].book,
        label=rows[0].label,
        dashed=dashed,
        colour=colour,
        gpus=[row.gpus for row in rows],
        value=[each.value for each in ratios],
        low=[each.low for each in ratios],
        high=[each.high for each in ratios],
        inferred=any(each.inferred for each in ratios),
    )


def write_figure(
    path: Path,
    fabrics: Sequence[Fabric],
    books: Sequence[PriceBook],
    smallest_gpus: int,
    largest_gpus: int,
    basis: Basis = PER_PORT,
) -> None:
    """Writes `path`, whose ending (.png or .html) is the format. Raises `OSError` when it cannot be written."""
    drawn = curves(fabrics, books, smallest_gpus, largest_gpus, basis)
    write = {".png": _write_png, ".html": _write_html}[path.suffix]
    write(path, drawn, [book.name for book in books], "whole switches" if basis.whole_switches else "per port")


def _panel_title(book: str, drawn: Sequence[Curve]) -> str:
    inferred = any(curve.inferred for curve in drawn if curve.book == book)
    return f"Price book {book}" + (", inferred prices (bands: their bounds)" if inferred else "")


def _write_png(path: Path, drawn: Sequence[Curve], books: Sequence[str], basis: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 + 5.4 * len(books), 5.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(books), sharey=True, squeeze=False)[0]
    for axis, book in zip(axes, books, strict=True):
        for curve in (each for each in drawn if each.book == book):
            # A single size is a point, not an invisible line.
            marker = "o" if len(curve.gpus) == 1 else None
            style = "--" if curve.dashed else "-"
            axis.plot(curve.gpus, curve.value, style, color=curve.colour, marker=marker, label=curve.label)
            if curve.inferred:
                axis.fill_between(curve.gpus, curve.low, curve.high, color=curve.colour, alpha=0.15, linewidth=0)
        axis.set_title(_panel_title(book, drawn), fontsize=10)
        axis.set_xlabel("GPUs")
        axis.grid(alpha=0.3)
    # Only now: fixing one end earlier would freeze the shared axis at the first panel's range.
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel(f"cost / cost of EPS 2:1 ({basis})")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    drawing = io.BytesIO()
    figure.savefig(drawing, format="png")
    write_whole(path, drawing.getvalue())


def _write_html(path: Path, drawn: Sequence[Curve], books: Sequence[str], basis: str) -> None:
    from plotly.graph_objects import Figure, Scatter
    from plotly.subplots import make_subplots

    figure: Figure = make_subplots(
        rows=1, cols=len(books), shared_yaxes=True, subplot_titles=[_panel_title(book, drawn) for book in books]
    )
    for curve in drawn:
        column = books.index(curve.book) + 1
        if curve.inferred:
            band = Scatter(
                x=[*curve.gpus, *reversed(curve.gpus)],
                y=[*curve.high, *reversed(curve.low)],
                fill="toself",
                line_width=0,
                fillcolor=_faint(curve.colour),
                mode="lines",
                hoverinfo="skip",
                showlegend=False,
                legendgroup=curve.label,
            )
            figure.add_trace(band, row=1, col=column)
        line = Scatter(
            x=curve.gpus,
            y=curve.value,
            name=curve.label,
            legendgroup=curve.label,
            showlegend=column == 1,
            mode="lines" if len(curve.gpus) > 1 else "markers",
            line={"color": curve.colour, "dash": "dash" if curve.dashed else "solid"},
            customdata=list(zip(curve.low, curve.high, strict=True)),
            hovertemplate="%{x} GPUs: %{y:.3f}"
            + (" inferred [%{customdata[0]:.2f}..%{customdata[1]:.2f}]" if curve.inferred else "")
            + "<extra>%{fullData.name}</extra>",
        )
        figure.add_trace(line, row=1, col=column)
    figure.update_xaxes(title_text="GPUs")
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title_text=f"cost / cost of EPS 2:1 ({basis})", row=1, col=1)
    figure.update_layout(template="plotly_white", title="Cost of the network behind the 400G NICs")
    # The library goes into the page, so that it opens without a network.
    write_whole(path, figure.to_html(include_plotlyjs=True, full_html=True).encode())


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
