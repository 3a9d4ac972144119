"""Whether the machine itself keeps time, told by what the project's links, switches and agents have no part in.

A hypervisor that is busy elsewhere wakes its guests milliseconds late and, often, calls none of it stolen. A link of
some Mbit/s then carries 0.9 of its rate, and no figure of a packet test holds. Three witnesses: how late a program that
sleeps is woken, what a link carries that is made with `ip` and `tc` alone, and what the kernel counts as stolen.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from namespaces import inside

from emulation.linux.netns import NamespaceError, socket_in

SLEEPS, SLEEP_S = 300, 0.001
#: Of the 95th percentile. Measured on two idle cores: 0.13 ms in a good moment, 0.7 to 5 ms in an hour in which links
#: carried 0.55 to 0.92 of their rate.
LATE_S = 0.0005
PAUSE_S = 5.0
#: The reference link: as coarse as those of a run, which hold two segments and send packets of 9,000 bytes.
LINK_BPS, LINK_BURST_BYTES, LINK_GSO_BYTES = 40_000_000, 3028, 9000
LINK_BYTES, LINK_SKIPPED_BYTES = 2_000_000, 400_000
PAYLOAD_OF_WIRE = 1448 / 1514
#: What a run demands of its links.
LINK_SHARE = 0.97
#: Of the processors' time; a run that sees more is invalid.
STOLEN_SHARE = 0.05
#: Processors: where programs have more, they may be ours, and what is late may be late because of them.
WORK_CORES, LOOK_S = 0.1, 0.3
#: A machine that does not keep time does so now and then, one that does is late by chance: of so many looks, so many.
LOOKS, LATE_LOOKS = 8, 3


def wakes_late_by_s() -> float:
    """95th percentile, over 300 sleeps of a millisecond."""
    late_s = []
    for _ in range(SLEEPS):
        began_s = time.monotonic()
        time.sleep(SLEEP_S)
        late_s.append(time.monotonic() - began_s - SLEEP_S)
    return sorted(late_s)[int(0.95 * SLEEPS)]


class Ticks(NamedTuple):
    """Of every processor since boot: what programs had, what the hypervisor took, and all."""

    work: int
    stolen: int
    all: int

    @classmethod
    def now(cls) -> Ticks:
        first, *_ = Path("/proc/stat").read_text().splitlines()
        counts = [int(word) for word in first.split()[1:9]]  # what guests take is in user and nice already
        return cls(sum(counts) - counts[3] - counts[4] - counts[7], counts[7], sum(counts))

    def shares(self) -> tuple[float, float]:
        """(work, stolen) of the processors' time since these were read."""
        work, stolen, passed = (after - before for after, before in zip(Ticks.now(), self, strict=True))
        return (work / passed, stolen / passed) if passed else (0.0, 0.0)


def at_rest() -> bool:
    """Whether no program has much of the processors now."""
    since = Ticks.now()
    time.sleep(LOOK_S)
    return since.shares()[0] * (os.cpu_count() or 1) < WORK_CORES


class NoReferenceLinkError(RuntimeError):
    """The reference link could not be made; says which command failed, and what that said."""


def _said(words: Sequence[object]) -> None:
    command = [str(word) for word in words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoReferenceLinkError(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")


@contextlib.contextmanager
def _namespace() -> Iterator[str]:
    """A namespace without a name, by its path: it goes with the child that holds it, and the child with this process.
    None meets another's, and a killed pytest leaves none."""
    holder = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "echo made; exec sleep 300"]
    with subprocess.Popen(holder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            if child.stdout.readline() != "made\n":
                raise NoReferenceLinkError(f"{' '.join(holder)}: {child.stderr.read().strip()}")
            yield f"/proc/{child.pid}/ns/net"
        finally:
            child.kill()
            child.communicate()


@contextlib.contextmanager
def reference_link() -> Iterator[tuple[str, str]]:
    """Its two namespaces, by their paths. Raises NoReferenceLinkError."""
    with _namespace() as here, _namespace() as there:
        peer = there.split("/")[2]
        # nsenter, not `ip -n`: see namespaces.py
        _said([*inside(here), "ip", "link", "add", "v", "type", "veth", "peer", "name", "v", "netns", peer])
        for number, end in enumerate((here, there), 1):
            ip = (*inside(end), "ip")
            _said([*ip, "link", "set", "v", "gso_max_size", LINK_GSO_BYTES, "up"])
            _said([*ip, "address", "add", f"10.255.255.{number}/24", "dev", "v"])
        tc = (*inside(here), "tc")
        _said([*tc, "qdisc", "add", "dev", "v", "root", "handle", "1:", "htb", "default", "10"])
        rate = ("rate", LINK_BPS, "ceil", LINK_BPS, "burst", LINK_BURST_BYTES, "cburst", LINK_BURST_BYTES)
        _said([*tc, "class", "add", "dev", "v", "parent", "1:", "classid", "1:10", "htb", *rate, "quantum", 10_598])
        _said([*tc, "qdisc", "add", "dev", "v", "parent", "1:10", "bfifo", "limit", 60_000])
        yield here, there


def reference_link_share() -> float:
    """What one TCP transfer of 2 MB gets of a link that the project has no part in, its start apart; 0.4 s.

    Raises NoReferenceLinkError, NamespaceError, or OSError where the transfer stalls.
    """
    with (
        reference_link() as (here, there),
        socket_in(there) as listener,
        socket_in(here) as sender,
    ):
        listener.bind(("10.255.255.2", 0))
        listener.listen(1)
        for end in (listener, sender):
            end.settimeout(20)
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        receiver.settimeout(20)
        sending = threading.Thread(target=sender.sendall, args=(bytes(LINK_BYTES),), daemon=True)
        sending.start()
        got, began = 0, (0.0, 0)
        with receiver:
            while got < LINK_BYTES:
                got += len(receiver.recv(65_536))
                if not began[1] and got >= LINK_SKIPPED_BYTES:
                    began = time.monotonic(), got
        ended_s = time.monotonic()
        sending.join(20)
    return (got - began[1]) * 8 / (ended_s - began[0]) / (LINK_BPS * PAYLOAD_OF_WIRE)


def _late_now() -> str | None:
    if (late_s := wakes_late_by_s()) > LATE_S:
        return f"this machine, at rest, wakes programs {1e3 * late_s:.1f} ms late (p95)"
    try:
        share = reference_link_share()
    except TimeoutError:
        return "on this machine, at rest, a link made with ip and tc alone carries nothing for 20 s"
    except (NoReferenceLinkError, NamespaceError, OSError) as error:
        # one witness less: what it would have excused counts
        warnings.warn(f"how a link keeps its rate here cannot be told: {error}", stacklevel=2)
        return None
    if share < LINK_SHARE:
        return f"on this machine, at rest, a link made with ip and tc alone carries {share:.2f} of its rate"
    return None


def unfit(since: Ticks) -> str | None:
    """Why no measurement since then holds, in words; None on a machine that keeps time, or if that cannot be told."""
    if (stolen := since.shares()[1]) > STOLEN_SHARE:
        return f"the hypervisor took {100 * stolen:.0f} % of the processors"
    said = []
    for look in range(LOOKS):
        if look:
            time.sleep(1.0)
        if at_rest() and (late := _late_now()):
            said.append(late)
        if len(said) == LATE_LOOKS:
            return f"{said[-1]}, as in {LATE_LOOKS} of {look + 1} looks"
    return None


class Patience:
    """Waits for a machine that keeps time, for `left_s` in all."""

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s

    def wait(self) -> None:
        """Return as soon as the machine is at rest and keeps time, or patience is at an end."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < self.left_s:
            if at_rest() and _late_now() is None:
                break
            time.sleep(PAUSE_S)
        self.left_s = max(0.0, self.left_s - (time.monotonic() - began_s))
