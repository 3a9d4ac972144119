"""``report.html``: one file that shows a run, from its artifacts alone and without a network (plotly.js is inside)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from inputs import yaml_file
from outputs.page import pages
from results.records.artifacts import ArtifactError, RunDirectory, write_text
from results.records.schema import TTFT_PARTS
from results.records.summary import RunSummary
from results.report import figures
from results.report.accounting_view import MOVE_COLUMNS, PORT_COLUMNS, move_row, port_rows
from results.report.definitions import definitions
from results.report.fidelity_view import MEASURE_COLUMNS, UNSCALED_COLUMNS, FidelityView, fidelity_view
from results.report.picture import write_picture
from results.report.style import PART_NAMES
from results.report.table import UNDEFINED, comparisons, label, remarks, seconds, share

__all__ = ["write_picture", "write_report"]

TEMPLATES = Path(__file__).resolve().parent / "templates"


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run's directory and return its path. ArtifactError where an artifact cannot be
    read.
    """
    run = RunDirectory.open(run_dir)
    summary = run.summary()
    runs = summary.runs
    requests = []
    for entry in runs:
        frame = run.table(entry.name, entry.seed, "requests")
        if frame is None:
            raise ArtifactError(
                f"{run.path / entry.name / f'seed{entry.seed}' / 'requests.csv'} is missing: nothing to report on"
            )
        requests.append(frame)
    config = run.config()
    page = (
        pages(TEMPLATES)
        .get_template("report.html.j2")
        .render(
            title=config.get("name") or run.path.name,
            directory=run.path.name,
            substrates=sorted({entry.substrate for entry in runs}),
            verdicts=[(label(entry, runs), entry.verdict) for entry in runs],
            comparisons=comparisons(summary),
            remarks=remarks(summary),
            rows=[_row(entry, runs) for entry in runs],
            columns=COLUMNS,
            move_columns=MOVE_COLUMNS,
            moves=[move_row(entry, runs) for entry in runs],
            port_columns=PORT_COLUMNS,
            ports=port_rows(runs),
            part_names=[PART_NAMES[part] for part in TTFT_PARTS],
            parts=[(label(entry, runs), *_parts(entry)) for entry in runs],
            cdf=_html(figures.ttft_cdf(runs, requests), "cdf"),
            stacked=_html(figures.mean_parts(runs), "parts"),
            circuits=_circuit_sections(run, runs),
            view_s=figures.CIRCUITS_VIEW_S,
            fidelity=_fidelity(run, runs),
            measure_columns=MEASURE_COLUMNS,
            unscaled_columns=UNSCALED_COLUMNS,
            definitions=definitions(config),
            provenance=_provenance_rows(run.provenance()),
            config=yaml_file.dump(config) if config else "",
            plotly=get_plotlyjs(),
        )
    )
    return write_text(run.path / "report.html", page)


COLUMNS = (
    "fabric",
    "offered",
    "completed (n)",
    "failed",
    "unfinished",
    "mean, s",
    "p50, s",
    "p90, s",
    "p95, s",
    "p99, s",
    "exposed share",
    "hidden share",
    "SLO attainment",
    "verdict",
)


def _row(run: RunSummary, runs: list[RunSummary]) -> list[tuple[str, str]]:
    """The cells of one run as (text, explanation); the explanation of an undefined figure is why it is undefined."""
    ttft, counted = run.ttft_s, run.requests
    before = [label(run, runs), counted.offered, counted.completed, counted.failed, counted.unfinished]
    times = [
        (seconds(getattr(ttft, key)), ttft.null_reasons.get(key, "")) for key in ("mean", "p50", "p90", "p95", "p99")
    ]
    after = [share(value) for value in (run.ttft_exposed_share, run.hidden_share, run.slo_attainment)]
    return [*((str(cell), "") for cell in before), *times, *((cell, "") for cell in [*after, run.verdict])]


def _parts(run: RunSummary) -> list[str]:
    cells = [UNDEFINED if (value := run.ttft_parts_s.get(part)) is None else f"{value:.4f}" for part in TTFT_PARTS]
    return [*cells, UNDEFINED if run.ttft_s.mean is None else f"{run.ttft_s.mean:.4f}"]


def _fidelity(run: RunDirectory, runs: list[RunSummary]) -> list[FidelityView]:
    """Of each fabric and seed that has any."""
    views = []
    for entry in runs:
        document = run.fidelity(entry.name, entry.seed)
        if (view := fidelity_view(label(entry, runs), document)) is not None:
            views.append(view)
    return views


def _circuit_sections(run: RunDirectory, runs: list[RunSummary]) -> list[tuple[str, str]]:
    sections = []
    for index, entry in enumerate(runs):
        circuits = run.table(entry.name, entry.seed, "circuits")
        if entry.fabric == "ocs" and circuits is not None and len(circuits):
            sections.append((label(entry, runs), _html(figures.circuits_over_time(circuits), f"circuits{index}")))
    return sections


def _html(figure: go.Figure, name: str) -> str:
    config = {"displaylogo": False, "responsive": True, "scrollZoom": name.startswith("circuits")}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=config))


def _provenance_rows(record: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested keys as dotted names, so that nothing recorded is left out of the page."""
    rows: list[tuple[str, str]] = []
    for key, value in record.items():
        if isinstance(value, dict):
            rows += _provenance_rows(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for number, item in enumerate(value):
                rows += _provenance_rows(item, f"{prefix}{key}.{number}.")
        else:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            rows.append((prefix + key, "not known" if value is None else text))
    return rows
