"""When a circuit is committed: the policies an experiment file can name as `commit`."""

from __future__ import annotations

from controllers.commit_rules.admission import AdmissionCommit
from controllers.commit_rules.no_reservation import NoReservation
from controllers.core.plugin import load_class
from controllers.core.reservations import Reservations

BUILT_IN: dict[str, type[Reservations]] = {
    "last-chunk": Reservations,
    "admission": AdmissionCommit,
    "none": NoReservation,
}


def load(spec: str) -> type[Reservations]:
    """The class that an experiment file names: a built-in, or `module:Class`, a subclass of `Reservations`.

    Raises ValueError, saying what was not found and what is allowed.
    """
    if spec in BUILT_IN:
        return BUILT_IN[spec]
    rule = load_class("commit", spec, ", ".join(BUILT_IN))
    if not (isinstance(rule, type) and issubclass(rule, Reservations)):
        raise ValueError(f"commit {spec!r}: not a class derived from controllers.core.reservations.Reservations")
    return rule
