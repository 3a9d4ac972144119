"""Dask workers of this machine, for as long as a grid runs, or those of a cluster (cluster.py).

Local workers and their scheduler listen on the loopback address alone, speak TLS with keys made for this one grid, and
serve no web page: whoever else is on the machine can neither read nor feed them, which matters where root emulates.
Dask puts its scratch folder on the Python path of all of them, so that is theirs alone too, and gone with them; and no
configuration of the user's reaches them (dask_config.py).
"""

from __future__ import annotations

import logging
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING

from sweeps import dask_config, scratch
from sweeps.axes import SweepError
from sweeps.cluster import EMULATOR, PLAIN, connected
from sweeps.emulated import OF_A_TERMINAL

if TYPE_CHECKING:  # Dask is imported once it is settled whose configuration it reads
    from distributed import Client, LocalCluster

LOOPBACK = "127.0.0.1"
#: Addresses, of which it fills a fifth: stacks of its threads and arenas of their allocator.
WORKER_MEMORY_BYTES = 1 << 30

_QUIET = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # cells take seconds and hold little: a worker is never paused or restarted because the machine is short of memory
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # a busy machine is slow to answer, not dead
    "distributed.comm.timeouts.connect": "60s",
    "distributed.scheduler.allowed-failures": 3,
    "distributed.admin.tick.limit": "60s",
}


def _refuse_limit() -> None:
    """Raises SweepError where a worker could not start its threads."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < WORKER_MEMORY_BYTES:
        raise SweepError(
            f"a worker takes {WORKER_MEMORY_BYTES >> 20} MiB of addresses, and this shell's memory limit is "
            f"{limit >> 20} MiB (ulimit -v): raise it"
        )


@contextmanager
def workers(
    count: int,
    *,
    scheduler: str | None = None,
    emulator: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[Client]:
    """A client of `count` local worker processes, or of the `scheduler` at an address. Whatever was started here is
    gone when the context ends. `report` is told what the user may want to know. Raises SweepError where a cluster does
    not answer or cannot emulate."""
    if scheduler is None:
        _refuse_limit()
    with ExitStack() as stack:
        if scheduler is not None:
            yield stack.enter_context(connected(scheduler, emulator=emulator))
            return
        scratch.remove_left()
        # last to go: only once no worker is left does nobody write there
        folder = stack.enter_context(scratch.folder())
        own = folder / "configuration"
        own.mkdir(mode=0o700)
        afterwards = stack.enter_context(dask_config.ours(own, report))

        import dask
        from distributed import Client

        stack.enter_context(dask.config.set(_QUIET | {"temporary-directory": str(folder)}))
        with _held(OF_A_TERMINAL - {signal.SIGINT}):  # which it leaves alone itself, and unblocks in its starter
            resource_tracker.ensure_running()
        with _held(OF_A_TERMINAL):
            cluster = stack.enter_context(_local(count, emulator, afterwards))
        client = Client(cluster, security=cluster.security, set_as_default=False, deserializers=PLAIN)
        yield stack.enter_context(client)


def _local(count: int, emulator: bool, variables: dict[str, str]) -> LocalCluster:
    from distributed import LocalCluster
    from distributed.security import Security

    return LocalCluster(
        n_workers=count,
        threads_per_worker=1,
        processes=True,
        host=LOOPBACK,
        protocol="tls://",
        security=Security.temporary(),
        dashboard_address=f"{LOOPBACK}:0",
        worker_dashboard_address=f"{LOOPBACK}:0",
        memory_limit=None,
        resources={EMULATOR: 1} if emulator else None,
        env=variables,
        silence_logs=logging.CRITICAL,
    )


@contextmanager
def _held(numbers: frozenset[signal.Signals]) -> Iterator[None]:
    """What a terminal sends waits until the context ends, and never reaches the threads and processes that are started
    within, nor those that they start: it goes to everybody there, and only the client is to act on it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
