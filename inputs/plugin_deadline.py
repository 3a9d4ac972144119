"""A user's own code that takes too long to decide, while whatever else its process does waits for it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from inputs.plugin_fault import PluginFault, last_lines

#: Wall seconds for one decision. Far above any decision, and below the 4 s after which a silent agent counts as frozen.
LIMIT_S = 2.0


@contextlib.contextmanager
def decides_within(limit_s: float, name: str, *, here: Callable[[], bool] = lambda: True) -> Iterator[PluginFault]:
    """Raises PluginFault, with the place where it was, in code that runs longer than `limit_s`; that fault is yielded.

    For the main thread only, which a signal reaches; it raises nothing unless `here()` then.
    """
    fault = PluginFault(f"{name} took longer than {limit_s:g} s to decide")

    def ring(number: int, frame: FrameType | None) -> None:
        if here():
            raise fault

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield fault
    except PluginFault as error:
        if error is fault:
            raise PluginFault(f"{fault}:\n{last_lines(error)}") from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
