"""A limit on how long a plug-in may take to decide; the controller's other work waits for it meanwhile."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

import eventlet

from controllers.plugin import PluginFault, last_lines

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
