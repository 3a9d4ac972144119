"""What an emulation needs beyond ideal flows, as constants of the twin: real seconds, measured by a run or zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from inputs import json_file, yaml_file
from inputs.errors import InputError, shown
from results.records.documents import Fidelity, first_problem

#: Measures of a fidelity.json that are constants of ours, by name.
_MEASURES = {
    "live circuit to sender told, median": "live_told_s",
    "reconfiguration beyond tau, median": "switch_excess_s",
    "calibrated excess of a switch": "calibrated_excess_s",
}


#: A day; no delay of a machine is longer.
MOST_S = 86_400.0


class ConstantsError(InputError):
    """A file of constants that cannot be used: says which, what, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Delays in real seconds; all 0: an ideal machine.

    `request_s`: arrival to receipt by the prefill instance; `control_s`: an event to the controller's decision;
    `calibrated_excess_s`: what the scheduler is told that a switch takes beyond tau, `switch_excess_s`: what it takes;
    `live_told_s`: a live circuit to its sender's knowing; `return_s`: last byte to first token at the client.
    """

    request_s: float = 0.0
    control_s: float = 0.0
    calibrated_excess_s: float = 0.0
    switch_excess_s: float = 0.0
    live_told_s: float = 0.0
    return_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_S:
                raise ConstantsError(
                    f"constant {name} is {shown(value)}: give seconds, finite and not negative, at most {MOST_S:g}"
                )

    def replaced(self, other: Mapping[str, float]) -> Constants:
        """These constants with some of them replaced."""
        return Constants(**(asdict(self) | dict(other)))


def from_fidelity(document: Mapping[str, Any]) -> dict[str, float]:
    """The constants that a run's fidelity.json holds: what it calibrated before its clock, and in its place what it
    measured after; what it did neither is absent."""
    known = {field.name for field in fields(Constants)}
    calibrated = (document.get("calibration") or {}).get("constants") or {}
    found = {name: max(float(value), 0.0) for name, value in calibrated.items() if name in known}
    for measure in document.get("measures", ()):
        name, real_ms = _MEASURES.get(measure.get("name")), measure.get("real")
        if name is not None and real_ms is not None:
            # a switch that was faster than tau beyond rounding would be a fault that the verdict tells of
            found[name] = max(float(real_ms), 0.0) / 1e3
    return found


def read_constants(path: Path) -> Constants:
    """From a fidelity.json of a run, or from a YAML or JSON file of `Constants` fields. Raises ConstantsError."""
    try:
        document = json_file.read(path) if path.suffix == ".json" else yaml_file.read(path).data
    except InputError as error:
        raise ConstantsError(*error.lines) from None
    if not isinstance(document, dict):
        raise ConstantsError(f"{path}: expected keys and values, found {shown(document)}")
    known = [field.name for field in fields(Constants)]
    if "measures" in document:
        try:
            Fidelity.model_validate(document)
        except ValidationError as error:
            raise ConstantsError(f"{path}: {first_problem(error)}") from None
        document = from_fidelity(document)
    if unknown := sorted(set(document) - set(known)):
        raise ConstantsError(f"{path}: no constant {', '.join(unknown)}; the constants are {', '.join(known)}")
    try:
        return Constants(**document)
    except ConstantsError as error:
        raise ConstantsError(f"{path}: {error}") from error
