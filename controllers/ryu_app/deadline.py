"""What a plug-in may not do when it decides: take too long (the controller's other work waits for it meanwhile), raise,
or name an instance that is not there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

import eventlet

from controllers.core.demand import EventError, Placement
from inputs.plugin_deadline import decides_within
from inputs.plugin_fault import PluginFault, blamed

Answer = TypeVar("Answer")


@contextlib.contextmanager
def greenlet_decides_within(limit_s: float, name: str) -> Iterator[None]:
    """`decides_within` for a greenlet: code that computes or blocks is reached by a signal, code that waits for other
    greenlets by the hub's timer."""
    guarded = eventlet.getcurrent()
    with decides_within(limit_s, name, here=lambda: eventlet.getcurrent() is guarded) as fault:
        waits = eventlet.Timeout(limit_s, fault)
        try:
            yield
        finally:
            waits.cancel()


def decided(
    decide: Callable[[float], Answer],
    now_s: float,
    commit: str,
    decode_choice: str,
    decodes: Collection[str],
    *,
    limit_s: float,
) -> Answer:
    """What `decide(now_s)` answers under these two policies, those of a user's own (`module:Class`) being watched.

    Raises PluginFault where one fails, takes longer than `limit_s` or places a request on none of `decodes`; an
    EventError, which refuses an event, passes.
    """
    plugins = ", ".join(policy for policy in (commit, decode_choice) if ":" in policy)
    guard = greenlet_decides_within(limit_s, plugins) if plugins else contextlib.nullcontext()
    blame = blamed(f"commit rule {commit}", EventError) if ":" in commit else contextlib.nullcontext()
    with guard, blame:
        answer = decide(now_s)
    if isinstance(answer, Placement) and answer.decode not in decodes:
        known = ", ".join(decodes)
        raise PluginFault(f"{plugins} placed a request on {answer.decode!r}; the decode instances are {known}")
    return answer
