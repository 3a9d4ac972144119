"""Graphs of routers: shortest paths, next hops, and what of a user's Mininet `Topo` is refused."""

from __future__ import annotations

import re

import pytest
from cluster_cases import graph_with_leaves
from hypothesis import given, settings
from hypothesis import strategies as st
from mininet.topo import Topo

from topologies.graph import TopologyError, graph_of, leaf_spine_graph
from topologies.shape import links_of

RING = graph_with_leaves([("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")], {0: "a", 1: "b", 2: "c", 3: "d"})


def test_path_i_of_a_leaf_spine_crosses_spine_i():
    graph = leaf_spine_graph(3, 4)
    assert graph.paths("kl0", "kl2") == tuple(("kl0", f"ks{spine}", "kl2") for spine in range(4))
    assert graph.paths("kl1", "kl1") == (("kl1",),)
    assert [graph.role("kl0", "ks1"), graph.role("ks1", "kl0")] == ["uplink", "downlink"]


def test_on_a_ring_of_leaves_opposite_ends_have_two_paths_and_neighbours_one():
    assert RING.paths("a", "c") == (("a", "b", "c"), ("a", "d", "c"))
    assert RING.paths("a", "b") == (("a", "b"),)
    assert RING.role("a", "b") == "crosslink"


def reached_from(start, links):
    found = {start}
    while more := {end for link in links if found & set(link) for end in link} - found:
        found |= more
    return found


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda ends: ends[0] < ends[1]), min_size=1))
@settings(max_examples=100, deadline=None)
def test_every_path_is_a_shortest_one_follows_next_hops_and_is_there_once(ends):
    links = [(f"n{a}", f"n{b}") for a, b in sorted(ends)]
    start, end = links[0][0], links[-1][1]
    if end not in reached_from(start, links):
        with pytest.raises(TopologyError, match="cannot reach"):
            graph_with_leaves(links, {0: start, 1: end})
        return
    graph = graph_with_leaves(links, {0: start, 1: end})
    paths = graph.paths(start, end)
    assert len(set(paths)) == len(paths)
    assert len({len(path) for path in paths}) == 1
    known = {frozenset(link) for link in links}
    for path in paths:
        assert (path[0], path[-1]) == (start, end)
        assert all(frozenset(link) in known for link in links_of(path))
        assert all(b in graph.next_hops(a, end) for a, b in links_of(path))


class Rails(Topo):
    """A switch for each rank: what serves one rank only carries `rank`."""

    def build(self, racks, instances_per_rack, gpus_per_instance):
        for rank in range(gpus_per_instance):
            self.addSwitch(f"rail{rank}", rack=list(range(racks)), rank=rank)
        for rank in range(1, gpus_per_instance):
            self.addLink("rail0", f"rail{rank}")


def test_a_rail_serves_one_rank_of_every_rack_and_kv_stays_within_it():
    graph = graph_of(Rails(racks=3, instances_per_rack=2, gpus_per_instance=2), racks=3, ranks=2, prefix="k-")
    assert graph.leaf_of == {(rack, rank): f"k-rail{rank}" for rack in range(3) for rank in range(2)}
    assert graph.paths_between(0, 2, 1) == (("k-rail1",),)


def topo(*switches, links=()):
    """Switches as (name, data)."""
    made = Topo()
    for name, data in switches:
        made.addSwitch(name, **data)
    for a, b, data in links:
        made.addLink(a, b, **data)
    return made


TWO = (("a", {"rack": 0}), ("b", {"rack": 1}))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (topo(), "0 switches: give 1 to 500"),
        (topo(("A", {"rack": 0})), "switch 'A': a name is a lower-case letter"),
        (topo(("a", {"rack": 0})), "no switch serves rack 1, rank 0: give one addSwitch(name, rack=1)"),
        (topo(("a", {"rack": 0}), ("b", {"rack": [0, 1]})), "a and b both serve rack 0, rank 0"),
        (topo(("a", {"rack": 2})), "switch a: rack 2; this cluster has racks 0 to 1"),
        (topo(("a", {"rack": True})), "switch a: rack True"),
        (topo(("a", {"rank": 0})), "switch a: rank 0 without a rack"),
        (topo(("a", {"rack": 0, "rank": 1})), "switch a: rank 1; this cluster has ranks 0 to 0"),
        (topo(*TWO), "b cannot reach a: join all leaves by links"),
        (topo(*TWO, links=[("a", "b", {"nic_rates": 0})]), "the link a-b: nic_rates is 0"),
        (topo(*TWO, links=[("a", "b", {}), ("b", "a", {})]), "is there twice or leads to itself"),
    ],
)
def test_a_topo_that_is_no_packet_fabric_is_refused_with_the_node_or_link(made, said):
    with pytest.raises(TopologyError, match=re.escape(said)):
        graph_of(made, racks=2, ranks=1)


def test_hosts_are_refused_for_nics_are_attached_by_rack():
    made = topo(*TWO, links=[("a", "b", {})])
    made.addHost("h0")
    with pytest.raises(TopologyError, match="host 'h0'"):
        graph_of(made, racks=2, ranks=1)
