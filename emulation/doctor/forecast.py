"""`./heliograph doctor --experiment FILE`: will the file be valid on this machine, and what would make it so?

Each fabric's own network is built (without controller and agents), every prefill NIC sends to a decode NIC at once, and
what that costs is read: the shares of the links' rates that arrived, the cores, the timers. An experiment seldom sends
on all NICs at once, so a machine that carries this carries the run. Where it does not, the smallest whole dilation that
the figures call for is tried, and said where it does. The rate_scale of the same emulated rate is said beside it only
where the figures of that try would do without the dilation too: a smaller load does not make a late timer count less.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, replace

from controllers.core.switching import circuit_rule
from emulation.linux import procfs
from emulation.linux.ledger import RunLedger
from emulation.network.ovs import OpenVSwitchError
from emulation.network.shaping import ShapingError
from emulation.network.testbed import Testbed
from emulation.plan.fabric_plan import FabricPlan
from emulation.probe.link import LINK_RATE_TOLERANCE, Goodput, ProbedPath, ProbeError, goodputs
from emulation.run.calibration import TIMER_S, timer_lateness_s
from emulation.run.components import testbed_of
from emulation.verdict.measures import LARGEST_DILATION, percentile
from emulation.verdict.thresholds import ARRIVAL_LAG_P99_S
from experiments.schema.spec import Experiment
from process.interrupts import NUMBERS, ignore
from process.rights import die_with
from topologies.cluster import Cluster

PROBE_PORT = 7101
#: A machine that has this much of its cores at work under full load has nothing left for a burst.
PEAK_PERCENT = 75.0
LOAD_S, LEAST_BYTES = 1.0, 1_300_000
#: Cores that others have before anything is built, mean over this long: what is measured beside them says nothing.
BACKGROUND_S, BUSY_BEFORE_PERCENT = 1.0, 50.0
#: The rules of one circuit switch are a message.
JOIN_S = 30.0
#: Each try builds a network and loads it for a second and more.
TRIES = 4


class MachineBusy(RuntimeError):
    """Other programs have so much of the machine that nothing can be said of it."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the machine did while every prefill NIC of a fabric was sending: emulated bits per second asked for and
    carried, the worst link's share of its rate (None on packets, where paths share uplinks), mean of all cores in
    percent, and the lateness of timers (p99, wall seconds)."""

    asked_bps: float
    carried_bps: float
    worst_ratio: float | None
    cores_percent: float
    timer_lateness_s: float

    def needed(self, time_dilation: float) -> float:
        """By how much the load must shrink for the run to be valid; 1 or less: it is."""
        factors = [self.cores_percent / PEAK_PERCENT, self.timer_lateness_s / (ARRIVAL_LAG_P99_S * time_dilation)]
        if self.worst_ratio is not None and self.worst_ratio < 1 - LINK_RATE_TOLERANCE:
            factors.append(1.05 / self.worst_ratio)
        return max(factors)


@dataclass(frozen=True, slots=True)
class Advice:
    """Of one fabric. `dilation`, at which the load was `tried`, makes it valid (None: it is valid, or none was found);
    `rate_scale` would probably do so instead (None: it would not). Where none was found, `largest_tried` is the
    largest dilation that was tried (None: none was), and `ended` says why no larger one."""

    fabric: str
    load: Load
    valid: bool
    dilation: float | None = None
    rate_scale: float | None = None
    tried: Load | None = None
    largest_tried: float | None = None
    ended: str = ""

    def sentence(self) -> str:
        """In words."""
        load = self.load
        figures = [f"{load.carried_bps / 1e6:.0f} Mbit/s at once took {load.cores_percent:.0f} % of the cores"]
        if load.worst_ratio is not None:
            figures.append(f"the slowest link carried {load.worst_ratio:.3f} of its rate")
        figures.append(f"timers were {load.timer_lateness_s * 1e3:.2f} ms late (p99)")
        said = f"{self.fabric}: {', '.join(figures)}: "
        if self.valid:
            return said + "it should be valid here"
        said += "it will not be valid here"
        if self.dilation is None:
            tried = "" if self.largest_tried is None else f", nor with scale.time_dilation={self.largest_tried:g}"
            return f"{said}{tried} ({self.ended})"
        cores = "" if self.tried is None else f" (tried: {self.tried.cores_percent:.0f} % of the cores)"
        instead = "" if self.rate_scale is None else f", and probably scale.rate_scale={self.rate_scale:.2g} instead"
        return f"{said}; scale.time_dilation={self.dilation:g}{cores} would make it so{instead}"


def advise(experiment: Experiment, ledger: RunLedger, datapath: str) -> list[Advice]:
    """One piece of advice for each fabric with KV links of its own. Raises MachineBusy, and TestbedError,
    OpenVSwitchError or ProbeError where the network cannot be built at all."""
    found = []
    background_percent = _busy_percent(BACKGROUND_S)
    if background_percent > BUSY_BEFORE_PERCENT:
        raise MachineBusy(f"other programs have {background_percent:.0f} % of the cores: end them, then ask again")
    for fabric in experiment.fabrics:
        if fabric.kind != "none":
            found.append(_advise(FabricPlan(experiment, fabric, experiment.seeds[0], ()), ledger, datapath))
    return found


def _advise(plan: FabricPlan, ledger: RunLedger, datapath: str) -> Advice:
    scale = plan.experiment.scale
    load = tried = measure(plan, ledger, datapath)
    dilation, ended = scale.time_dilation, f"{TRIES} were tried"
    if load.needed(dilation) <= 1:
        return Advice(plan.fabric.name, load, valid=True)
    for _ in range(TRIES):
        wanted = math.ceil(dilation * max(tried.needed(dilation), 1.01))
        if wanted > LARGEST_DILATION:
            ended = f"it seems to need {wanted:g}, and none beyond {LARGEST_DILATION} is advised"
            break
        try:
            tried = measure(_dilated(plan, wanted), ledger, datapath)
        except ShapingError as error:
            ended = f"{wanted:g} cannot be tried: {error}"
            break
        dilation = wanted
        if tried.needed(dilation) <= 1:
            rate_scale = scale.rate_scale * scale.time_dilation / dilation
            undilated = tried.needed(scale.time_dilation) <= 1
            return Advice(plan.fabric.name, load, False, dilation, rate_scale if undilated else None, tried)
    largest = dilation if dilation > scale.time_dilation else None
    return Advice(plan.fabric.name, load, False, largest_tried=largest, ended=ended)


def _dilated(plan: FabricPlan, dilation: float) -> FabricPlan:
    scale = plan.experiment.scale.model_copy(update={"time_dilation": dilation})
    return replace(plan, experiment=plan.experiment.model_copy(update={"scale": scale}))


def measure(plan: FabricPlan, ledger: RunLedger, datapath: str) -> Load:
    """Build the fabric's network, load it, remove it."""
    cluster = plan.cluster()
    with ExitStack() as closing:
        closing.callback(ledger.remove)
        testbed = closing.enter_context(testbed_of(plan, cluster, ledger, datapath).build(controller_listens=False))
        pairs = _pairs(plan, cluster)
        if plan.fabric.kind == "ocs":
            _join(testbed, cluster, pairs)
        paths = _paths(testbed, cluster, pairs)
        before = procfs.cores()
        found, late_s = _send(paths, plan)
        cores_percent = _busy_percent(0.0, before)
    ratios = [each.goodput_bps / plan.kv_goodput_bps for each in found]
    return Load(
        asked_bps=len(paths) * plan.kv_goodput_bps,
        carried_bps=sum(each.goodput_bps for each in found),
        worst_ratio=min(ratios) if plan.fabric.kind == "ocs" else None,
        cores_percent=cores_percent,
        timer_lateness_s=percentile(late_s, 99) or 0.0,
    )


def _busy_percent(wait_s: float, before: Sequence[procfs.CoreTimes] | None = None) -> float:
    """Mean of all cores since `before`, or over the `wait_s` that are waited for, in percent; steal counts as busy."""
    before = procfs.cores() if before is None else before
    time.sleep(wait_s)
    spans = list(zip(before, procfs.cores(), strict=True))
    idle_s = sum(now.idle_s - then.idle_s for then, now in spans)
    taken_s = sum((now.busy_s + now.steal_s) - (then.busy_s + then.steal_s) for then, now in spans)
    return 100 * taken_s / (taken_s + idle_s)


def _send(paths: Sequence[ProbedPath], plan: FabricPlan) -> tuple[list[Goodput], list[float]]:
    """All paths at once for a second, and the lateness of timers meanwhile; from several processes, for the threads of
    one hold each other up."""
    workers = min(len(paths), 2 * (os.cpu_count() or 1))
    transfer_bytes = max(LEAST_BYTES, round(plan.kv_goodput_bps / 8 * LOAD_S))
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers + 1, mp_context=context, initializer=_be_worker, initargs=(os.getpid(),)) as pool:
        try:
            late, shares = _submitted(pool, [paths[n::workers] for n in range(workers)], transfer_bytes, plan)
            return [goodput for share in shares for goodput in share.result()], late.result()
        except ProbeError as error:
            raise ProbeError(f"{plan.fabric.name}: {error}") from error
        except BrokenProcessPool as error:
            raise ProbeError(f"{plan.fabric.name}: a process that sends was ended from outside") from error


def _submitted(
    pool: ProcessPoolExecutor, shares: Sequence[Sequence[ProbedPath]], transfer_bytes: int, plan: FabricPlan
) -> tuple[Future[list[float]], list[Future[list[Goodput]]]]:
    """Start all of it. Signals wait meanwhile: a process has this one's handlers until its initializer runs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    try:
        late = pool.submit(timer_lateness_s, round(LOAD_S / TIMER_S))
        send = functools.partial(goodputs, transfer_bytes=transfer_bytes, congestion_control=plan.congestion_control)
        return late, [pool.submit(send, share) for share in shares]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _be_worker(parent_pid: int) -> None:
    """A signal to the terminal is the parent's to act on; SIGTERM is how the pool ends its own processes. One that
    outlived a killed parent would hold its lock."""
    die_with(parent_pid)
    ignore()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)


def _pairs(plan: FabricPlan, cluster: Cluster) -> list[tuple[str, str]]:
    """As many prefill instances as can send at once, each to a decode instance of its own."""
    free = {i.name for i in cluster.instances if i.role == "decode"}
    pairs = []
    for prefill, decodes in plan.experiment.reachable().items():
        decode = next((name for name in decodes if name in free), None)
        if decode is not None:
            free.discard(decode)
            pairs.append((prefill, decode))
    return pairs


def _paths(testbed: Testbed, cluster: Cluster, pairs: Sequence[tuple[str, str]]) -> list[ProbedPath]:
    addresses = {instance.name: instance.gpu_ips for instance in cluster.instances}
    return [
        ProbedPath(testbed.namespace(p), source, testbed.namespace(d), destination, destination_port=PROBE_PORT)
        for p, d in pairs
        for source, destination in zip(addresses[p], addresses[d], strict=True)
    ]


def _join(testbed: Testbed, cluster: Cluster, pairs: Sequence[tuple[str, str]]) -> None:
    """Circuits by hand: there is no controller."""
    assert testbed.ovs is not None
    for plane in cluster.planes:
        rules = "".join(
            f"{circuit_rule(plane.ports[a], plane.ports[b])}\n"
            for pair in pairs
            for a, b in (pair, pair[::-1])
            if a in plane.ports and b in plane.ports
        )
        target = f"unix:{testbed.ovs.of(plane.bridge).directory}/{plane.bridge}.mgmt"
        command = ["ovs-ofctl", "-O", "OpenFlow13", "add-flows", target, "-"]
        try:
            done = subprocess.run(command, input=rules, capture_output=True, text=True, check=False, timeout=JOIN_S)
        except subprocess.TimeoutExpired as error:
            raise OpenVSwitchError(f"{plane.bridge}: circuits were not laid within {JOIN_S:g} s") from error
        if done.returncode:
            raise OpenVSwitchError(f"{plane.bridge}: circuits were not laid: {done.stderr.strip()}")
