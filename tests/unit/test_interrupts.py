"""The signals that end a command: one line, the right status, no traceback, whatever is sent and however often."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from process.interrupts import NUMBERS, Interrupted, interruptible, shielded

ROOT = Path(__file__).resolve().parents[2]
#: A command line whose one command takes a second to tear down, as `cli.py` is around it.
COMMAND = """
import sys; sys.path.insert(0, sys.argv.pop(1))
from process.interrupts import put_off, take_over
take_over()
import time, typer
from commands.shared import ended_by_signals
app = typer.Typer()
@app.command()
@ended_by_signals
def wait():
    try:
        print("up", flush=True); time.sleep(60)
    finally:
        time.sleep(0.5); print("torn down", flush=True)
with put_off():
    app()
"""


def started(*before: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [*before, sys.executable, "-c", COMMAND, str(ROOT)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_each_of_them_ends_a_command_with_its_own_status(number: signal.Signals) -> None:
    process = started()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (
        128 + number,
        "torn down\n",
        f"heliograph: interrupted by {number.name}\n",
    )


def test_six_in_a_row_and_others_change_nothing(tmp_path: Path) -> None:
    process = started()
    for number in (signal.SIGINT,) * 6 + (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGINT):
        os.killpg(process.pid, number)
        time.sleep(0.05)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "torn down\n", "heliograph: interrupted by SIGINT\n")


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3, 0.6, 1.0, 1.5])
def test_the_real_command_line_ends_without_a_traceback_at_any_moment(delay_s: float) -> None:
    """Also while its modules are imported, and at its very end."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), "cost", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.poll() is None and not catches(process.pid, signal.SIGQUIT):
        time.sleep(0.002)  # before its first line a signal is Python's
    time.sleep(delay_s)
    for _ in range(6):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) in ((130, "heliograph: interrupted by SIGINT\n"), (0, "")), err


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(mask >> (number - 1) & 1)


def test_under_nohup_a_terminal_that_closes_ends_nothing() -> None:
    process = started("env", "--ignore-signal=HUP")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143


def test_a_block_within_another_ends_nothing_early() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]

    def struck() -> None:
        with interruptible():
            with interruptible():
                pass
            with shielded():
                signal.raise_signal(signal.SIGQUIT)
                signal.raise_signal(signal.SIGHUP)

    with pytest.raises(Interrupted) as ended:
        struck()
    assert (ended.value.number, ended.value.status) == (signal.SIGQUIT, 131)
    assert [signal.getsignal(number) for number in NUMBERS] == before
