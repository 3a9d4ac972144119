"""`heliograph run --replay DIR`: a finished run made again, what differs said before, both side by side after."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from commands.check import checked
from commands.shared import BAD_INPUT, fail
from outputs.terminal import Terminal, say

if TYPE_CHECKING:
    from results.records.artifacts import RunDirectory
    from results.report.replay import Recorded

#: A trace or a plug-in may have moved; anything else would be another experiment.
_MOVED = re.compile(r"workload\.tenants\.\d+\.path=.*|fabrics\.\d+\.(decode_choice|commit)=.*:.*")


def checked_replay(path: Path, overrides: list[str], seed: int | None, *, dry_run: bool) -> Recorded:
    """The run in `path`, checked; says what of the machine and the versions differs. Ends the command where it cannot
    be made again (another trace, other arrivals, other seeds), and with `dry_run` where it can."""
    from emulation.doctor.preflight import choose_datapath
    from inputs.errors import InputError
    from results.records.artifacts import provenance
    from results.report.replay import changes, other_arrivals, other_plugins, other_traces, recorded
    from topologies.wiring import COMMON_SYSCTLS

    strange = [override for override in overrides if not _MOVED.fullmatch(override)]
    if strange or seed is not None:
        what = f"--set {strange[0]}" if strange else f"--seed {seed}"
        fail(
            f"{what}: --replay makes the recorded experiment again; only workload.tenants.N.path and a plug-in of "
            f"fabrics.N may be set, where a trace or a plug-in has moved. To change more, run {path / 'config.yaml'}",
            BAD_INPUT,
        )
    try:
        run = recorded(path)
        experiment = checked(run.config, overrides, None, dry_run=False, emulated=True)
        traces = [Path(tenant.path) for tenant in experiment.workload.tenants if tenant.path]
        refused = other_traces(run, traces) + other_plugins(run.provenance, experiment.plugins)
        if experiment.seeds != run.seeds:
            refused.append(f"{run.config} has the seeds {experiment.seeds}, and the run had {run.seeds}")
        refused = refused or other_arrivals(run, {seed: experiment.arrivals(seed).requests for seed in run.seeds})
        now = provenance(
            argv=sys.argv, seeds=run.seeds, datapath=choose_datapath(), traces=traces, sysctls=dict(COMMON_SYSCTLS)
        )
    except InputError as error:
        fail(str(error), BAD_INPUT)
    differing = changes(run.provenance, now)
    for line in differing or ["nothing of the machine or the versions differs"]:
        say(f"replay: {line}")
    if refused:
        fail(
            "\n".join(f"{path}: {line}" for line in refused) + "\nit is not the same run: nothing was built", BAD_INPUT
        )
    if dry_run:
        say(f"replay: the same traces, seeds and arrivals: {path} can be made again")
        raise typer.Exit
    return run


def print_beside(first: RunDirectory, second: RunDirectory) -> None:
    """Both runs side by side, and how near they came."""
    from results.report.compare import compare
    from results.report.replay import nearness

    Terminal().print(compare(first.path, second.path))
    for line in nearness(first, second):
        say(line)
