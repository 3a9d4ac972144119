"""The report's figures, as Plotly figures made from the tables. Pure: data frames in, figures out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from results.metrics.metrics import completed, measured
from results.records.schema import TTFT_PARTS
from results.records.summary import RunSummary
from results.report.style import CIRCUIT_COLOURS, FABRIC_DASHES, PART_COLOURS, PART_NAMES, fabric_style
from results.report.table import label

# 25 ms of dark time in a minute would be a third of a pixel: the circuits' figure opens on this stretch and can be
# panned.
CIRCUITS_VIEW_S = 4.0
_FONT = {"family": "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif", "size": 14, "color": "#222"}
_AXIS = {
    "showline": True,
    "linecolor": "#888",
    "gridcolor": "#e6e6e6",
    "zeroline": False,
    "ticks": "outside",
    "tickcolor": "#888",
}


def ttft_steps(requests: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """TTFT sorted, seconds, and the share of *offered* measured requests answered by then.

    The curve ends below 1 where requests failed: they have no first token at any time.
    """
    times_s = np.sort(completed(requests)["ttft_s"].to_numpy(dtype=float))
    offered = len(measured(requests))
    return times_s, np.arange(1, len(times_s) + 1) / offered if offered else np.empty(0)


def ttft_cdf(runs: Sequence[RunSummary], requests: Sequence[pd.DataFrame]) -> go.Figure:
    """Share of offered requests with their first token, over time since arrival, a line per run."""
    figure = go.Figure()
    for index, (run, frame) in enumerate(zip(runs, requests, strict=True)):
        times_s, shares = ttft_steps(frame)
        colour, dash = fabric_style(index)
        figure.add_trace(
            go.Scatter(
                x=times_s,
                y=shares,
                mode="lines",
                name=f"{label(run, runs)} (n = {len(times_s)})",
                line={"shape": "hv", "color": colour, "dash": FABRIC_DASHES[dash], "width": 2.2},
                hovertemplate="%{y:.1%} by %{x:.3f} s",
            )
        )
    figure.update_xaxes(title_text="TTFT, s (logarithmic)", type="log", dtick="D2", tickformat="~g")
    figure.update_yaxes(title_text="share of offered requests", range=[0, 1.02], tickformat=".0%")
    return _laid_out(figure, height=420)


def mean_parts(runs: Sequence[RunSummary]) -> go.Figure:
    """A bar per run: the means of the parts of TTFT, which add up to the mean TTFT."""
    names = [label(run, runs) for run in runs]
    figure = go.Figure()
    for part in TTFT_PARTS:
        values = [run.ttft_parts_s.get(part) for run in runs]
        figure.add_trace(
            go.Bar(
                x=values,
                y=names,
                name=PART_NAMES[part],
                orientation="h",
                marker={"color": PART_COLOURS[part], "line": {"color": "white", "width": 1}},
                hovertemplate="%{y}: " + PART_NAMES[part] + " %{x:.4f} s<extra></extra>",
            )
        )
    for name, run in zip(names, runs, strict=True):
        text = f"{run.ttft_s.mean:.3f} s" if run.ttft_s.mean is not None else "no request completed"
        at_s = sum(value or 0.0 for value in run.ttft_parts_s.values())
        figure.add_annotation(x=at_s, y=name, text=text, showarrow=False, xanchor="left", xshift=6)
    longest_s = max((run.ttft_s.mean or 0.0 for run in runs), default=0.0)
    figure.update_xaxes(title_text="mean over completed requests, s", range=[0, 1.14 * longest_s or 1.0])
    figure.update_yaxes(autorange="reversed", showgrid=False, automargin=True)
    figure.update_layout(barmode="stack")
    return _laid_out(figure, height=170 + 52 * max(len(runs), 1))


def circuit_states(circuits: pd.DataFrame) -> pd.DataFrame:
    """Each stretch a port spent dark or live: columns port, peer, state, begin_s, end_s, window, request. Two ports
    per window.

    A window that never ended lasts until the last time any window is known to have changed.
    """
    last_s = circuits[["dark_at_s", "live_at_s", "released_at_s"]].max(axis=None, skipna=True) if len(circuits) else 0.0
    rows: list[dict[str, Any]] = []
    for window in circuits.to_dict("records"):
        over_s = window["released_at_s"] if pd.notna(window["released_at_s"]) else last_s
        switched = pd.notna(window["dark_at_s"])
        stretches = []
        if switched:
            stretches.append(
                ("dark", window["dark_at_s"], window["live_at_s"] if pd.notna(window["live_at_s"]) else over_s)
            )
        if pd.notna(window["live_at_s"]):
            stretches.append(
                ("live after a switch" if switched else "live on a standing circuit", window["live_at_s"], over_s)
            )
        for state, begin_s, end_s in stretches:
            shared = {
                "state": state,
                "begin_s": begin_s,
                "end_s": end_s,
                "window": window["window"],
                "request": window["request"],
            }
            rows.append({"port": window["prefill"], "peer": window["decode"], **shared})
            rows.append({"port": window["decode"], "peer": window["prefill"], **shared})
    return pd.DataFrame(rows, columns=["port", "peer", "state", "begin_s", "end_s", "window", "request"])


def circuits_over_time(circuits: pd.DataFrame) -> go.Figure:
    """A row per instance (its ports move together), a bar per stretch dark or live."""
    states = circuit_states(circuits)
    ports = sorted(set(states["port"]), key=_port_order)
    figure = go.Figure()
    for state, colour in CIRCUIT_COLOURS.items():
        of_state = states[states["state"] == state]
        figure.add_trace(
            go.Bar(
                x=of_state["end_s"] - of_state["begin_s"],
                base=of_state["begin_s"],
                y=of_state["port"],
                name=state,
                orientation="h",
                marker={"color": colour, "line": {"width": 0}},
                customdata=of_state[["peer", "window", "request"]].to_numpy(dtype=object),
                hovertemplate="%{y} to %{customdata[0]}, " + state + "<br>from %{base:.4f} s for %{x:.4f} s<br>"
                "window %{customdata[1]}, request %{customdata[2]}<extra></extra>",
            )
        )
    begin_s = busiest_stretch(states.loc[states["state"] == "dark", "begin_s"], CIRCUITS_VIEW_S)
    figure.update_xaxes(title_text="run clock, s", range=[begin_s, begin_s + CIRCUITS_VIEW_S])
    figure.update_yaxes(
        categoryorder="array", categoryarray=ports[::-1], showgrid=False, fixedrange=True, automargin=True
    )
    figure.update_layout(barmode="overlay", bargap=0.35, dragmode="pan")
    return _laid_out(figure, height=150 + 30 * max(len(ports), 1))


def busiest_stretch(times_s: pd.Series, width_s: float) -> float:
    """Where the window of this width that holds most of the times begins; 0 without any."""
    ordered = np.sort(times_s.to_numpy(dtype=float))
    if not len(ordered):
        return 0.0
    held = np.searchsorted(ordered, ordered + width_s, side="left") - np.arange(len(ordered))
    return float(ordered[int(held.argmax())])


def _port_order(name: str) -> tuple[int, str, int]:
    """Prefill instances before decode instances, p2 before p10."""
    letters = name.rstrip("0123456789")
    digits = name[len(letters) :]
    return 0 if letters == "p" else 1, letters, int(digits) if digits else -1


def _laid_out(figure: go.Figure, *, height: int) -> go.Figure:
    figure.update_xaxes(**_AXIS)
    figure.update_yaxes(**_AXIS)
    figure.update_layout(
        font=_FONT,
        height=height,
        margin={"l": 70, "r": 20, "t": 50, "b": 60},
        paper_bgcolor="white",
        plot_bgcolor="white",
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
    )
    return figure
