"""What circuit switches hold while a run is on, read again and again: circuits, and whatever the controller never made.

The controller's rules are one drop-all rule, and for each direction of a circuit one rule from port to
port (`controllers/core/switching.py`). Which circuits should stand is known when the run is over
(`emulation/verdict/circuit_rules.py`). What the drop-all rule counts is no measure: Open vSwitch credits the last
packets of a rule that is deleted to the rule that would match them now.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from controllers.core.switching import (
    CIRCUIT_PRIORITY,
    COOKIE,
    DROP_PRIORITY,
    ONE_STATION,
    circuit_cookie,
    circuit_rule,
)
from emulation.linux.liveness import call_unixctl
from emulation.monitor import openflow

# Of `bridge/dump-flows`; cookies since Open vSwitch 3.5.
_LINE = re.compile(
    r"(?:cookie=0x[0-9a-f]+, )?(?:table_id=(?P<table>\d+), )?"
    r"(?:duration=[^,]+, n_packets=(?P<packets>\d+), n_bytes=\d+, (?:n_offload_\w+=\d+, |idle_age=\d+, )*)?(?P<rule>.*)"
)
_OURS = re.compile(circuit_rule("[^ ,]+", "[^ ,]+") + "$|priority=0,actions=drop$")
_HIDDEN = ("254", "255")  # tables of what Open vSwitch adds for itself


@dataclass(frozen=True, slots=True)
class Socket:
    """Where a circuit switch is asked: for what it holds, and for its rules in words."""

    management: Path
    unixctl: Path


@dataclass(frozen=True, slots=True)
class FlowTable:
    """What one switch holds: circuits as (in port, out port), the rule that drops all else, and what is not of the
    controller's making, in words."""

    circuits: frozenset[tuple[int, int]]
    drops_all: bool
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableReading:
    """A table, as it was at some moment between `began_s` and `ended_s` (CLOCK_MONOTONIC)."""

    bridge: str
    began_s: float
    ended_s: float
    table: FlowTable


def sort(contents: openflow.Contents) -> tuple[FlowTable, list[openflow.Rule]]:
    """The table without what is foreign, and the rules that are."""
    circuits, foreign, drops_all = [], [], False
    for rule in contents.rules:
        ours = rule.table == 0 and rule.plain
        if (
            ours
            and rule.priority == CIRCUIT_PRIORITY
            and rule.in_port is not None
            and rule.source == ONE_STATION
            and rule.out_port is not None
            and rule.cookie == circuit_cookie(rule.in_port, rule.out_port)
        ):
            circuits.append((rule.in_port, rule.out_port))
        elif ours and rule.priority == DROP_PRIORITY and rule.matches_all and rule.drops and rule.cookie == COOKIE:
            drops_all = True
        else:
            foreign.append(rule)
    return FlowTable(frozenset(circuits), drops_all), foreign


def in_words(text: str) -> list[str]:
    """Rules of what `bridge/dump-flows` prints that do not look like the controller's, and what they counted."""
    found = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        read = _LINE.fullmatch(line)
        assert read is not None  # nothing of it is demanded
        if read["table"] in _HIDDEN:
            continue
        rule = f"table={read['table']}, {read['rule']}" if read["table"] else read["rule"]
        if not _OURS.match(rule):
            found.append(f"{rule}, which counted {read['packets'] or 0} packets")
    return found


class RuleWatch:
    """Reads the rules of every circuit switch each `period_s`; each reading takes the switch a fraction of a
    millisecond."""

    period_s = 1.0
    #: The sampler's other watches wait meanwhile; a switch that is stopped is theirs to see.
    patience_s = 0.05

    def __init__(self, sockets: Mapping[str, Socket]) -> None:
        """sockets: of each bridge."""
        self._sockets = deque(sockets.items())
        self._unread = list(sockets)
        self._tables: dict[FlowTable, FlowTable] = {}
        self._readings: list[TableReading] = []

    def sample(self, now_s: float) -> None:
        """Read every table once, or as many as answer in time. Raises OSError or ValueError where one refuses."""
        self._sockets.rotate(-1)  # a switch that does not answer in time hides the same others only once
        for bridge, asked in self._sockets:
            began_s = time.monotonic()
            try:
                contents = openflow.read(asked.management, self.patience_s)
                table, foreign = sort(contents)
                ended_s = time.monotonic()
                if foreign or contents.groups or contents.meters:
                    table = replace(table, foreign=self._described(bridge, asked, contents, foreign))
            except TimeoutError:
                return
            if bridge in self._unread:
                self._unread.remove(bridge)
            # the same table again and again is kept once
            self._readings.append(TableReading(bridge, began_s, ended_s, self._tables.setdefault(table, table)))

    def _described(
        self, bridge: str, asked: Socket, contents: openflow.Contents, foreign: list[openflow.Rule]
    ) -> tuple[str, ...]:
        words = []
        with contextlib.suppress(TimeoutError):  # what was seen is kept, in plainer words
            words = in_words(call_unixctl(asked.unixctl, "bridge/dump-flows", bridge, timeout_s=self.patience_s))
        # those that look like the controller's, but for what the words do not show
        words += [
            f"in port {rule.in_port}, out port {rule.out_port}, table {rule.table}, priority {rule.priority}, "
            f"cookie {rule.cookie:#x}{'' if rule.plain else ', with a timeout or a flag'}"
            for rule in foreign[len(words) :]
        ]
        words = [f"a rule that the controller did not make: {rule}" for rule in words]
        kinds = {"a group": contents.groups, "a meter": contents.meters}
        return (*words, *(f"{kind}, and the controller makes none" for kind, found in kinds.items() if found))

    def readings(self) -> list[TableReading]:
        """Every table that was read, in order."""
        return list(self._readings)

    def unread(self) -> list[str]:
        """Bridges whose rules could not be read even once."""
        return list(self._unread)
