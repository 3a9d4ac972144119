"""The rules that circuit switches hold, read over their control socket: none may be there that the controller did not
make, and no two circuits may share a port.

The controller's rules are one drop-all rule, and for each direction of a circuit one rule from port to
port (`controllers/core/switching.py`). What the drop-all rule counts is no measure: Open vSwitch credits the last
packets of a rule that is deleted to the rule that would match them now.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controllers.core.switching import circuit_rule
from emulation.linux.watch import call_unixctl

_COUNTERS = re.compile(r"^duration=[^,]+, n_packets=(\d+), n_bytes=\d+, (?:idle_age=\d+, )?")
_CIRCUIT = re.compile(circuit_rule("([^ ,]+)", "([^ ,]+)") + "$")
_DROP_ALL = re.compile(r"priority=0,actions=drop$")
_HIDDEN = re.compile(r"^table_id=25[45],")  # what Open vSwitch adds for itself


@dataclass(frozen=True, slots=True)
class Rules:
    """What one table holds: circuits as (in port, out port), and rules of others, each with the packets it counted."""

    circuits: tuple[tuple[str, str], ...]
    foreign: tuple[tuple[str, int], ...]

    def faults(self) -> list[str]:
        """What is wrong, in words."""
        found = [
            f"a rule that the controller did not make: {rule}, which counted {packets} packets"
            for rule, packets in self.foreign
        ]
        for side, ports in zip(("into", "out of"), zip(*self.circuits, strict=True), strict=False):
            found += [
                f"two circuits lead {side} port {port}" for port in sorted({p for p in ports if ports.count(p) > 1})
            ]
        return found


def parse(text: str) -> Rules:
    """Of what `bridge/dump-flows` prints."""
    circuits, foreign = [], []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        if _HIDDEN.match(line):
            continue
        counters = _COUNTERS.match(line)
        packets = int(counters[1]) if counters else 0
        rule = line[counters.end() :] if counters else line
        if circuit := _CIRCUIT.match(rule):
            circuits.append((circuit[1], circuit[2]))
        elif not _DROP_ALL.match(rule):
            foreign.append((rule, packets))
    return Rules(tuple(circuits), tuple(foreign))


class RuleWatch:
    """Reads the rules of every circuit switch each `period_s`; each reading takes the switch a fraction of a
    millisecond."""

    period_s = 1.0
    #: The sampler's other watches wait meanwhile; a switch that is stopped is theirs to see.
    patience_s = 0.05

    def __init__(self, unixctls: Mapping[str, Path]) -> None:
        """unixctls: bridge -> control socket of its ovs-vswitchd."""
        self._unixctls = deque(unixctls.items())
        self._unread = list(unixctls)
        self._faults: dict[str, str] = {}

    def sample(self, now_s: float) -> None:
        """Read every table once, or as many as answer in time. Raises OSError or ValueError where one refuses."""
        self._unixctls.rotate(-1)  # a switch that does not answer in time hides the same others only once
        for bridge, unixctl in self._unixctls:
            try:
                text = call_unixctl(unixctl, "bridge/dump-flows", bridge, timeout_s=self.patience_s)
            except TimeoutError:
                return
            if bridge in self._unread:
                self._unread.remove(bridge)
            rules = parse(text)
            for fault in rules.faults():
                # the same rule again, with another count: the last one is kept
                self._faults[f"{bridge}: {fault.partition(', which')[0]}"] = f"{bridge}: {fault}"

    def faults(self) -> list[str]:
        """Every fault seen, in words."""
        return list(self._faults.values())

    def unread(self) -> list[str]:
        """Bridges whose rules could not be read even once."""
        return list(self._unread)
