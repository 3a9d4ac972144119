"""Running code, opening sockets and starting commands inside a named network namespace.

A namespace belongs to a thread, not to a process: each call here enters in a thread of its own that ends afterwards,
so the caller never changes namespace and nothing has to be undone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
NETNS_DIR = Path("/run/netns")
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class NamespaceError(RuntimeError):
    """A namespace could not be entered, or a command failed inside one: says which, and what the kernel answered."""


def enter(namespace: str) -> None:
    """Move the *calling thread* into a named namespace for good. Raises NamespaceError.

    os.setns is newer than Python 3.10, hence ctypes.
    """
    path = NETNS_DIR / namespace
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NamespaceError(f"cannot open namespace {path}: {error.strerror}") from error
    try:
        if _libc.setns(descriptor, CLONE_NEWNET):
            number = ctypes.get_errno()
            raise NamespaceError(f"cannot enter namespace {path}: {os.strerror(number)} (root is needed)")
    finally:
        os.close(descriptor)


def run_in(namespace: str, function: Callable[[], T]) -> T:
    """What `function()` returns, or raises, when it runs inside a namespace. Processes it starts must not use
    PR_SET_PDEATHSIG: they would die with the thread."""
    results: list[T] = []
    failures: list[BaseException] = []

    def body() -> None:
        try:
            enter(namespace)
            results.append(function())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=body, name=f"in-{namespace}")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def socket_in(
    namespace: str, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM, protocol: int = 0
) -> socket.socket:
    """A socket that belongs to a namespace for as long as it lives; any thread may use it."""
    return run_in(namespace, lambda: socket.socket(family, kind, protocol))


def write_sysctls(values: Mapping[str, str]) -> None:
    """Set sysctls of the calling thread's namespace: /proc/sys/net shows each reader its own.

    A kernel without IPv6 has nothing to disable; any other missing name is refused. Raises NamespaceError.
    """
    for name, value in values.items():
        path = sysctl_path(name)
        try:
            path.write_text(value)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and name.startswith("net.ipv6."):
                continue
            raise NamespaceError(f"cannot set sysctl {name} to {value!r}: {error.strerror}") from error


def changed_sysctls(values: Mapping[str, str]) -> list[str]:
    """Which sysctls of the calling thread's namespace are not (any more) what was written, in words."""
    changed = []
    for name, value in values.items():
        try:
            found = sysctl_path(name).read_text()
        except FileNotFoundError:  # a kernel without IPv6
            continue
        if found.split() != value.split():
            changed.append(f"sysctl {name} is {' '.join(found.split())!r}, not {value!r}")
    return changed


def sysctl_path(name: str) -> Path:
    """`net.ipv4.ip_forward` -> /proc/sys/net/ipv4/ip_forward. Interface names with a dot are not supported."""
    return Path("/proc/sys") / name.replace(".", "/")


def batch(tool: str, text: str, *, where: str, options: str = "", tied: bool = False, timeout_s: float = 60.0) -> str:
    """Feed lines to `ip -batch -` or `tc -batch -` in the calling thread's namespace; returns its output.

    where: named in the error. options: before -batch, such as "-s -j". tied: the process is killed when this one dies,
    lest it go on making what a cleaner removes; from the main thread only. Raises NamespaceError with the failed line.
    """
    if not text:
        return ""
    command = [tool, *options.split(), "-batch", "-"]
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            start_new_session=True,  # Ctrl-C in the terminal reaches us alone, and is no fault of the network
            preexec_fn=_die_with_parent if tied else None,
        )
    except FileNotFoundError as error:
        raise NamespaceError(f"{tool} is not installed: apt-get install iproute2") from error
    except subprocess.TimeoutExpired as error:
        raise NamespaceError(f"{tool} -batch in {where} did not end within {timeout_s} s") from error
    if done.returncode or done.stderr.strip():
        raise NamespaceError(f"{tool} -batch in {where}: {explain(done.stderr, text)}")
    return done.stdout


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def explain(errors: str, text: str) -> str:
    """The answer of a failed batch, with the line it refers to ("Command failed -:LINE")."""
    lines = text.splitlines()
    answer = " ".join(errors.split())
    _, found, number = answer.partition("Command failed -:")
    digits = number.split()[0] if found and number else ""
    if digits.isdigit() and 0 < int(digits) <= len(lines):
        return f"{answer} (line: {lines[int(digits) - 1]!r})"
    return answer


def in_each(namespaces: Sequence[str], function: Callable[[str], T], *, threads: int = 4) -> list[T]:
    """`function(namespace)` inside each namespace, a few at a time, results in the same order; the first failure is
    raised.

    Each of the worker threads moves from one namespace to the next, and ends.
    """
    results: dict[int, T] = {}
    failures: list[BaseException] = []
    todo = iter(enumerate(namespaces))
    lock = threading.Lock()

    def worker() -> None:
        while not failures:
            with lock:
                index, namespace = next(todo, (-1, ""))
            if index < 0:
                return
            try:
                enter(namespace)
                results[index] = function(namespace)
            except BaseException as error:
                failures.append(error)

    pool = [threading.Thread(target=worker, name=f"netns-{n}") for n in range(min(threads, len(namespaces)))]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    if failures:
        raise failures[0]
    return [results[index] for index in range(len(namespaces))]
