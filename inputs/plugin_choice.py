"""A rule that an experiment names: one of the project's own, or a user's class with one method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from inputs.plugin_file import PluginError, load, start

Rule = TypeVar("Rule")


def made(what: str, spec: str, built_in: Mapping[str, Callable[..., Rule]], seed: int) -> Rule:
    """The rule of a resolved `spec`, made with no argument, or with the seed where its constructor takes one. `what`:
    the key that names it. A user's own class needs a method `choose(demand, candidates, now_s)`.

    Raises ValueError, saying what was not found and what is allowed.
    """
    if spec in built_in:
        return _with_seed(built_in[spec], seed)
    if ":" not in spec:
        raise ValueError(f"{what} {spec!r}: not one of {', '.join(built_in)}, nor of the form module:Class")
    try:
        factory = load(spec)
        if not start(lambda: callable(getattr(factory, "choose", None))):
            raise PluginError("it has no method choose(demand, candidates, now_s)")
        return start(lambda: _with_seed(factory, seed))
    except PluginError as error:
        raise ValueError(f"{what} {spec!r}: {error}") from error


def _with_seed(factory: Callable[..., Rule], seed: int) -> Rule:
    return factory(seed=seed) if "seed" in inspect.signature(factory).parameters else factory()
