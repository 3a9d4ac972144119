"""The way in and out of the command line: what no command can do anything about ends in one line and a status.

It imports the standard library only, so that it is there when nothing else can be loaded any more.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
import traceback
import unicodedata

from inputs.errors import printable
from outputs.streams import guard, loss
from process.interrupts import Interrupted, ignore, put_off, take_over

FAILED, BAD_INPUT = 1, 2
#: Shows the traceback of what is a fault of the program.
DEBUG = "HELIOGRAPH_DEBUG"
#: Characters that end a line, steer a terminal, or are bytes that no text file can hold.
_NO_TEXT = {"Cc", "Cs", "Zl", "Zp"}


def enter() -> int:
    """Run the command line of `cli.py` with the arguments of this process; its exit status."""
    out = guard()
    os.umask(0o022)  # whatever a library writes is not for others to change, and for the user who called sudo to read
    sys.unraisablehook = lambda ignored: _debug(ignored.exc_value)
    take_over()
    threading.excepthook = lambda failed: _say_why(failed.exc_value) if failed.exc_value else None
    if out.error is not None:
        return _refused("standard output is closed, and a command would have nowhere to print to", FAILED)
    if wrong := _unusable():
        return _refused(wrong, BAD_INPUT)
    status = _run()
    if lost := loss(out):
        return _refused(lost, status or FAILED)
    return status


def _run() -> int:
    try:
        from cli import app

        with put_off():  # click says "Aborted!" of a signal, and exits with 1
            app(prog_name="heliograph")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else FAILED if ended.code else 0
    except Interrupted as error:
        return _refused(str(error), error.status)
    except BaseException as error:
        _say_why(error)
        return FAILED
    finally:
        ignore()  # what has ended is not interrupted any more
    return 0


def _refused(message: str, status: int) -> int:
    print(f"heliograph: {printable(message)}", file=sys.stderr)
    return status


def _unusable() -> str | None:
    """What of the command line and of where it was given can be no part of any text; None where all of it can."""
    for argument in sys.argv[1:]:
        if what := _no_text(argument):
            return f"the argument {argument} has {what}: give it, and the files and folders it names, another name"
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return "the current folder is no longer there: change to one that is (cd), and try again"
    if what := _no_text(here):
        return f"the current folder {here} has {what} in its name: change to another one, or rename it"
    return None


def _no_text(text: str) -> str | None:
    if text.isprintable():
        return None
    if any("\ud800" <= each <= "\udfff" for each in text):
        return "bytes that are not UTF-8"
    return "a control character" if any(unicodedata.category(each) in _NO_TEXT for each in text) else None


def _say_why(error: BaseException) -> None:
    """One line for what ended the command and is not its own refusal."""
    if _wants_memory(error):
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        under = "" if limit == resource.RLIM_INFINITY else f" under the limit of {limit >> 20} MiB (ulimit -v)"
        line = f"there is not enough memory{under}: raise the limit or free some, or ask for less at once"
    elif isinstance(error, OSError):
        from outputs.files import why

        line = f"{error.filename}: {why(error)}" if error.filename is not None else why(error)
    else:
        last = traceback.extract_tb(error.__traceback__)[-1:]
        where = "".join(f" at {frame.filename}:{frame.lineno}" for frame in last)
        line = f"a fault of heliograph itself: {type(error).__name__}: {error}{where}; {DEBUG}=1 shows more of it"
    _refused(line, FAILED)
    _debug(error)


def _wants_memory(error: BaseException) -> bool:
    if isinstance(error, ImportError):  # the loader of shared libraries has words of its own
        return any(words in str(error) for words in ("failed to map segment", "cannot allocate memory"))
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def _debug(error: BaseException | None) -> None:
    if os.environ.get(DEBUG) and error is not None:
        traceback.print_exception(type(error), error, error.__traceback__)
