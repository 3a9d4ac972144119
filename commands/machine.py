"""`heliograph doctor` and `clean`: what this machine can do, and what dead runs left on it."""

from __future__ import annotations

import typer

from commands.door import fail, need_root


def doctor() -> None:
    """What this machine can do, what is missing, and the remedy; exit 1 if it cannot run an experiment."""
    from rich.console import Console

    from emulation.preflight import can_run, capabilities, doctor_table

    found = capabilities()
    Console().print(doctor_table(found))
    raise typer.Exit(0 if can_run(found) else 1)


def clean() -> None:
    """Remove exactly what dead runs of ours left behind (root)."""
    from emulation.ledger import LedgerError, dead_runs
    from emulation.ledger import clean as clean_run

    need_root("clean removes namespaces and processes")
    found = dead_runs()
    if not found:
        typer.echo("nothing to remove: no dead run left anything behind")
    for directory in found:
        try:
            for line in clean_run(directory):
                typer.echo(f"removed {line}")
        except LedgerError as error:
            fail(str(error))
