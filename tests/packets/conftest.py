"""Testbeds for the packet tests: real namespaces, each under a ledger of its own that does not meet a live run's."""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from machine_pace import Patience, Ticks, unfit

from emulation.linux.ledger import RunLedger, clean, dead_runs, no_run
from emulation.network.testbed import Testbed
from topologies.wiring import WiredTopo

MakeTestbed = Callable[..., Testbed]

RERUNS = 2
#: A test, its set-up or its tear-down is ended after so long, and not tried again; the longest takes a fifth of it.
HANG_S = 600
FAULTS = (ArithmeticError, AttributeError, ImportError, LookupError, NameError, TypeError)
#: Of a failure that is no finding, for the summary.
SAID_CHARACTERS = 400
#: Seconds of a session that tests which failed may wait for a machine that keeps time.
PATIENCE = Patience(300.0)


class Hang(Exception):
    """A test has waited for something that never comes."""


@contextlib.contextmanager
def _ended_in_time(what: str) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang(f"{what} has not ended by itself within {HANG_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _ends(text: str) -> str:
    half = SAID_CHARACTERS // 2
    return text if len(text) <= SAID_CHARACTERS else f"{text[:half]} [...] {text[-half:]}"


@contextlib.contextmanager
def _on_a_machine_that_keeps_time(item: pytest.Item) -> Iterator[None]:
    """What failed for the last time, on a machine that does not keep time, is no finding: it is skipped and says why.

    A fault of the program, which no machine can bring about, stays one.
    """
    since = Ticks.now()
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        last = getattr(item, "execution_count", 1) > RERUNS
        if isinstance(error, (Hang, *FAULTS)) or not last or (reason := unfit(since)) is None:
            raise
        pytest.skip(f"failed {RERUNS + 1} times; {reason}. It said: {_ends(str(error))}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    # 1 is the first try: only what failed asks for a place to measure. Beside other workers there is none, ever.
    if getattr(item, "execution_count", 1) > 1 and "PYTEST_XDIST_WORKER" not in os.environ:
        PATIENCE.wait()
    with _on_a_machine_that_keeps_time(item), _ended_in_time(f"the set-up of {item.name}"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with _on_a_machine_that_keeps_time(item), _ended_in_time(item.name):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with _ended_in_time(f"the tear-down of {item.name}"):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A packet test that fails is tried again after a pause, twice at most; the summary says so.

    What a test here asserts is true of a machine that keeps up with its links. Processors that others take for a moment
    make it false once; a fault of the project makes it false three times. Between them the machine gets time to come to
    itself, and where it did not keep time (`machine_pace.py`), the test is skipped and says so.
    """
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.flaky(reruns=RERUNS, reruns_delay=5, rerun_except=Hang.__name__))


@pytest.fixture
def run_base() -> Iterator[Path]:
    """A directory in the place of /run/heliograph; short, since the paths of Unix sockets are limited to 107 bytes."""
    if os.geteuid() != 0:
        pytest.skip("packets need network namespaces, which need root")
    base = Path(tempfile.mkdtemp(prefix="hg-", dir="/run"))
    yield base
    with no_run(base):
        for run in dead_runs(base):  # of a test that failed before it cleaned up
            clean(run)
    shutil.rmtree(base)


@pytest.fixture
def ledger(run_base: Path) -> Iterator[RunLedger]:
    """An open ledger; what it lists is removed afterwards, whatever the test did."""
    with RunLedger.open("test", base=run_base) as run:
        yield run


@pytest.fixture
def make_testbed(ledger: RunLedger) -> Iterator[MakeTestbed]:
    """`make_testbed(topo)` builds a testbed that is closed after the test."""
    made: list[Testbed] = []

    def make(topo: WiredTopo, **options: object) -> Testbed:
        testbed = Testbed(topo, ledger)
        made.append(testbed)
        return testbed.build(**options)  # type: ignore[arg-type]

    yield make
    for testbed in made:
        testbed.close()
