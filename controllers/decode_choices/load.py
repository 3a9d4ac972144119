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
from inputs.plugin_file import PluginError, start, with_seed
from inputs.plugin_file import load as load_plugin

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
    """The choice that a resolved experiment names: a built-in, or a plug-in's object.

    Raises ValueError, saying what was not found and what is allowed.
    """
    if spec in BUILT_IN:
        return with_seed(BUILT_IN[spec], seed)
    if ":" not in spec:
        raise ValueError(f"decode_choice {spec!r}: not one of {', '.join(BUILT_IN)}, nor of the form module:Class")
    try:
        factory = load_plugin(spec)
        if not start(lambda: callable(getattr(factory, "choose", None))):
            raise PluginError("it has no method choose(demand, candidates, now_s)")
        return start(lambda: with_seed(factory, seed))
    except PluginError as error:
        raise ValueError(f"decode_choice {spec!r}: {error}") from error
