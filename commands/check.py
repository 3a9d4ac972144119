"""An experiment file, checked as far as it can be before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from commands.shared import BAD_INPUT, fail
from outputs.terminal import say

if TYPE_CHECKING:
    from experiments.schema.spec import Experiment


def checked(path: Path, overrides: list[str], seed: int | None, *, dry_run: bool, emulated: bool = False) -> Experiment:
    """The experiment, with requests in every window, and with links that can be made where it is to be `emulated`;
    with `dry_run` it is printed, and that is all."""
    from emulation.doctor.plan_checks import refusals
    from experiments.schema import plugins
    from experiments.schema.spec import load
    from inputs.errors import InputError

    try:
        experiment = load(path, overrides, seed)
        refused = plugins.refusals(experiment) + (refusals(experiment) if emulated else [])
        if refused:
            fail("\n".join(f"{path}: {line}" for line in refused), BAD_INPUT)
        arrivals = {seed: experiment.arrivals(seed) for seed in experiment.seeds}
    except InputError as error:
        fail(str(error), BAD_INPUT)
    empty = [seed for seed, found in arrivals.items() if not any(not r.warmup for r in found.requests)]
    if empty:
        fail(
            f"{path}: no request falls into the measured window of seed {empty[0]}; make workload.window_s longer, "
            "raise the tenants' load, or move offset_s of a trace",
            BAD_INPUT,
        )
    if dry_run:
        say(experiment.dump())
        for found in arrivals.values():
            for report_ in found.reports:
                say("\n".join(report_.lines()))
        raise typer.Exit
    return experiment
