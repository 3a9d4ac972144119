"""Progress: a live bar on a terminal, a plain line every five seconds elsewhere."""

from __future__ import annotations

import io

from outputs.terminal import Terminal
from results.report.progress import ProgressView


def plain_lines(moments_s):
    """What is printed where output is no terminal, given an update at each of these wall-clock moments."""
    file, now_s = io.StringIO(), [0.0]
    with ProgressView("eps", console=Terminal(file=file, width=40), clock=lambda: now_s[0]) as view:
        for number, moment_s in enumerate(moments_s):
            now_s[0] = moment_s
            view.update(number, number, 0, 1, 2, moment_s, 60)
    return file.getvalue().splitlines()


def test_a_plain_line_says_what_is_sent_done_failed_and_in_flight():
    assert plain_lines([12.0]) == ["eps: 12/60 s  sent 0  done 0  failed 0  transfers 1  circuits 2"]


def test_plain_lines_are_five_seconds_apart_and_the_last_state_is_always_said():
    sent = [line.split("sent ")[1].split()[0] for line in plain_lines([0.0, 1.0, 4.9, 5.0, 6.0, 9.9, 10.5, 11.0])]
    assert sent == ["0", "3", "6", "7"]


def test_nothing_is_printed_of_a_run_that_never_reported():
    assert plain_lines([]) == []


def test_a_terminal_gets_a_bar_that_is_gone_afterwards():
    console = Terminal(file=io.StringIO(), force_terminal=True, width=120, _environ={"TERM": "xterm"})
    with ProgressView("eps", console=console) as view:
        view.update(10, 8, 1, 1, 1, 70.0, 60.0)
        shown = console.file.getvalue()
    assert "sent 10  done 8  failed 1  transfers 1  circuits 1" in shown
    assert "70/60 s" in shown
    assert console.file.getvalue().endswith("\x1b[2K")


def test_a_step_is_said_when_it_begins():
    file = io.StringIO()
    with ProgressView("eps", console=Terminal(file=file, width=40)) as view:
        view.step("build")
        assert "build" in file.getvalue()
