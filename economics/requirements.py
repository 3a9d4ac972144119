"""What the optical layer must provide: the requirements table of the source paper (its Table I), computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from economics.link_budget import CIRCUIT_SWITCHES, LightPath, LinkBudget, largest_loss_db, largest_tdecq_db
from economics.optics import TDECQ_MAX_DB, Optics

FIBRE_PAIRS_PER_LINK = 1
RECONFIGURATION_MS = 50.0
MARGIN_DB = 2.0
CONNECTORS_WITH_OCS = 4  # at both modules and on both sides of the circuit switch


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line: what is required, of which optics or switch, what it offers, whether that meets it, and how.

    For the margin, `offered` is the largest TDECQ in dB that still leaves it at maximum launch.
    """

    requirement: str
    required: float
    unit: str
    subject: str
    offered: float | None
    met: str  # yes | no | if: only in the way `how` says
    how: str


def down(value: float, digits: int = 1) -> float:
    """`value` rounded down to `digits` decimals: a limit must not be rounded up past itself."""
    # Six more digits first: 4.2 - 2 + 1.9 is 4.1 in decimals, whatever the binary sum says.
    scale = 10**digits
    return math.floor(round(value * scale, 6)) / scale


def spliced(path: LightPath) -> LightPath:
    """The path with the two connectors at the circuit switch replaced by splices; needs at least two connectors."""
    return replace(path, connectors=path.connectors - 2, splices=path.splices + 2)


def requirements(
    optics: Sequence[Optics], path: LightPath, *, ocs_ports: int | None, wanted_margin_db: float = MARGIN_DB
) -> list[Requirement]:
    """Fibre pairs, reconfiguration delay and margin; `ocs_ports` None leaves the delay out (a switch of one's own)."""
    rows = [
        Requirement(
            "fibre pairs per 400G link",
            FIBRE_PAIRS_PER_LINK,
            "pair",
            each.name,
            each.fibre_pairs,
            "yes" if each.fibre_pairs <= FIBRE_PAIRS_PER_LINK else "no",
            f"needs {each.fibre_pairs} x the OCS ports of one pair"
            if each.fibre_pairs > 1
            else "one fibre pair carries all four wavelengths",
        )
        for each in optics
    ]
    if ocs_ports is not None:
        switch = CIRCUIT_SWITCHES[ocs_ports]
        rows.append(
            Requirement(
                "reconfiguration delay, at most",
                RECONFIGURATION_MS,
                "ms",
                f"{switch.ports}-port OCS",
                switch.reconfiguration_ms,
                "yes" if switch.reconfiguration_ms <= RECONFIGURATION_MS else "no",
                "mechanical (MEMS or piezoelectric)",
            )
        )
    return [*rows, *(_margin(each, path, wanted_margin_db) for each in optics)]


def _margin(optics: Optics, path: LightPath, wanted_margin_db: float) -> Requirement:
    """The margin at maximum launch: which TDECQ the path still allows, and which loss any compliant TDECQ allows."""
    tdecq_db = largest_tdecq_db(optics, path.loss_db, wanted_margin_db=wanted_margin_db)
    loss_db = largest_loss_db(optics, wanted_margin_db=wanted_margin_db)
    ways = []
    if tdecq_db is not None:
        ways.append(f"TDECQ up to {down(tdecq_db):.1f} dB on {path.loss_db:.2f} dB of path")
    if loss_db is not None:
        ways.append(f"any compliant TDECQ on up to {down(loss_db):.1f} dB of path{_left_for_ocs(path, loss_db)}")
    met = "no" if tdecq_db is None else "yes" if tdecq_db >= TDECQ_MAX_DB - 1e-9 else "if"
    return Requirement(
        "link margin, at least",
        wanted_margin_db,
        "dB",
        optics.name,
        None if tdecq_db is None else down(tdecq_db),
        met,
        "at maximum launch, " + "; or ".join(ways[1:] if met == "yes" else ways)
        if ways
        else "no compliant transmitter reaches it on any path",
    )


def _left_for_ocs(path: LightPath, loss_db: float) -> str:
    """What a loss limit leaves for the circuit switch, its fibres spliced if they are not yet."""
    if not path.ocs_loss_db:
        return ""
    whole = path.connectors >= CONNECTORS_WITH_OCS and not path.splices
    used = spliced(path) if whole else path
    rest_db = loss_db - (used.loss_db - path.ocs_loss_db)
    if rest_db < 0:
        return ""
    return f" ({'OCS fibres spliced: ' if whole else ''}leaves {down(rest_db, 2):.2f} dB for the OCS)"


def limit(value: float | None) -> str:
    """A limit for a table: rounded down to a tenth, then to a hundredth in brackets; a word where there is none."""
    return "none" if value is None else f"{down(value):.1f} ({down(value, 2):.2f})"


def margin_verdict(budget: LinkBudget) -> str:
    """One word on a budget: `closes` with the wanted margin, `short` of it, or `dark`."""
    if budget.margin_db < -1e-9:
        return "dark"
    return "closes" if budget.margin_db >= budget.wanted_margin_db - 1e-9 else "short"
