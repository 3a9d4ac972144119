"""The decode choice that an experiment file names: a built-in, or a user's own `module:Class`.

A user's own class needs one method, `choose`; it is built with no argument, or with the seed where its constructor
takes one.
"""

from __future__ import annotations

from collections.abc import Callable

from controllers.core.decode_choice import DecodeChoice
from controllers.decode_choices.by_load import LeastLoaded, Random, RoundRobin
from controllers.decode_choices.by_network import CircuitAware, NetworkAware, Sticky
from controllers.decode_choices.by_session import SessionAffinity
from inputs.plugin_choice import made

BUILT_IN: dict[str, Callable[..., DecodeChoice]] = {
    "circuit-aware": CircuitAware,
    "least-loaded": LeastLoaded,
    "round-robin": RoundRobin,
    "session-affinity": SessionAffinity,
    "random": Random,
    "network-aware": NetworkAware,
    "sticky": Sticky,
}


def load(spec: str, seed: int) -> DecodeChoice:
    """The choice that a resolved experiment names. Raises ValueError, saying what was not found and what is allowed."""
    return made("decode_choice", spec, BUILT_IN, seed)
