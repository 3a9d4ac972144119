"""When a circuit is committed: the policies an experiment file can name as `commit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controllers.commit_rules.admission import AdmissionCommit
from controllers.commit_rules.no_reservation import NoReservation
from controllers.core.reservations import Reservations
from inputs.plugin_file import PluginError, start
from inputs.plugin_file import load as load_plugin

BUILT_IN: dict[str, type[Reservations]] = {
    "last-chunk": Reservations,
    "admission": AdmissionCommit,
    "none": NoReservation,
}


def load(spec: str) -> type[Reservations]:
    """The class that a resolved experiment names: a built-in, or a plug-in, a subclass of `Reservations`.

    Raises ValueError, saying what was not found and what is allowed.
    """
    if spec in BUILT_IN:
        return BUILT_IN[spec]
    if ":" not in spec:
        raise ValueError(f"commit {spec!r}: not one of {', '.join(BUILT_IN)}, nor of the form module:Class")
    try:
        rule = load_plugin(spec)
    except PluginError as error:
        raise ValueError(f"commit {spec!r}: {error}") from error
    if not (isinstance(rule, type) and issubclass(rule, Reservations)):
        raise ValueError(f"commit {spec!r}: not a class derived from controllers.core.reservations.Reservations")
    return rule


def build(spec: str, reachable: Mapping[str, Sequence[str]], **settings: Any) -> Reservations:
    """The rule of that name with an experiment's settings. Raises ValueError, whatever a plug-in's constructor does."""
    rule = load(spec)
    if spec in BUILT_IN:
        return rule(reachable, **settings)
    try:
        return start(lambda: rule(reachable, **settings))
    except PluginError as error:
        raise ValueError(f"commit {spec!r}: {error}") from error
