"""What was seen of the machine, the queues, the network and its rules while a run's clock was on."""

from __future__ import annotations

from dataclasses import dataclass

from emulation.monitor.changes import Change
from emulation.monitor.machine import MachineUse
from emulation.monitor.queues import QueueUse
from emulation.monitor.sampler import SamplerCost


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen. `rule_faults`: rules on circuit switches that should not be there, in words;
    `unread_rules`: circuit switches of which none were ever read, None without circuits."""

    machine: MachineUse | None = None
    queues: QueueUse | None = None
    changes: tuple[Change, ...] = ()
    rule_faults: tuple[str, ...] = ()
    unread_rules: tuple[str, ...] | None = None
    cost: SamplerCost | None = None
