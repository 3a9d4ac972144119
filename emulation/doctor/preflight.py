"""What this machine can do: one `Capability` per thing a run relies on, found by trying it, not by asking for versions.

The kernel is tried by `kernel_probe.py`. Without root the same probes run in a user namespace where the kernel
allows one; where it does not, a qdisc is judged by its module and the rest is reported as not checked.
"""

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from rich.text import Text

from emulation.doctor.kernel_probe import (
    PROBE_TIMEOUT_S,
    ProbeResult,
    module_available,
    probe_kernel,
    search_environment,
    which,
)
from emulation.linux.cpu_quota import quotas
from outputs.sheet import Column, Sheet

State = Literal["ok", "missing", "degraded"]

SETUP = "sudo ./heliograph setup"
OPEN_VSWITCH_BINARIES = ("ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl", "ovs-appctl")
OLDEST_OPEN_VSWITCH = (2, 13)  # the first with userspace-tso-enable
OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)
ENOUGH_CORES = 2
ENOUGH_MEMORY_BYTES = 3 * 2**30  # 32 agents of 22 MiB, Ryu, the report's data frames, and room for page cache


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing a run relies on. ``value`` is what was found, ``remedy`` what to do when the state is not ``ok``."""

    name: str
    state: State
    value: str
    why_it_matters: str
    remedy: str
    required: bool


@dataclass(frozen=True, slots=True)
class _Feature:
    """A kernel feature that `kernel_probe.py` tries; ``module`` names the kernel module that brings it."""

    probe: str
    name: str
    why_it_matters: str
    remedy: str
    module: str = ""


_MODULES = "boot a stock kernel or install its modules (Debian linux-image-amd64, Ubuntu linux-modules-extra)"
_PRIVILEGE = "run as root, outside of an unprivileged container"
_NEEDED = (
    _Feature("namespaces", "network namespaces", "every host and router is one", _PRIVILEGE),
    _Feature("veth", "veth pairs", "every link is one", _MODULES, "veth"),
    _Feature("htb", "qdisc htb", "gives each link its rate and each source its share", _MODULES, "sch_htb"),
    _Feature("bfifo", "qdisc bfifo", "is a port's buffer, in bytes", _MODULES, "sch_fifo"),
    _Feature("u32", "filter u32", "sorts packets into shares", _MODULES, "cls_u32"),
    _Feature("gso_max_size", "gso_max_size", "keeps a GSO packet smaller than any queue", "use iproute2 5.10 or newer"),
    _Feature("rto_min", "route rto_min", "TCP's own 200 ms outlasts a median prefill", "use iproute2 5.10 or newer"),
    _Feature("hash_policy", "ECMP hash policy 3", "sends each 5-tuple its own way", "use Linux 5.13 or newer"),
    _Feature("hash_fields", "ECMP hash fields 0x37", "name the 5-tuple", "use Linux 5.13 or newer"),
)
_OPTIONAL = (
    _Feature(
        "hash_seed", "ECMP hash seed", "else ports are chosen to hit the seed's uplinks", "use Linux 6.11 or newer"
    ),
    _Feature("netem", "qdisc netem", "adds propagation delay", _MODULES, "sch_netem"),
    _Feature("prio", "qdisc prio", "strict priorities; HTB classes stand in for it", _MODULES, "sch_prio"),
    _Feature("fq", "qdisc fq", "paces bbr; TCP's own pacing stands in for it", _MODULES, "sch_fq"),
)


def capabilities() -> list[Capability]:
    """Everything `./heliograph doctor` shows, in its order. Takes well under two seconds and leaves nothing behind."""
    return [
        _root(),
        _python(),
        _cores(),
        _cpu_quota(),
        _memory(),
        *_kernel_features(probe_kernel()),
        *_congestion_controls(),
        _open_vswitch(),
        _datapath(),
        *_programs(),
        _leftovers(),
    ]


def can_run(caps: Iterable[Capability]) -> bool:
    """True when nothing required is missing. What is degraded costs fidelity, which each run's verdict measures."""
    return not any(cap.required and cap.state == "missing" for cap in caps)


def choose_datapath() -> Literal["netdev", "system"]:
    """The Open vSwitch datapath to use: the kernel's (``system``) if it has the module, else user space (``netdev``).

    As root this loads the module, as starting ``ovs-vswitchd`` would: a module file may exist and yet not load.
    """
    return "system" if module_available("openvswitch", load=os.geteuid() == 0) else "netdev"


def doctor_table(caps: Sequence[Capability]) -> Sheet:
    """The capabilities as a table: what was found, why it matters, and the remedy for each that is not ok."""
    columns = [Column("capability", "name"), Column("state", "name")]
    columns += [Column("found", "words"), Column("why it matters, or the remedy", "words")]
    rows = []
    for cap in caps:
        colour = {"ok": "green", "degraded": "yellow", "missing": "red" if cap.required else "yellow"}[cap.state]
        state = cap.state if cap.required or cap.state != "missing" else "missing (optional)"
        advice = cap.why_it_matters if cap.state == "ok" else f"{cap.why_it_matters}. Remedy: {cap.remedy}"
        rows.append((cap.name, Text(state, style=colour), cap.value, advice))
    return Sheet(columns, rows, title="What this machine can do")


def _kernel_features(results: Mapping[str, ProbeResult]) -> list[Capability]:
    needed = [_kernel_feature(feature, results.get(feature.probe), required=True) for feature in _NEEDED]
    return needed + [_kernel_feature(feature, results.get(feature.probe), required=False) for feature in _OPTIONAL]


def _kernel_feature(feature: _Feature, result: ProbeResult | None, *, required: bool) -> Capability:
    state: State
    remedy = feature.remedy
    if result is not None:
        state = "ok" if result.succeeded else "missing"
        value = result.said or ("works" if result.succeeded else "refused")
    elif os.geteuid() == 0:
        state, value, remedy = "missing", "no network namespace could be made to try it in", _PRIVILEGE
    elif feature.module and module_available(feature.module):
        state, value = "ok", f"module {feature.module}, not tried"
    else:
        state, value, remedy = "degraded", "not checked: needs root", "sudo ./heliograph doctor"
    return Capability(feature.name, state, value, feature.why_it_matters, remedy, required)


def _congestion_controls() -> list[Capability]:
    return [
        _congestion_control("cubic", "is what KV transfers use", required=True),
        _congestion_control("bbr", "an alternative; shares FIFO queues unfairly", required=False),
        _congestion_control("dctcp", "an alternative; needs ECN marking", required=False),
    ]


def _congestion_control(name: str, why: str, *, required: bool) -> Capability:
    label = f"congestion control {name}"
    if congestion_control_works(name):
        return Capability(label, "ok", "works", why, "", required)
    return Capability(label, "missing", "not in this kernel", why, f"modprobe tcp_{name}, or {_MODULES}", required)


def congestion_control_works(name: str) -> bool:
    """Setting it on a socket also loads its module (as root); the list has those a user may see but not choose."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp:
        try:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
            return True
        except OSError:
            return name in available_congestion_controls()


def available_congestion_controls() -> list[str]:
    """Those that the kernel has loaded."""
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    return available.read_text().split() if available.exists() else []


def netem_works() -> bool:
    """Whether links can be given a propagation delay. Tried where this user may make a network namespace; else judged
    by the module."""
    result = probe_kernel().get("netem")
    return result.succeeded if result is not None else module_available("sch_netem")


def _open_vswitch() -> Capability:
    why = "switches the circuits"
    absent = [binary for binary in OPEN_VSWITCH_BINARIES if which(binary) is None]
    if absent:
        return Capability("Open vSwitch", "missing", f"not found: {', '.join(absent)}", why, SETUP, True)
    command, environment = ["ovs-vswitchd", "--version"], search_environment()
    try:
        said = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PROBE_TIMEOUT_S).stdout
    except subprocess.TimeoutExpired:
        silent = f"{' '.join(command)} has not ended within {PROBE_TIMEOUT_S:g} s"
        return Capability("Open vSwitch", "missing", silent, why, "try again; end what stopped it", True)
    version = parse_version(said)
    if version is None or version < OLDEST_OPEN_VSWITCH:
        value = said.splitlines()[0] if said else "ovs-vswitchd --version said nothing"
        wanted = ".".join(map(str, OLDEST_OPEN_VSWITCH))
        return Capability(
            "Open vSwitch", "missing", value, why, f"install {wanted} or newer (userspace-tso-enable)", True
        )
    return Capability("Open vSwitch", "ok", ".".join(map(str, version)), why, "", True)


def parse_version(said: str) -> tuple[int, ...] | None:
    """The first dotted version in a program's output: ``"x (y) 3.1.0" -> (3, 1, 0)``; None where there is none."""
    match = re.search(r"\d+(?:\.\d+)+", said)
    return tuple(int(part) for part in match[0].split(".")) if match else None


def _datapath() -> Capability:
    if choose_datapath() == "system":
        return Capability(
            "datapath", "ok", "system (kernel module openvswitch)", "carries the circuits' packets", "", False
        )
    why = "user space carries the circuits' packets at 1.7 Gbit/s or so in all: enough for the experiments shipped"
    return Capability("datapath", "ok", "netdev (user space; no openvswitch module)", why, "", False)


def _programs() -> list[Capability]:
    why = {
        "ip": "builds the testbed",
        "tc": "shapes its links",
        "mnexec": "starts processes inside Mininet nodes",
        "ping": "probes reachability",
        "ethtool": "sets offloads",
        "tcpdump": "writes --pcap files",
    }
    caps = []
    for name, reason in why.items():
        path = which(name)
        caps.append(
            Capability(
                name, "ok" if path else "missing", path or "not found", reason, SETUP, required=name != "tcpdump"
            )
        )
    return caps


def _root() -> Capability:
    found = os.geteuid() == 0
    value = "yes" if found else f"no (user id {os.geteuid()})"
    why = "namespaces, links and shaping need it; simulate, report and run --dry-run do not"
    return Capability("root", "ok" if found else "missing", value, why, "sudo ./heliograph ...", True)


def _python() -> Capability:
    good = OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON
    remedy = "HELIOGRAPH_PYTHON=/path/to/python3.12 ./heliograph setup"
    return Capability("Python", "ok" if good else "missing", platform.python_version(), "runs all of it", remedy, True)


def _cores() -> Capability:
    cores = len(os.sched_getaffinity(0))  # what this process may use, not what the machine has
    why = "agents, switches and controller share them; a starved one shows in the run's verdict"
    return Capability(
        "cores",
        "ok" if cores >= ENOUGH_CORES else "degraded",
        str(cores),
        why,
        f"give it {ENOUGH_CORES} or more",
        False,
    )


def _cpu_quota() -> Capability:
    why = "a control group that has used up its quota stands still, on idle cores"
    found = min(quotas(), key=lambda quota: quota.cores, default=None)
    if found is None:
        return Capability("CPU quota", "ok", "none", why, "", False)
    enough = found.cores >= ENOUGH_CORES
    return Capability("CPU quota", "ok" if enough else "degraded", found.allowed(), why, found.remedy(), False)


def _memory() -> Capability:
    available_bytes = psutil.virtual_memory().available
    state: State = "ok" if available_bytes >= ENOUGH_MEMORY_BYTES else "degraded"
    value = f"{available_bytes / 2**30:.1f} GiB available"
    return Capability(
        "memory", state, value, "an agent takes about 22 MiB", f"free {ENOUGH_MEMORY_BYTES / 2**30:.0f} GiB", False
    )


def _leftovers() -> Capability:
    from emulation.linux.ledger import LedgerError, dead_runs  # only doctor needs it

    why = "namespaces and processes of a run that died take up the machine"
    try:
        dead = [str(path) for path in dead_runs()]
    except LedgerError as error:
        if os.geteuid():
            value, remedy = "not checked: needs root", "sudo ./heliograph doctor"
        else:
            value, remedy = str(error), "as it says"
        return Capability("leftovers of ours", "degraded", value, why, remedy, False)
    value = ", ".join(dead) if dead else "none"
    return Capability("leftovers of ours", "degraded" if dead else "ok", value, why, "sudo ./heliograph clean", False)
