"""`./heliograph test`: each tier in a process of its own, and what becomes of them when they are told to end."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from checkouts import CLI, ROOT, Checkout


def test_test_runs_pytest_in_the_checkout_on_the_tests_it_is_given(ready: Checkout, tmp_path: Path) -> None:
    (ready.path / "pytest.py").write_text(CLI.replace("'cli'", "'pytest'"))
    assert (
        ready.run("test", "tests/unit", "-k", "a or b", cwd=tmp_path).stdout
        == f"pytest {ready.path} tests/unit -k a or b\n"
    )


def test_test_runs_each_tier_in_a_process_of_its_own(ready: Checkout, tmp_path: Path) -> None:
    (ready.path / "pytest.py").write_text(CLI.replace("'cli'", "'pytest'"))
    processors = len(os.sched_getaffinity(0))
    assert ready.run("test", "-k", "a or b", cwd=tmp_path).stdout.splitlines() == [
        f"pytest {ready.path} tests/openflow -k a or b",
        f"pytest {ready.path} tests/unit --numprocesses={processors * 3 // 2} --dist=worksteal -k a or b",
        f"pytest {ready.path} tests/packets/shared --numprocesses=2 --dist=loadfile --no-loadscope-reorder -k a or b",
        f"pytest {ready.path} tests/vm --numprocesses=2 --dist=loadfile --no-loadscope-reorder -k a or b",
        f"pytest {ready.path} tests/benchmarks -k a or b",
        f"pytest {ready.path} tests/packets --ignore=tests/packets/shared -k a or b",
    ]


def test_the_test_of_the_whole_chain_is_asked_for_by_name(ready: Checkout, tmp_path: Path) -> None:
    show = "import os; print(os.environ['HELIOGRAPH_TEST_CHAIN']); "
    (ready.path / "pytest.py").write_text(show + CLI.replace("'cli'", "'pytest'"))
    assert ready.run("test", "--vm", "-x", cwd=tmp_path).stdout.splitlines() == [
        "1",
        f"pytest {ready.path} tests/vm/test_chain.py -rA --capture=no -x",
    ]


#: In the place of pytest: tests/vm starts a program that no SIGTERM ends, and tears down for half a second.
TIERS_THAT_WAIT = """\
import os, signal, subprocess, sys, time
vm = sys.argv[1] == "tests/vm"
if sys.argv[1] == "tests/openflow":
    sys.exit()
started = [os.getpid(), *([subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 90"]).pid] if vm else [])]
def tear_down(*_):
    time.sleep(0.5)
    open("torn down", "w").close()
    sys.exit(2)
if vm:
    signal.signal(signal.SIGTERM, tear_down)
open("pids", "a").write("".join(f"{pid} {sys.argv[1]}\\n" for pid in started))
time.sleep(90)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_tests_ends_the_machines_tier_in_order(ready: Checkout, number: int) -> None:
    """It has a session of its own, which the terminal's Ctrl-C does not reach; what it started ends with it."""
    (ready.path / "pytest.py").write_text(TIERS_THAT_WAIT)
    pids, torn_down = ready.path / "pids", ready.path / "torn down"
    env = {**os.environ, "PATH": f"{ready.programs}:{os.environ['PATH']}"}
    with subprocess.Popen([str(ready.path / "heliograph"), "test"], env=env, start_new_session=True) as running:
        until(lambda: pids.exists() and len(pids.read_text().splitlines()) == 3)
        started = [int(line.split()[0]) for line in pids.read_text().splitlines()]
        try:
            os.killpg(running.pid, number)
            assert running.wait(60) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
            assert torn_down.exists() or number == signal.SIGKILL, "the launcher has not waited for it"
            until(torn_down.exists)  # a launcher that was killed cannot wait, and cannot kill what did not end in order
            if number != signal.SIGKILL:
                until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
        finally:
            for pid in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.parametrize(("workers", "tear_down_s"), [(0, 0), (1, 8)])  # xdist interrupts after 5 s, and kills after 10
def test_a_tier_that_is_told_to_end_tears_its_fixtures_down_once(
    tmp_path: Path, workers: int, tear_down_s: float
) -> None:
    """By the tiers' own conftest, told twice."""
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    said = tmp_path / "said"
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(f"""\
        import os, pathlib, pytest, signal, subprocess, time
        said = pathlib.Path({str(said)!r})

        @pytest.fixture
        def machine():
            yield
            if not {workers}:  # a worker is interrupted, and not told to end
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep({tear_down_s})
            said.write_text(said.read_text() + " torn down")

        def test_it(machine):
            said.write_text("runs")
            subprocess.run(["sleep", "60"])
            said.write_text("went on")
        """)
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--numprocesses={workers}", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'unit'}"}
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, env=env) as running:
        until(said.exists)
        until(lambda: said.read_text() == "runs")
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == pytest.ExitCode.INTERRUPTED
    assert said.read_text() == "runs torn down"


@pytest.mark.parametrize("tier", ["tests/vm", "tests/unit", "tests/packets/shared", "tests/packets"])
def test_a_tier_that_fails_fails_the_tests(ready: Checkout, tmp_path: Path, tier: str) -> None:
    (ready.path / "pytest.py").write_text(
        f"import sys; print('tests said'); sys.exit(4 if {tier!r} in sys.argv else 0)"
    )
    done = ready.run("test", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stdout.count("tests said") == 6


@pytest.mark.parametrize(("status", "expected"), [(1, 1), (2, 2), (5, 0)])
def test_one_failing_tier_fails_the_tests_but_an_empty_one_does_not(
    ready: Checkout, tmp_path: Path, status: int, expected: int
) -> None:
    (ready.path / "pytest.py").write_text(f"import sys; sys.exit({status} if 'tests/openflow' in sys.argv else 0)")
    assert ready.run("test", cwd=tmp_path).returncode == expected
