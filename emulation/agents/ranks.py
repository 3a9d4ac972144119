"""Shortest remaining first over a whole fabric: which of the few levels of a priority queue each flow gets. Pure.

A flow crosses links; a link carries `capacity` flows at their full rate (a GPU NIC one, a pooled uplink as many as it
has uplinks). Flows are ordered by what remains of them. Where a link has more flows than it carries

    1. none is at a level before that of a flow ahead of it in the order, and
    2. one that has `capacity` flows or more ahead of it is at a level behind all of them.

So the levels of a link tell its order apart as far as it matters, a link that carries all its flows asks for nothing,
and strict priority on every link does the rest: who cannot send holds back nobody.

A level is a class of every queue on the path, and packets that wait in one are overtaken by those that follow in a
better one: a flow that moves up has its packets reordered, and one that moves down leaves a queue ahead of the flow it
makes room for. So a flow keeps its level for as long as the order allows, and a new one goes where it moves nobody.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from emulation.network.dscp import LEVELS

Name = TypeVar("Name", bound=Hashable)

#: Of a flow that meets nobody: shorter and longer ones find room on both sides.
MIDDLE = LEVELS // 2 - 1


@dataclass(slots=True)
class RankedFlow(Generic[Name]):
    """One flow: the links on its path, the bytes that have not been delivered, its place among equals, its level."""

    name: Name
    links: tuple[Hashable, ...]
    remaining_bytes: int
    number: int
    level: int | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Least remaining first; of equals the one that started first."""
        return self.remaining_bytes, self.number


@dataclass(slots=True)
class _Link(Generic[Name]):
    """A link while its flows are levelled, in order: `taken` of them have theirs, up to `last_level`."""

    capacity: int
    flows: list[RankedFlow[Name]] = field(default_factory=list)
    taken: int = 0
    last_level: int = 0

    @property
    def crowded(self) -> bool:
        return len(self.flows) > self.capacity

    def least_level(self) -> int:
        """The first level that the next flow may have, given those ahead of it."""
        if not self.crowded or not self.taken:
            return 0
        return self.last_level + (self.taken >= self.capacity)

    def room_before(self) -> int | None:
        """The last level that is better than those of all that follow the next flow; None where nobody does."""
        known = [flow.level for flow in self.flows[self.taken + 1 :] if flow.level is not None]
        return min(known) - 1 if self.crowded and known else None

    def take(self, level: int) -> None:
        self.taken += 1
        self.last_level = max(self.last_level, level)


class Ranks(Generic[Name]):
    """The flows of a fabric and their levels. `capacities`: link -> flows that it carries at their full rate (one where
    it is not named)."""

    def __init__(self, capacities: Mapping[Any, int]) -> None:
        self._capacities = capacities
        self._flows: dict[Name, RankedFlow[Name]] = {}
        self._started = 0

    def start(self, name: Name, links: Sequence[Hashable], remaining_bytes: int) -> None:
        """A flow has its first byte to send. ValueError where it is there already."""
        if name in self._flows:
            raise ValueError(f"flow {name} has started before")
        self._flows[name] = RankedFlow(name, tuple(links), remaining_bytes, self._started)
        self._started += 1

    def end(self, name: Name) -> None:
        """A flow is over; one that is not there any more is nobody's fault."""
        self._flows.pop(name, None)

    def remaining(self, name: Name, remaining_bytes: int) -> bool:
        """A flow tells what remains of it; whether it has overtaken another (or was overtaken)."""
        flow = self._flows.get(name)
        if flow is None or flow.remaining_bytes == remaining_bytes:
            return False
        before, flow.remaining_bytes = flow.order, remaining_bytes
        low, high = sorted((before, flow.order))
        return any(low < other.order < high for other in self._flows.values() if other is not flow)

    def rank(self) -> dict[Name, int]:
        """The new levels of those flows whose level has changed; a new flow is one of them."""
        before = {name: flow.level for name, flow in self._flows.items()}
        ordered = sorted(self._flows.values(), key=lambda flow: (flow.remaining_bytes, flow.number))
        levels = self._levels(ordered, keep=True)
        if max(levels, default=0) >= LEVELS:
            levels = self._levels(ordered, keep=False)
            spare = max(LEVELS - 1 - max(levels), 0) // 2
            # who finds no level of its own shares the last one with others of that kind
            levels = [min(level + spare, LEVELS - 1) for level in levels]
        for flow, level in zip(ordered, levels, strict=True):
            flow.level = level
        return {flow.name: level for flow, level in zip(ordered, levels, strict=True) if level != before[flow.name]}

    def _levels(self, ordered: Sequence[RankedFlow[Name]], *, keep: bool) -> list[int]:
        """A level for each flow. keep: nobody moves up, and a new flow goes where nobody has to move."""
        links: dict[Hashable, _Link[Name]] = {}
        for flow in ordered:
            for link in flow.links:
                links.setdefault(link, _Link(self._capacities.get(link, 1))).flows.append(flow)
        levels = []
        for flow in ordered:
            path = [links[link] for link in flow.links]
            level = max((link.least_level() for link in path), default=0)
            if keep and flow.level is not None:
                level = max(level, flow.level)
            elif keep:
                rooms = [room for link in path if (room := link.room_before()) is not None]
                level = max(level, min(rooms, default=MIDDLE))
            levels.append(level)
            for link in path:
                link.take(level)
        return levels
