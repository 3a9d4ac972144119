"""The tiers: tests/unit (pure), tests/openflow (fake flow tables), tests/packets (root, real packets), tests/vm (whole
machines)."""

import contextlib
import os
import signal
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest
from command_failures import STREAMS, said_by_commands
from hypothesis import HealthCheck, settings
from xdist.workermanage import NodeManager

TESTS = Path(__file__).parent
TIERS = ("unit", "openflow", "packets", "vm")

# Deadlines measure the machine, not the code, and this suite runs beside others on two cores.
settings.register_profile("heliograph", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("heliograph")


def _ended(number: int, frame: FrameType | None) -> None:
    """As Ctrl-C, so that every fixture tears down; once, so that a second one does not end the tear-down."""
    # not SIG_IGN, which what the tear-down starts would inherit
    signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def pytest_configure() -> None:
    # Workers are killed after 10 s otherwise, in the middle of a tear-down: a drill's run may take that long to end.
    NodeManager.EXIT_TIMEOUT = 60
    with contextlib.suppress(ValueError):  # not in the main thread: whoever started that has a handler of its own
        signal.signal(signal.SIGTERM, _ended)
        # a shell starts what it puts in the background with SIGINT ignored, and what the tests start would inherit that
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        # and `nohup` does so with SIGHUP; commands that the tests start must hear both
        for number in (signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder's tier; without root, skip real packets and say so.

    A test of a pure tier that fails is tried again once, a `timed` one twice: processors that others take for a moment
    make it false once, a fault of the project each time. What passed then is no secret: the summary tells what it said.

    Raises UsageError where Ryu's tier shares a process with the others: it patches the standard library under them.
    """
    folders = {item.path.relative_to(TESTS).parts[0] for item in items if item.path.is_relative_to(TESTS)}
    if "openflow" in folders and len(folders) > 1:
        raise pytest.UsageError("tests/openflow needs a process of its own: ./heliograph test does that")
    for item in items:
        parts = item.path.relative_to(TESTS).parts if item.path.is_relative_to(TESTS) else ()
        tier = parts[0] if parts else ""
        if tier not in TIERS:
            continue
        item.add_marker(getattr(pytest.mark, tier))
        if tier in ("unit", "openflow"):
            reruns = 2 if item.get_closest_marker("timed") else 1
            item.add_marker(pytest.mark.flaky(reruns=reruns, reruns_delay=2))
        if tier == "packets" and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="tests/packets needs root: sudo ./heliograph test"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A command that failed under a test is shown with what it wrote."""
    report = yield
    if call.excinfo is not None:
        report.sections += said_by_commands(call.excinfo.value)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What failed first and passed then: a fault that comes and goes must not hide behind a second try."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"tried again: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext[-2000:])
        for title, text in report.sections:
            if title.startswith(STREAMS):
                terminalreporter.write_line(f"{title}: {text[-2000:]}")
