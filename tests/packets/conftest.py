"""Testbeds for the packet tests: real namespaces, each under a ledger of its own that does not meet a live run's."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulation.ledger import RunLedger
from emulation.testbed import Testbed
from topologies.wiring import WiredTopo

MakeTestbed = Callable[..., Testbed]

RERUNS = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A packet test that fails is tried again after a pause, twice at most; the summary says so.

    What a test here asserts is true of a machine that keeps up with its links. Processors that others take for a moment
    make it false once; a fault of the project makes it false three times.
    """
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.flaky(reruns=RERUNS, reruns_delay=5))


@pytest.fixture
def run_base() -> Iterator[Path]:
    """A directory in the place of /run/heliograph; short, since the paths of Unix sockets are limited to 107 bytes."""
    if os.geteuid() != 0:
        pytest.skip("packets need network namespaces, which need root")
    base = Path(tempfile.mkdtemp(prefix="hg-", dir="/run"))
    yield base
    shutil.rmtree(base, ignore_errors=True)


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
