"""`heliograph doctor` and `clean`: what this machine can do, and what dead runs left on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from commands.check import checked
from commands.shared import INVALID, Overrides, fail, left_behind, need_root
from outputs.terminal import Terminal, say


def doctor(
    experiment: Annotated[
        Path | None,
        typer.Option(
            metavar="EXPERIMENT.yaml",
            help="also build its networks, load them, and say whether it will be valid here, and what would make it so "
            "(root)",
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """What this machine can do, what is missing, and the remedy; exit 1 if it cannot run an experiment."""
    from emulation.doctor.preflight import can_run, capabilities, doctor_table
    from emulation.doctor.selftest import SelfTestError, client_error

    console = Terminal()
    found = capabilities()
    console.print(doctor_table(found))
    try:
        console.say(client_error().sentence())
    except (SelfTestError, OSError) as error:
        console.say(f"the client could not be tested: {error}")
    if not can_run(found):
        raise typer.Exit(1)
    if experiment is not None:
        _advise(experiment, overrides or [], console)


def _advise(path: Path, overrides: list[str], console: Terminal) -> None:
    """A line for each fabric; exit INVALID where one will not be valid here."""
    need_root("advice builds the experiment's networks")
    chosen = checked(path, overrides, None, dry_run=False, emulated=True)

    from emulation.doctor.forecast import MachineBusy, advise
    from emulation.doctor.preflight import choose_datapath
    from emulation.linux.ledger import AnotherRun, LedgerError, LeftBehind, RunLedger
    from emulation.linux.netns import NamespaceError
    from emulation.network.ovs import OpenVSwitchError
    from emulation.network.shaping import ShapingError
    from emulation.network.testbed import TestbedError
    from emulation.probe.link import ProbeError
    from process.interrupts import Interrupted, interruptible

    try:
        with interruptible(), RunLedger.open(f"doctor-{os.getpid()}") as ledger:
            advice = advise(chosen, ledger, choose_datapath())
    except Interrupted as error:
        fail(f"{error}: everything that was built is removed", error.status)
    except LeftBehind as error:
        fail(*left_behind(error))
    except (AnotherRun, MachineBusy) as error:
        fail(str(error))
    except (LedgerError, NamespaceError, OpenVSwitchError, ProbeError, ShapingError, TestbedError, OSError) as error:
        fail(f"{error}\neverything that was built is removed")
    for each in advice:
        console.say(each.sentence())
    if not all(each.valid for each in advice):
        raise typer.Exit(INVALID)


def clean() -> None:
    """Remove exactly what dead runs (root) and dead sweeps of ours left behind."""
    from emulation.linux.ledger import AnotherRun, LedgerError, LeftBehind, dead_runs, no_run
    from emulation.linux.ledger import clean as clean_run
    from sweeps.scratch import remove_left

    of_sweeps = remove_left()
    for line in of_sweeps:
        say(f"removed {line}")
    if os.geteuid() and of_sweeps:
        say("namespaces and processes of dead runs are root's to remove: sudo ./heliograph clean")
        return
    need_root("clean removes namespaces and processes")
    try:
        with no_run():
            found, left = dead_runs(), []
            for directory in found:
                try:
                    removed = clean_run(directory)
                except LeftBehind as error:
                    removed = error.removed
                    left.append(f"{directory}: {error}")
                for line in removed:
                    say(f"removed {line}")
    except AnotherRun as error:
        fail(f"{error.holder.sentence()} is alive: nothing is removed; end it, and it removes what it made itself")
    except LedgerError as error:
        fail(str(error))
    if left:
        fail("\n".join(left))
    if not found and not of_sweeps:
        say("nothing to remove: no dead run left anything behind")
