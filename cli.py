"""The door: every command of `./heliograph` except setup and test, which the launcher does itself."""

from __future__ import annotations

import sys

from commands.entry import enter

if __name__ == "__main__":  # before anything is loaded that may fail
    sys.exit(enter())

from collections.abc import Callable
from typing import Annotated

import typer

from commands.artifacts import compare, report
from commands.economics import cost, link_budget
from commands.machine import clean, doctor
from commands.packets import demo, run
from commands.paper import paper
from commands.shared import ended_by_signals
from commands.sweep import sweep
from commands.traces import fit, trace
from commands.twin import simulate, validate
from commands.version import print_version

app = typer.Typer(
    name="heliograph",
    help="What the network does to the time to first token of disaggregated LLM serving, with real packets.",
    epilog="./heliograph setup sets this machine up; ./heliograph test runs the tests. docs/index.md: where to begin.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def heliograph(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """What the network does to the time to first token of disaggregated LLM serving, with real packets."""


#: Panel of the help -> its commands, each with an example.
COMMANDS: dict[str, dict[Callable[..., None], str]] = {
    "Run": {
        demo: "./heliograph demo",
        run: "./heliograph run experiments/demo.yaml --set workload.window_s=30 --pcap",
        validate: "./heliograph validate experiments/demo.yaml",
    },
    "Predict": {
        simulate: "./heliograph simulate experiments/demo.yaml --set fabrics.0.oversubscription=4",
        sweep: "./heliograph sweep experiments/demo.yaml --over transfer=pull,layerwise",
        paper: "./heliograph paper --quick --figure 3b",
        cost: "./heliograph cost --gpus 1024",
        link_budget: "./heliograph link-budget --fibre-m 200",
    },
    "Look": {
        report: "./heliograph report results/runs/20261201-120000-demo",
        compare: "./heliograph compare results/runs/BEFORE results/runs/AFTER",
        trace: "./heliograph trace conversation_trace.jsonl.gz",
    },
    "Set up": {
        doctor: "./heliograph doctor --experiment experiments/demo.yaml",
        clean: "sudo ./heliograph clean",
        fit: "./heliograph fit prefills.csv --tp 4",
    },
}
for panel, commands in COMMANDS.items():
    for command, example in commands.items():
        name = command.__name__.replace("_", "-")
        app.command(name, rich_help_panel=panel, epilog=f"Example: {example}")(ended_by_signals(command))
