"""Everything that looks at a run while its clock is on, put together: machine, queues, changes, circuit rules."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType

from emulation.monitor.circuit_rules import RuleWatch, Socket
from emulation.monitor.machine import MachineWatch, StoppedProcesses
from emulation.monitor.observed import Observed
from emulation.monitor.queues import QueueWatch
from emulation.monitor.sampler import Sampler, Watch
from emulation.run.components import Parts


class Observation:
    """A context manager around the time in which a run's clock is on; `observed()` once it was left."""

    def __init__(self, parts: Parts) -> None:
        """Opens what it reads from. Raises NamespaceError or OSError."""
        groups = _groups(parts)
        self._closing = ExitStack()
        self._machine = MachineWatch(groups)
        self._stops = StoppedProcesses({name: pid for pids in groups.values() for name, pid in pids.items()})
        self._queues = QueueWatch(parts.testbed.ends())
        self._closing.callback(self._queues.close)
        self._changes = parts.changes
        self._rules: RuleWatch | None = None
        watches: list[Watch] = [self._stops, self._changes, self._queues, self._machine]
        if parts.testbed.ovs is not None:
            ovs = parts.testbed.ovs
            self._rules = RuleWatch(
                {bridge: Socket(ovs.of(bridge).management(bridge), path) for bridge, path in ovs.unixctls.items()}
            )
            watches.append(self._rules)
        self._sampler = Sampler(watches)

    def __enter__(self) -> Observation:
        self._sampler.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sampler.__exit__(kind, error, trace)
        self._closing.close()

    def observed(self) -> Observed:
        """What was seen."""
        return Observed(
            machine=self._machine.use(self._stops.stops()),
            queues=self._queues.use(),
            changes=tuple(self._changes.changes()),
            rules=tuple(self._rules.readings()) if self._rules else (),
            unread_rules=tuple(self._rules.unread()) if self._rules else None,
            cost=self._sampler.cost(),
        )


def _groups(parts: Parts) -> Mapping[str, Mapping[str, int]]:
    """Group -> {name: pid} of every process of the run."""
    groups = {name: {name: pid} for name, pid in parts.pids().items()}
    groups["the agents"] = parts.fleet.pids()
    if parts.fleet.zygote_pid is not None:
        groups["the agents' parent"] = {"the agents' parent": parts.fleet.zygote_pid}
    if parts.captures is not None:
        groups["captures"] = {f"capture {number}": pid for number, pid in enumerate(parts.captures.pids())}
    return groups
