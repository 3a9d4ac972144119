"""Paper and project side by side: on the terminal, as CSV and JSON, and as a page that needs no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text

from outputs.page import pages
from outputs.sheet import Column, Sheet
from paper.rows import Found, Row, Verdict
from results.records.artifacts import write_json, write_text

TEMPLATES = Path(__file__).with_name("templates")
_STYLES: dict[Verdict, str] = {"yes": "green", "partly": "yellow", "no": "bold red", "not measured": "dim"}


@dataclass(frozen=True, slots=True)
class Line:
    """A row and what this project has for it."""

    row: Row
    found: Found
    verdict: Verdict

    @property
    def windows(self) -> str:
        """Paired windows behind the figure."""
        if self.row.measure is None:
            return "closed form"
        counts = sorted({each.n for each in self.found.by_point.values()})
        missing = f" ({self.found.missing} points incomplete)" if self.found.missing else ""
        return ("-" if not counts else "/".join(map(str, counts))) + missing


def side_by_side(lines: Sequence[Line]) -> Sheet:
    """The table for the terminal."""
    columns = [Column("figure", "name"), Column("what", "words"), Column("unit", "name")]
    columns += [Column("paper"), Column("this project (± 95 %)")]
    columns += [Column("windows", "name"), Column("reproduces", "name")]
    rows = [
        (
            line.row.figure,
            line.row.what,
            _unit(line.row),
            line.row.published.text,
            line.found.text(line.row.places),
            line.windows,
            Text(line.verdict, style=_STYLES[line.verdict]),
        )
        for line in lines
    ]
    return Sheet(columns, rows, names=2)


def tally(lines: Sequence[Line]) -> str:
    """How many rows reproduce."""
    counts = Counter(line.verdict for line in lines)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in _STYLES if counts[verdict])


def write_artifacts(path: Path, lines: Sequence[Line], about: dict[str, Any]) -> Path:
    """`paper.csv`, `paper.json` (every grid point) and `report.html`, whose path is returned. Raises ArtifactError."""
    frame = pd.DataFrame(
        [
            {
                "id": line.row.id,
                "figure": line.row.figure,
                "what": line.row.what,
                "unit": _unit(line.row),
                "paper": line.row.published.text,
                "project": line.found.text(line.row.places),
                "windows": line.windows,
                "reproduces": line.verdict,
                "source": line.row.source,
            }
            for line in lines
        ]
    )
    write_text(path / "paper.csv", frame.to_csv(index=False))
    write_json(path / "paper.json", {"schema": 1, **about, "rows": [_plain(line) for line in lines]})
    page = (
        pages(TEMPLATES)
        .get_template("paper.html.j2")
        .render(
            about=about, tally=tally(lines), rows=frame.to_dict("records"), points=[_points(line) for line in lines]
        )
    )
    return write_text(path / "report.html", page)


def _unit(row: Row) -> str:
    return {"percent": "%", "ratio": ""}.get(row.unit, row.unit)


def _plain(line: Line) -> dict[str, Any]:
    row = line.row
    return {
        "id": row.id,
        "figure": row.figure,
        "what": row.what,
        "unit": row.unit,
        "published": row.published.numbers,
        "printed": row.published.text,
        "source": row.source,
        "reproduces": line.verdict,
        "points": {
            name: {"mean": each.mean, "half_width_95": each.half_width, "windows": each.n}
            for name, each in line.found.by_point.items()
        },
        "points_incomplete": line.found.missing,
    }


def _points(line: Line) -> list[tuple[str, str]]:
    """Every grid point of a row in words, where there are several."""
    found = line.found.by_point
    return [(name, Found({name: each}).text(line.row.places)) for name, each in found.items()] if len(found) > 1 else []
