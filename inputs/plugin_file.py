"""A user's own class, `module:Class` or `FILE.py:Class` of an experiment: where it is looked for, how it is loaded.

It is looked for by the name that was given and no other: beside the experiment file, then in the current folder, and
what this project ships in its own `examples`. It is loaded from that file, by itself: nothing is put on
Python's path, so whatever else lies beside it is never imported; nor is a `.pyc` of it, which others may have written.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.util
import os
import re
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from inputs.errors import InputError
from inputs.owners import who_else
from inputs.plugin_fault import LOADED_AS, PluginFault, blamed

Made = TypeVar("Made")

ROOT = Path(__file__).resolve().parents[1]
#: Where this project's own are, by the module's name that an experiment gives.
SHIPPED = "examples."
MOST_BYTES, MOST_LOADED = 1 << 20, 64

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
#: What was read of files that may be out of reach when they are loaded.
_kept: dict[Path, bytes] = {}
#: Modules by file and SHA-256: a file that has changed since is another module.
_loaded: dict[tuple[str, str], ModuleType] = {}


class PluginError(InputError):
    """A plug-in that cannot be found or loaded: which file, why, and the remedy."""


def names_plugin(text: str) -> bool:
    """Whether a value has the form of a plug-in: `module:Class`, `package.module:Class` or `FILE.py:Class`."""
    place, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier() or not place.isprintable():
        return False
    return (place.endswith(".py") and Path(place).name != ".py") or _MODULE.fullmatch(place) is not None


def find(text: str, folders: Sequence[Path]) -> str:
    """`/folder/module.py:Class` of a plug-in, from the first of the `folders` that has a file of its name;
    `package.module` is `package/module.py` there. Raises PluginError where none has."""
    place, _, name = text.rpartition(":")
    given = os.path.expanduser(place) if place.endswith(".py") else place.replace(".", os.sep) + ".py"
    places = [folder / given for folder in (*folders, *([ROOT] if place.startswith(SHIPPED) else []))]
    for path in places:
        if os.path.lexists(path):
            return f"{os.path.abspath(path)}:{name}"
    looked = " nor ".join(dict.fromkeys(str(os.path.abspath(path)) for path in places))
    raise PluginError(f"there is no {looked}; a plug-in lies beside the experiment file or in the current folder")


def file_of(resolved: str) -> Path:
    """The file of a plug-in that `find` has found."""
    return Path(resolved.rpartition(":")[0])


def keep(path: Path) -> None:
    """Read a plug-in's file once and for all: what was read is loaded, whatever the file is by then and whether or not
    it can still be read. Raises PluginError where it cannot be read or trusted."""
    _kept[path] = source(path)


def sha256(path: Path) -> str:
    """Digest of a plug-in's file. Raises PluginError where it cannot be read or trusted."""
    return hashlib.sha256(_text(path)).hexdigest()


def _text(path: Path) -> bytes:
    return _kept[path] if path in _kept else source(path)


def source(path: Path) -> bytes:
    """What is in a plug-in's file. Raises PluginError where it cannot be read, is no regular file or too long, and, as
    root, where an ordinary user who is not ours may have written it or its folder."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer would wait
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise PluginError(f"{path} is no regular file")
            if os.geteuid() == 0:
                _refuse_strangers(path, status)
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise PluginError(f"cannot read {path}: {error.strerror or error}") from error
    if len(text) > MOST_BYTES:
        raise PluginError(f"{path} has more than {MOST_BYTES} bytes, which is no plug-in")
    return text


def _refuse_strangers(path: Path, status: os.stat_result) -> None:
    folders = dict.fromkeys((path.parent, Path(os.path.realpath(path)).parent))
    for place, found in ((path, status), *((folder, os.stat(folder)) for folder in folders)):
        if who := who_else(found):
            raise PluginError(
                f"{place}: {who}, and root runs no code that somebody else may have written: copy the plug-in into a "
                "folder of your own, or run without root"
            )


def load(resolved: str) -> Any:
    """The class that `find` has found. Raises PluginError, whatever its module does while it is imported."""
    path, name = file_of(resolved), resolved.rpartition(":")[2]
    if not path.is_absolute():
        raise PluginError(f"{resolved!r} names no file yet: load() of an experiment looks for it")
    module = _module(path, _text(path))
    if name not in vars(module):
        own = [key for key, value in vars(module).items() if issubclass(type(value), type) and not key.startswith("_")]
        raise PluginError(f"{path} has no {name}; its classes: {', '.join(own) or 'none'}")
    return vars(module)[name]


def _module(path: Path, text: bytes) -> ModuleType:
    digest = hashlib.sha256(text).hexdigest()
    known = _loaded.get((str(path), digest))
    if known is not None:
        return known
    unique = hashlib.sha256(os.fsencode(path) + digest.encode()).hexdigest()[:12]
    name = LOADED_AS + re.sub(r"\W", "_", path.stem) + "_" + unique
    loader = _FromText(path, text)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks its own module up while it is made
    try:
        start(lambda: loader.exec_module(module), if_import_fails=lambda error: _beside(path, error))
    except BaseException:
        sys.modules.pop(name, None)
        raise
    _loaded[str(path), digest] = module
    while len(_loaded) > MOST_LOADED:  # a worker of a cluster sees many a sweep
        sys.modules.pop(_loaded.pop(next(iter(_loaded))).__name__, None)
    return module


class _FromText(importlib.abc.InspectLoader):
    """Compiles the text that was read and checked: neither the file again nor its `__pycache__`."""

    def __init__(self, path: Path, text: bytes) -> None:
        self._path, self._text = path, text

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._text)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, str(self._path), "exec", dont_inherit=True)


def start(build: Callable[[], Made], *, if_import_fails: Callable[[ImportError], str] = lambda error: "") -> Made:
    """What `build` makes of a plug-in before a run begins. Raises PluginError, in one line, for whatever it raises, an
    exit too."""
    try:
        with blamed("a plug-in"):
            return build()
    except PluginFault as fault:
        error = fault.__cause__ or fault
        remedy = if_import_fails(error) if isinstance(error, ImportError) else ""
        raise PluginError(f"{_one_line(error)}{remedy}") from fault


def _one_line(error: BaseException) -> str:
    """An error, and before it the plug-in's own line where it passed through one."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # an error whose own text raises
        text = "no text"
    line = ""
    trace = error.__traceback__
    while trace is not None:
        if LOADED_AS in trace.tb_frame.f_globals.get("__name__", ""):
            line = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return f"{line}{type(error).__name__}{': ' if text else ''}{text}"


def _beside(path: Path, error: ImportError) -> str:
    """What to do where a plug-in imports a module of its own folder."""
    wanted = (error.name or "").partition(".")[0]
    relative = "relative import" in str(error)
    if not relative and not (wanted and any(os.path.lexists(path.parent / each) for each in (wanted, f"{wanted}.py"))):
        return ""
    return "; a plug-in is one file, and what lies beside it is not imported: put both into one file"
