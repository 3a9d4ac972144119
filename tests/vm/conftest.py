"""What ends this tier from outside ends it in order: a machine that is half made must not outlive its test."""

import contextlib
import signal
from types import FrameType


def _ended(number: int, frame: FrameType | None) -> None:
    """As Ctrl-C, so that every fixture tears down; once, so that a second one does not end the tear-down."""
    # not SIG_IGN, which what the tear-down starts would inherit
    signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def pytest_configure() -> None:
    with contextlib.suppress(ValueError):  # not in the main thread: whoever started that has a handler of its own
        signal.signal(signal.SIGTERM, _ended)
