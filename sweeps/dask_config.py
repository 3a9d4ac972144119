"""Whose configuration Dask has: workers of this machine have ours alone, a cluster is met with the user's.

Dask reads /etc/dask, ~/.config/dask, DASK_CONFIG and every DASK_* variable as it is imported, in each process anew.
What is there may be meant for another cluster (a `preload` runs code in every worker) or be broken, so it is out of
sight while our own are made.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from sweeps.axes import SweepError

#: Where Dask looks besides the environment that it is installed in.
_ROOT = "DASK_ROOT_CONFIG"


@contextlib.contextmanager
def ours(empty: Path, report: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Dask has its defaults in here, and so have the processes that it starts. `empty` is a folder of ours with nothing
    in it; `report` is told of a file of the user's that is broken. Yields the variables to give to a process once it
    has imported Dask."""
    places = [os.environ.get(_ROOT, "/etc/dask"), os.path.expanduser("~/.config/dask")]
    places += [os.environ["DASK_CONFIG"]] if "DASK_CONFIG" in os.environ else []
    before = {key: value for key, value in os.environ.items() if key.startswith("DASK_")}
    home = os.environ.get("HOME")
    for key in before:
        del os.environ[key]
    os.environ |= {_ROOT: str(empty), "HOME": str(empty)}
    try:
        import dask
        import distributed  # noqa: F401  (its defaults are part of Dask's)

        dask.config.refresh(paths=[], env={})
        if unread := _unread(places):
            report(f"{unread} (workers of this machine do not need it)")
        yield {} if home is None else {"HOME": home}
    finally:
        for key in [key for key in os.environ if key.startswith("DASK_")]:
            del os.environ[key]
        os.environ |= before
        if home is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = home


def users() -> None:
    """Dask has what the user configured. Raises SweepError, in one line, where that cannot be read."""
    try:
        import dask
        import distributed  # noqa: F401

        dask.config.refresh()
    except Exception as error:  # YAML, encodings, base64 and JSON of a variable: whatever Dask's readers raise
        raise SweepError(
            f"Dask's configuration cannot be read: {' '.join(str(error).split())}; mend the file or the variable"
        ) from error


def _unread(places: list[str]) -> str:
    """What of the user's files could not have been read, in one line; "" where all can."""
    import dask

    try:
        for _ in dask.config.collect_yaml(paths=places):
            pass
    except Exception as error:
        return " ".join(str(error).split())
    return ""
