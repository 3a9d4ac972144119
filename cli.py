"""The door: every command of `./heliograph` except setup and test, which the launcher does itself."""

from __future__ import annotations

import sys

from commands.entry import enter

if __name__ == "__main__":  # before anything is loaded that may fail
    sys.exit(enter())

import typer

from commands.artifacts import compare, report
from commands.door import ended_by_signals
from commands.machine import clean, doctor
from commands.packets import demo, run
from commands.paper import paper
from commands.sweep import sweep
from commands.traces import fit, trace
from commands.twin import simulate, validate
from economics.commands import cost, link_budget

app = typer.Typer(
    name="heliograph",
    help="What the network does to the time to first token of disaggregated LLM serving, with real packets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    demo,
    run,
    simulate,
    validate,
    sweep,
    paper,
    doctor,
    clean,
    fit,
    report,
    compare,
    trace,
    cost,
    link_budget,
):
    app.command(command.__name__.replace("_", "-"))(ended_by_signals(command))
