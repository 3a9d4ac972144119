"""What a full disk does to one process, without root."""

import contextlib
import resource
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond a size: what a full disk is, without root."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
