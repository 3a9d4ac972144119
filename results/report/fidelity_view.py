"""A run's ``fidelity.json`` as rows of text for the report: every measure, what does not scale, the packet audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from results.report.table import UNDEFINED

MEASURE_COLUMNS = ("measure", "as the machine saw it", "threshold", "in real units", "threshold, real", "")
UNSCALED_COLUMNS = ("what does not scale", "as it is", "stands for", "competes with", "which is", "ratio")


@dataclass(frozen=True, slots=True)
class FidelityView:
    """``measures``: rows of MEASURE_COLUMNS; ``unscaled``: rows of UNSCALED_COLUMNS; ``audit``: one sentence, empty
    where no packets were captured."""

    name: str
    measures: list[list[str]]
    unscaled: list[list[str]]
    audit: str


def fidelity_view(name: str, document: Mapping[str, Any]) -> FidelityView | None:
    """None where the document holds none of it, as for a simulation."""
    measures = [_measure(each) for each in document.get("measures", ())]
    unscaled = [_unscaled(each) for each in document.get("unscaled", ())]
    audit = _audit(document.get("audit"))
    return FidelityView(name, measures, unscaled, audit) if measures or unscaled or audit else None


def _measure(measure: Mapping[str, Any]) -> list[str]:
    unit = measure.get("unit", "")
    cells = [_quantity(measure.get(key), unit) for key in ("emulated", "limit", "real", "limit_real")]
    return [str(measure.get("name")), *cells, str(measure.get("severity")) if measure.get("exceeded") else ""]


def _unscaled(each: Mapping[str, Any]) -> list[str]:
    unit = each["unit"]
    values = [_quantity(each[key], unit) for key in ("emulated", "real", "against_emulated")]
    return [each["name"], values[0], f"{values[1]} real", each["against"], values[2], f"{each['ratio']:.2g}"]


def _audit(audit: Mapping[str, Any] | None) -> str:
    if not audit:
        return ""
    said = f"{audit['packets']} packets were read, {len(audit['violations'])} violations"
    if (dark := audit.get("dark_ms")) is not None:
        said += f"; {audit['reconfigurations']} reconfigurations, dark for " + ", ".join(
            f"{name} {value:.2f} ms" for name, value in dark.items()
        )
    if lost := sum(audit.get("lost_by_the_capture", {}).values()):
        said += f"; the captures lost {lost} packets"
    if gaps := audit.get("gaps"):
        said += f"; {len(gaps)} gaps"
    return said


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return UNDEFINED
    if unit == "bytes":
        return _bytes(value)
    return f"{value:.4g} {unit}".rstrip()


def _bytes(value: float) -> str:
    for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.0f} bytes"
