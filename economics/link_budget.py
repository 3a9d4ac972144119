"""Optical link budget: does the light of one 400G link get through connectors, fibre, splices and a circuit switch.

    margin = launch OMA - path loss - receiver sensitivity - multi-path-interference penalty

per lane, in dB, with the outer optical modulation amplitude (OMA) in dBm and the receiver sensitivity
max(floor, TDECQ - offset) of the IEEE 802.3 clause of the optics (SECQ there: a receiver is tested with the eye
closure of the transmitter it gets). At the lowest compliant launch of a TDECQ of 1.4 dB or more and with the penalty,
the margin is the channel allocation minus the path loss: the standard closes its own budget, and a test says so.

Not modelled: polarisation-dependent loss, ageing and temperature (that is what the wanted margin is for), dispersion
(within the optics' reach it is in TDECQ), crosstalk inside the circuit switch.
"""

from __future__ import annotations

from dataclasses import dataclass

from economics.optics import TDECQ_MAX_DB, Optics
from economics.ranges import OutOfRange, in_range, whole_in_range


@dataclass(frozen=True, slots=True)
class CircuitSwitch:
    """A mechanical optical circuit switch: worst loss in dB of one pass, and its reconfiguration delay."""

    ports: int
    loss_db: float
    reconfiguration_ms: float
    loss_source: str
    loss_inferred: bool = False


CIRCUIT_SWITCHES = {
    192: CircuitSwitch(
        192, 2.7, 25, "at most that of the 384-port switch; no figure of its own in the source paper", True
    ),
    384: CircuitSwitch(384, 2.7, 50, "maximum of a 384-port switch, printed in the source paper, section IV-C"),
}


def circuit_switch(ports: int) -> CircuitSwitch:
    """The switch of that port count. Raises `OutOfRange` naming the known ones."""
    if ports not in CIRCUIT_SWITCHES:
        known = " and ".join(map(str, CIRCUIT_SWITCHES))
        raise OutOfRange(
            f"no loss is known for a circuit switch of {ports} ports, only of {known}; give its loss in dB instead"
        )
    return CIRCUIT_SWITCHES[ports]


@dataclass(frozen=True, slots=True)
class LightPath:
    """What the light of one lane passes. The defaults are the worst path of the source paper: 5.95 dB.

    0.75 dB is the most a mated connector pair and 0.3 dB the most a splice may lose (ANSI/TIA-568.3), 0.5 dB/km the
    fibre loss IEEE 802.3 counts with near 1310 nm. The paper's 5.95 and 2.7 dB are published; that the rest is
    4 x 0.75 dB + 500 m of fibre is inferred.
    """

    connectors: int = 4
    connector_loss_db: float = 0.75
    fibre_m: float = 500
    fibre_loss_db_per_km: float = 0.5
    splices: int = 0
    splice_loss_db: float = 0.3
    ocs_loss_db: float = 2.7  # 0: no circuit switch in the path

    def __post_init__(self) -> None:
        whole_in_range("connectors", self.connectors, 0)
        whole_in_range("splices", self.splices, 0)
        for name, value, unit in (
            ("connector loss", self.connector_loss_db, "dB"),
            ("fibre length", self.fibre_m, "m"),
            ("fibre loss", self.fibre_loss_db_per_km, "dB/km"),
            ("splice loss", self.splice_loss_db, "dB"),
            ("OCS loss", self.ocs_loss_db, "dB"),
        ):
            in_range(name, value, 0, unit=unit, why="a passive part cannot amplify")

    @property
    def parts_db(self) -> dict[str, float]:
        """Loss in dB of each kind of part."""
        return {
            "connectors": self.connectors * self.connector_loss_db,
            "fibre": self.fibre_m / 1000 * self.fibre_loss_db_per_km,
            "splices": self.splices * self.splice_loss_db,
            "ocs": self.ocs_loss_db,
        }

    @property
    def loss_db(self) -> float:
        return sum(self.parts_db.values())


def margin_db(
    optics: Optics, loss_db: float, *, tdecq_db: float, launch_oma_dbm: float | None = None, with_mpi: bool = False
) -> float:
    """Margin in dB (negative: the link does not close); the launch is the maximum unless given."""
    launch_dbm = optics.launch_dbm(launch_oma_dbm, tdecq_db)
    penalty_db = optics.mpi_penalty_db if with_mpi else 0.0
    return launch_dbm - in_range("path loss", loss_db, 0, unit="dB") - optics.sensitivity_dbm(tdecq_db) - penalty_db


def largest_tdecq_db(
    optics: Optics,
    loss_db: float,
    *,
    wanted_margin_db: float,
    launch_oma_dbm: float | None = None,
    with_mpi: bool = False,
) -> float | None:
    """The largest TDECQ in dB, at most 3.4, that leaves the wanted margin; None when not even a perfect eye does.

    Solves the margin for TDECQ on the sloped part of the sensitivity. A launch given must be compliant at TDECQ 0; the
    answer is then also held to TDECQ <= launch - min(launch - TDECQ).
    """
    in_range("wanted margin", wanted_margin_db, 0, unit="dB")
    launch_dbm = optics.launch_dbm(launch_oma_dbm, 0)
    penalty_db = optics.mpi_penalty_db if with_mpi else 0.0
    received_dbm = launch_dbm - in_range("path loss", loss_db, 0, unit="dB") - penalty_db - wanted_margin_db
    if received_dbm < optics.sensitivity_floor_dbm - 1e-9:
        return None
    compliant_db = min(TDECQ_MAX_DB, launch_dbm - optics.launch_minus_tdecq_min_dbm)
    return min(compliant_db, received_dbm + optics.sensitivity_offset_db)


def largest_loss_db(
    optics: Optics,
    *,
    wanted_margin_db: float,
    tdecq_db: float = TDECQ_MAX_DB,
    launch_oma_dbm: float | None = None,
    with_mpi: bool = False,
) -> float | None:
    """The largest path loss in dB that leaves the wanted margin at this TDECQ; None when not even no loss does."""
    in_range("wanted margin", wanted_margin_db, 0, unit="dB")
    lossless_db = margin_db(optics, 0, tdecq_db=tdecq_db, launch_oma_dbm=launch_oma_dbm, with_mpi=with_mpi)
    return lossless_db - wanted_margin_db if lossless_db >= wanted_margin_db - 1e-9 else None


@dataclass(frozen=True, slots=True)
class LinkBudget:
    """The budget of one optics over one path; dB and dBm per lane."""

    optics: str
    fibre_pairs: int
    loss_db: float
    allocation_db: float
    loss_over_allocation_db: float
    launch_oma_dbm: float
    tdecq_db: float
    sensitivity_dbm: float
    margin_db: float
    margin_with_mpi_db: float
    margin_at_lowest_launch_db: float  # a compliant transmitter of this TDECQ that launches as little as it may
    wanted_margin_db: float
    largest_tdecq_db: float | None
    largest_tdecq_with_mpi_db: float | None
    largest_loss_at_worst_tdecq_db: float | None  # None too when so low a launch is not compliant at that TDECQ
    largest_loss_at_worst_tdecq_with_mpi_db: float | None


def budget(
    optics: Optics,
    path: LightPath,
    *,
    tdecq_db: float = TDECQ_MAX_DB,
    launch_oma_dbm: float | None = None,
    wanted_margin_db: float = 2.0,
) -> LinkBudget:
    """Everything the table prints about one optics. Raises `OutOfRange` for values no compliant link can have."""
    in_range(
        f"fibre length of {optics.name}",
        path.fibre_m,
        0,
        optics.reach_m,
        unit="m",
        why="beyond its reach TDECQ does not hold",
    )
    launch_dbm = optics.launch_dbm(launch_oma_dbm, tdecq_db)
    loss_db = path.loss_db
    lowest_dbm = optics.launch_min_dbm(tdecq_db)
    compliant_at_worst = launch_dbm >= optics.launch_min_dbm(TDECQ_MAX_DB)

    def solve_tdecq(with_mpi: bool) -> float | None:
        return largest_tdecq_db(
            optics, loss_db, wanted_margin_db=wanted_margin_db, launch_oma_dbm=launch_oma_dbm, with_mpi=with_mpi
        )

    def solve_loss(with_mpi: bool) -> float | None:
        if not compliant_at_worst:
            return None
        return largest_loss_db(
            optics, wanted_margin_db=wanted_margin_db, launch_oma_dbm=launch_oma_dbm, with_mpi=with_mpi
        )

    return LinkBudget(
        optics=optics.name,
        fibre_pairs=optics.fibre_pairs,
        loss_db=loss_db,
        allocation_db=optics.allocation_db,
        loss_over_allocation_db=loss_db - optics.allocation_db,
        launch_oma_dbm=launch_dbm,
        tdecq_db=tdecq_db,
        sensitivity_dbm=optics.sensitivity_dbm(tdecq_db),
        margin_db=margin_db(optics, loss_db, tdecq_db=tdecq_db, launch_oma_dbm=launch_oma_dbm),
        margin_with_mpi_db=margin_db(optics, loss_db, tdecq_db=tdecq_db, launch_oma_dbm=launch_oma_dbm, with_mpi=True),
        margin_at_lowest_launch_db=margin_db(optics, loss_db, tdecq_db=tdecq_db, launch_oma_dbm=lowest_dbm),
        wanted_margin_db=wanted_margin_db,
        largest_tdecq_db=solve_tdecq(False),
        largest_tdecq_with_mpi_db=solve_tdecq(True),
        largest_loss_at_worst_tdecq_db=solve_loss(False),
        largest_loss_at_worst_tdecq_with_mpi_db=solve_loss(True),
    )
