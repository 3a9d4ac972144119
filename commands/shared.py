"""What every command shares: its usual arguments, its exit codes, and how it refuses."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, ParamSpec, TypeVar

import typer

from inputs.options import whole
from outputs.terminal import say
from process.interrupts import Interrupted, interruptible

if TYPE_CHECKING:
    from emulation.linux.ledger import LeftBehind

P = ParamSpec("P")
R = TypeVar("R")
ROOT = Path(__file__).resolve().parents[1]

#: Exit codes beside 0 (done; verdicts may be degraded).
FAILED, BAD_INPUT, INVALID = 1, 2, 3

ExperimentFile = Annotated[Path, typer.Argument(help="experiment file (YAML)", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="path.to.key=value", help="override a key of the file; list items by index"),
]
Seed = Annotated[
    int | None,
    typer.Option(parser=whole(0, 2**63 - 1), metavar="N", help="run with this seed instead of the file's"),
]
ArtifactDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="where to write the artifacts (new or empty; default results/runs/TIME-NAME)"),
]


def missing(path: Path) -> tuple[Path, ...]:
    """`path` and what is above it, as far as it is not there yet: what making it will make."""
    path = path.resolve()
    return tuple(place for place in (path, *path.parents) if not os.path.lexists(place))


def give_back(path: Path, made: tuple[Path, ...] = ()) -> None:
    """What sudo wrote at and under `path`, and the directories `made` for it, belong to whoever called sudo: `report`
    needs no root afterwards, and the next run no sudo to write beside this one. Call it after the last write, however
    the command ends; where a file system keeps no owners it is a line and no failure."""
    owner, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if not path.exists():  # removed while the command ran
        return
    if os.geteuid() == 0 and owner and group and owner.isdigit() and group.isdigit():
        try:
            for place in dict.fromkeys((*made, path, *path.rglob("*"))):
                os.chown(place, int(owner), int(group), follow_symlinks=False)
        except OSError as error:
            say(f"heliograph: {path} stays root's: {error}", err=True)


def ended_by_signals(command: Callable[P, R]) -> Callable[P, R]:
    """The command, which SIGINT, SIGTERM, SIGHUP and SIGQUIT end in order: with one line, where it has no more to say
    itself, and with 128 and the signal's number."""

    @functools.wraps(command)
    def interruptible_command(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            with interruptible():
                return command(*arguments, **options)
        except Interrupted as error:
            fail(str(error), error.status)

    return interruptible_command


def need_root(why: str) -> None:
    if os.geteuid():
        fail(f"{why}: run it with sudo")


def left_behind(error: LeftBehind, kept: str = "") -> tuple[str, int]:
    """What to say where not everything could be removed, and the exit status: of what had ended the run before."""
    number = getattr(error.during, "number", None)  # a signal's
    said = "; ".join(filter(None, [str(error.during or ""), kept]))
    return "\n".join(filter(None, [said, str(error)])), 1 if number is None else 128 + number


def fail(message: str, code: int = 1) -> NoReturn:
    say(f"heliograph: {message}", err=True)
    raise typer.Exit(code)
