"""400G optics: what IEEE 802.3 allows a transmitter and asks of a receiver, per lane.

Powers are outer optical modulation amplitudes (OMA) in dBm, TDECQ (transmitter and dispersion eye closure) is in dB.
"""

from __future__ import annotations

from dataclasses import dataclass

from economics.ranges import in_range

TDECQ_MAX_DB = 3.4  # of both optics: the worst compliant transmitter


@dataclass(frozen=True, slots=True)
class Optics:
    """A 400G optics type: limits per lane of its IEEE 802.3 clause."""

    name: str
    source: str
    fibre_pairs: int
    reach_m: float
    launch_oma_max_dbm: float
    launch_oma_min_dbm: float  # however good the eye
    launch_minus_tdecq_min_dbm: float
    sensitivity_floor_dbm: float
    sensitivity_offset_db: float
    allocation_db: float  # channel insertion loss
    mpi_penalty_db: float  # multi-path interference

    def launch_min_dbm(self, tdecq_db: float) -> float:
        """Lowest compliant launch OMA in dBm of a transmitter with this TDECQ."""
        return max(self.launch_oma_min_dbm, compliant_tdecq(tdecq_db) + self.launch_minus_tdecq_min_dbm)

    def sensitivity_dbm(self, tdecq_db: float) -> float:
        """Receiver sensitivity (OMA) in dBm for a transmitter with this TDECQ."""
        return max(self.sensitivity_floor_dbm, compliant_tdecq(tdecq_db) - self.sensitivity_offset_db)

    def launch_dbm(self, launch_oma_dbm: float | None, tdecq_db: float) -> float:
        """`launch_oma_dbm`, or the maximum when None. Raises `OutOfRange` for a launch that is not compliant."""
        if launch_oma_dbm is None:
            return self.launch_oma_max_dbm
        low = self.launch_min_dbm(tdecq_db)
        return in_range(
            f"launch OMA per lane of {self.name}",
            launch_oma_dbm,
            low,
            self.launch_oma_max_dbm,
            unit="dBm",
            why=f"compliant launches at TDECQ {tdecq_db:g} dB",
        )


OPTICS = {
    "dr4": Optics(
        name="400GBASE-DR4",
        source="IEEE 802.3bs-2017 clause 124",
        fibre_pairs=4,
        reach_m=500,
        launch_oma_max_dbm=4.2,
        launch_oma_min_dbm=-0.8,
        launch_minus_tdecq_min_dbm=-2.2,
        sensitivity_floor_dbm=-3.9,
        sensitivity_offset_db=5.3,
        allocation_db=3.0,
        mpi_penalty_db=0.1,
    ),
    "fr4": Optics(
        name="400GBASE-FR4",
        source="IEEE 802.3cu-2021 clause 151, extinction ratio of at least 4.5 dB",
        fibre_pairs=1,
        reach_m=2000,
        launch_oma_max_dbm=3.7,
        launch_oma_min_dbm=-0.3,
        launch_minus_tdecq_min_dbm=-1.7,
        sensitivity_floor_dbm=-4.6,
        sensitivity_offset_db=6.0,
        allocation_db=4.0,
        mpi_penalty_db=0.3,
    ),
}


def compliant_tdecq(tdecq_db: float) -> float:
    """`tdecq_db` when a compliant transmitter can have it; raises `OutOfRange` otherwise."""
    return in_range("TDECQ", tdecq_db, 0, TDECQ_MAX_DB, unit="dB", why="what IEEE 802.3 allows a transmitter")
