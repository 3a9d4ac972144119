"""The routers of a packet fabric and the links between them: who has shortest paths to whom, and over which next hops.

Pure data. A leaf-spine is one such graph; a user's own Mininet `Topo` is another (`graph_of`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from mininet.topo import Topo

#: The routers of a path, from the leaf of its source to the leaf of its destination.
Path: TypeAlias = tuple[str, ...]

MOST_ROUTERS, MOST_PATHS = 500, 250
_NAME = re.compile(r"[a-z][a-z0-9-]{0,10}")


class TopologyError(ValueError):
    """A topology that cannot be a packet fabric: says which node or link, and what to write."""


@dataclass(frozen=True, slots=True)
class RouterLink:
    """A link between two routers; `nic_rates`: its rate each way, in rates of one GPU NIC."""

    a: str
    b: str
    nic_rates: float = 1.0


@dataclass(frozen=True)
class RouterGraph:
    """Routers in order, links in order, and `leaf_of`: the router that (rack, rank) is attached to.

    `racks` x `ranks`: what `leaf_of` covers. Raises TopologyError where a rack or rank has no leaf, a link joins what
    is no router, or two leaves cannot reach each other.
    """

    routers: tuple[str, ...]
    links: tuple[RouterLink, ...]
    leaf_of: Mapping[tuple[int, int], str]

    def __post_init__(self) -> None:
        for link in self.links:
            for end in (link.a, link.b):
                if end not in self.routers:
                    raise TopologyError(f"the link {link.a}-{link.b}: {end!r} is no router of this topology")
        for destination in self.leaves:
            alone = [leaf for leaf in self.leaves if leaf not in self._distances[destination]]
            if alone:
                raise TopologyError(f"{', '.join(alone)} cannot reach {destination}: join all leaves by links")

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """The routers that GPU NICs are attached to, in order."""
        attached = set(self.leaf_of.values())
        return tuple(router for router in self.routers if router in attached)

    @cached_property
    def neighbours(self) -> dict[str, list[str]]:
        """Router -> the routers at the other ends of its links, in the order of the links."""
        found: dict[str, list[str]] = {router: [] for router in self.routers}
        for link in self.links:
            found[link.a].append(link.b)
            found[link.b].append(link.a)
        return found

    @cached_property
    def _distances(self) -> dict[str, dict[str, int]]:
        """Destination -> router -> hops, for every router as a destination."""
        found = {}
        for destination in self.routers:
            distance, edge = {destination: 0}, [destination]
            while edge:
                after = []
                for router in edge:
                    for neighbour in self.neighbours[router]:
                        if neighbour not in distance:
                            distance[neighbour] = distance[router] + 1
                            after.append(neighbour)
                edge = after
            found[destination] = distance
        return found

    def next_hops(self, router: str, destination: str) -> list[str]:
        """The neighbours of `router` on shortest paths to `destination`, in the order of the links."""
        distance = self._distances[destination]
        return [each for each in self.neighbours[router] if distance.get(each, -1) == distance[router] - 1]

    def tier(self, router: str) -> int:
        """Hops to the nearest leaf: 0 for a leaf, 1 for a spine."""
        return min(self._distances[leaf][router] for leaf in self.leaves if router in self._distances[leaf])

    @cached_property
    def _paths(self) -> dict[tuple[str, str], tuple[Path, ...]]:
        return {}

    def paths(self, source_leaf: str, destination_leaf: str) -> tuple[Path, ...]:
        """Every shortest path between two leaves, in the order of the links; of a leaf-spine, path i crosses spine i.

        A path within one leaf is that leaf alone. Raises TopologyError past 250 paths.
        """
        pair = source_leaf, destination_leaf
        if pair not in self._paths:
            found = []
            for path in self._walk(source_leaf, destination_leaf):
                found.append(path)
                if len(found) > MOST_PATHS:
                    raise TopologyError(
                        f"more than {MOST_PATHS} shortest paths from {source_leaf} to {destination_leaf}"
                    )
            self._paths[pair] = tuple(found)
        return self._paths[pair]

    def _walk(self, router: str, destination: str) -> Iterator[Path]:
        if router == destination:
            yield (router,)
            return
        for neighbour in self.next_hops(router, destination):
            for rest in self._walk(neighbour, destination):
                yield router, *rest

    def paths_between(self, source_rack: int, destination_rack: int, rank: int) -> tuple[Path, ...]:
        """The shortest paths of a rank's KV from one rack to another."""
        return self.paths(self.leaf_of[source_rack, rank], self.leaf_of[destination_rack, rank])

    def role(self, router: str, peer: str) -> str:
        """What the end of a link at `router` is: an uplink, a downlink, or between routers of one tier a crosslink."""
        here, there = self.tier(router), self.tier(peer)
        return "crosslink" if here == there else "uplink" if here < there else "downlink"


def leaf_spine_graph(
    racks: int, spines: int, *, ranks: int = 1, nic_rates: float = 1.0, leaf: str = "kl", spine: str = "ks"
) -> RouterGraph:
    """A leaf for each rack, and a link of every leaf to every spine. Raises TopologyError outside 1 to 250 of each."""
    if not 1 <= spines <= 250 or not 1 <= racks <= 250:
        raise TopologyError(f"{racks} leaves and {spines} spines: give 1 to 250 of each")
    leaves, tops = [f"{leaf}{i}" for i in range(racks)], [f"{spine}{i}" for i in range(spines)]
    return RouterGraph(
        (*leaves, *tops),
        tuple(RouterLink(a, b, nic_rates) for a in leaves for b in tops),
        {(rack, rank): leaves[rack] for rack in range(racks) for rank in range(ranks)},
    )


def graph_of(topo: Topo, *, racks: int, ranks: int, prefix: str = "") -> RouterGraph:
    """The graph that a user's Mininet `Topo` describes.

    Its switches are the routers. One that GPU NICs are attached to carries `rack` (a number, or a list of them) and,
    where it serves one rank only (a rail), `rank`. A link may carry `nic_rates`, its rate in rates of one GPU NIC.
    `prefix` goes before every router's name. Raises TopologyError with the node or link that is wrong.
    """
    if hosts := topo.hosts():
        raise TopologyError(f"host {hosts[0]!r}: the GPU NICs are attached by `rack`; give switches and links only")
    switches: Sequence[str] = topo.switches(sort=False)
    if not 1 <= len(switches) <= MOST_ROUTERS:
        raise TopologyError(f"{len(switches)} switches: give 1 to {MOST_ROUTERS}")
    leaf_of: dict[tuple[int, int], str] = {}
    for name in switches:
        if not _NAME.fullmatch(name):
            raise TopologyError(f"switch {name!r}: a name is a lower-case letter and up to 10 of a-z, 0-9 and -")
        for place in _places(name, topo.nodeInfo(name), racks, ranks):
            if place in leaf_of:
                other = leaf_of[place].removeprefix(prefix)
                raise TopologyError(
                    f"switches {other} and {name} both serve rack {place[0]}, rank {place[1]}; keep one"
                )
            leaf_of[place] = prefix + name
    for rack in range(racks):
        for rank in range(ranks):
            if (rack, rank) not in leaf_of:
                raise TopologyError(f"no switch serves rack {rack}, rank {rank}: give one addSwitch(name, rack={rack})")
    return RouterGraph(tuple(prefix + name for name in switches), tuple(_links(topo, prefix)), leaf_of)


def _places(name: str, data: Mapping[str, Any], racks: int, ranks: int) -> Iterator[tuple[int, int]]:
    """The (rack, rank) that a switch serves; none where it carries no `rack`."""
    of, rank = data.get("rack"), data.get("rank")
    if of is None:
        if rank is not None:
            raise TopologyError(f"switch {name}: rank {rank} without a rack; give rack= too")
        return
    for rack in of if isinstance(of, list | tuple | range) else (of,):
        if isinstance(rack, bool) or not isinstance(rack, int) or not 0 <= rack < racks:
            raise TopologyError(f"switch {name}: rack {rack!r}; this cluster has racks 0 to {racks - 1}")
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks):
            raise TopologyError(f"switch {name}: rank {rank!r}; this cluster has ranks 0 to {ranks - 1}")
        for each in range(ranks) if rank is None else (rank,):
            yield rack, each


def _links(topo: Topo, prefix: str) -> Iterator[RouterLink]:
    joined: set[frozenset[str]] = set()
    for a, b, data in topo.links(sort=False, withInfo=True):
        # Mininet may have turned the ends of a link round; these say which was given first
        a, b = data.get("node1", a), data.get("node2", b)
        rate = data.get("nic_rates", 1.0)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1000:
            raise TopologyError(f"the link {a}-{b}: nic_rates is {rate!r}; give a number above 0 and at most 1000")
        if a == b or frozenset((a, b)) in joined:
            raise TopologyError(f"the link {a}-{b} is there twice or leads to itself; give one, with nic_rates")
        joined.add(frozenset((a, b)))
        yield RouterLink(prefix + a, prefix + b, float(rate))
