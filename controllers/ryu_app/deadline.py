"""What a plug-in may not do when it decides: take too long (the controller's other work waits for it meanwhile), raise,
or name an instance that is not there.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import TypeVar

import eventlet

from controllers.core.demand import EventError, Placement
from inputs.plugin_fault import PluginFault, blamed, last_lines

Answer = TypeVar("Answer")

#: Wall seconds for one decision. Far above any decision, and below the 5 s after which an agent gives up on an answer.
LIMIT_S = 2.0


@contextlib.contextmanager
def decides_within(limit_s: float, name: str) -> Iterator[None]:
    """Raises PluginFault, with the place where it was, in code that runs longer than `limit_s`.

    Code that computes or blocks is reached by a signal, code that waits for other greenlets by the hub's timer. For the
    main thread only, where Ryu's greenlets run.
    """
    guarded = eventlet.getcurrent()
    fault = PluginFault(f"{name} took longer than {limit_s:g} s to decide")

    def ring(number: int, frame: FrameType | None) -> None:
        if eventlet.getcurrent() is guarded:  # else it waits, and the hub's timer will reach it
            raise fault

    before = signal.signal(signal.SIGALRM, ring)
    waits = eventlet.Timeout(limit_s, fault)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    except PluginFault as error:
        if error is fault:
            raise PluginFault(f"{fault}:\n{last_lines(error)}") from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
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
    guard = decides_within(limit_s, plugins) if plugins else contextlib.nullcontext()
    blame = blamed(f"commit rule {commit}", EventError) if ":" in commit else contextlib.nullcontext()
    with guard, blame:
        answer = decide(now_s)
    if isinstance(answer, Placement) and answer.decode not in decodes:
        known = ", ".join(decodes)
        raise PluginFault(f"{plugins} placed a request on {answer.decode!r}; the decode instances are {known}")
    return answer
