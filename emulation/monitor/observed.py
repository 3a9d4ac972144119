"""What was seen of the machine, the queues, the network and its rules while a run's clock was on."""

from __future__ import annotations

from dataclasses import dataclass

from emulation.monitor.changes import Change
from emulation.monitor.circuit_rules import TableReading
from emulation.monitor.machine import MachineUse
from emulation.monitor.queues import QueueUse
from emulation.monitor.sampler import SamplerCost


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen. `rules`: what the circuit switches held; `unread_rules`: those of which none were ever read, None
    without circuits."""

    machine: MachineUse | None = None
    queues: QueueUse | None = None
    changes: tuple[Change, ...] = ()
    rules: tuple[TableReading, ...] = ()
    unread_rules: tuple[str, ...] | None = None
    cost: SamplerCost | None = None
