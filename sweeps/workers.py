"""Dask workers: processes of this machine for as long as a grid runs, or a cluster that somebody already has.

Local workers and their scheduler listen on the loopback address alone, speak TLS with keys made for this one grid, and
serve no web page: whoever else is on the machine can neither read nor feed them, which matters where root emulates.
Dask puts its scratch folder on the Python path of all of them, so that is theirs alone too, and gone with them.
"""

from __future__ import annotations

import logging
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker

import dask
from distributed import Client, LocalCluster
from distributed.security import Security

from sweeps.axes import SweepError

#: What a cell that emulates asks of its worker, so that a machine never runs two at once.
EMULATOR = "emulator"
LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT_S = 10

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


@contextmanager
def workers(count: int, *, scheduler: str | None = None, emulator: bool = False) -> Iterator[Client]:
    """A client of `count` local worker processes, or of the `scheduler` at an address. Whatever was started here is
    gone when the context ends. Raises SweepError where a cluster does not answer or cannot emulate."""
    if scheduler is not None:
        with _remote(scheduler) as client:
            _refuse_unfit(client, scheduler, emulator)
            yield client
        return
    with ExitStack() as stack:
        # last to go: only once no worker is left does nobody write there
        scratch = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="heliograph-sweep-", ignore_cleanup_errors=True)
        )
        stack.enter_context(dask.config.set(_QUIET | {"temporary-directory": scratch}))
        resource_tracker.ensure_running()  # unblocks SIGINT in the thread that starts it: so not within the next
        with _interrupts_held():
            cluster = stack.enter_context(_local(count, emulator))
        yield stack.enter_context(Client(cluster, security=cluster.security, set_as_default=False))


def _local(count: int, emulator: bool) -> LocalCluster:
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
        silence_logs=logging.CRITICAL,
    )


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """SIGINT waits until the context ends, and never reaches the threads and processes that are started within, nor
    those that they start: Ctrl-C goes to everybody at the terminal, and only the client is to act on it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _remote(address: str) -> Client:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        return Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise SweepError(
            f"--scheduler {address}: no Dask scheduler answers there ({error}); give the address that `dask scheduler` "
            "prints, such as tcp://10.0.0.1:8786, or leave it out for workers of this machine"
        ) from error


def _refuse_unfit(client: Client, address: str, emulator: bool) -> None:
    found = client.scheduler_info(n_workers=-1)["workers"]
    if not found:
        raise SweepError(
            f"--scheduler {address}: it has no worker; start one in a checkout of this revision: "
            f'PYTHONPATH=. .venv/bin/dask worker {address} --nthreads 1 --local-directory "$(mktemp -d)"'
        )
    if emulator and not any(worker["resources"].get(EMULATOR) for worker in found.values()):
        raise SweepError(
            f"--scheduler {address}: none of its {len(found)} workers offers the resource {EMULATOR}=1; start one as "
            f'root with --nthreads 1 --resources "{EMULATOR}=1" --local-directory "$(mktemp -d)" on each machine '
            "that may emulate"
        )
