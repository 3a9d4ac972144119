"""The routers of a packet fabric: a leaf-spine by its uplinks, or a user's own Mininet `Topo`."""

from __future__ import annotations

from functools import lru_cache

from mininet.topo import Topo

from inputs.plugin_file import PluginError, file_of, load, sha256, start
from topologies.graph import RouterGraph, TopologyError, graph_of
from topologies.shape import ClusterShape

#: Goes before the names of a user's routers, so that they never meet those of the cluster.
PREFIX = "k-"


@lru_cache(maxsize=64)
def leaf_spine(shape: ClusterShape, uplinks: int, pooled: bool) -> RouterGraph:
    """`ClusterShape.leaf_spine`, made once: its paths are asked for many times."""
    return shape.leaf_spine(uplinks, pooled=pooled)


def user_graph(topology: str, shape: ClusterShape) -> RouterGraph:
    """The graph of a plug-in, `/folder/module.py:Class`, for a cluster of this shape.

    The class is a Mininet `Topo` whose `build` takes `racks`, `instances_per_rack` and `gpus_per_instance`. Raises
    TopologyError, in one line, whatever the plug-in does.
    """
    try:
        return _user_graph(topology, sha256(file_of(topology)), shape)
    except PluginError as error:
        raise TopologyError(f"topology {topology!r}: {error}") from error


@lru_cache(maxsize=64)
def _user_graph(topology: str, digest: str, shape: ClusterShape) -> RouterGraph:
    """`digest`: of the file, so that one that has changed is loaded anew."""
    make = load(topology)
    if not (isinstance(make, type) and issubclass(make, Topo)):
        raise PluginError("it is not a class derived from mininet.topo.Topo")
    racks, ranks = shape.rack_count, shape.gpus_per_instance
    topo = start(lambda: make(racks=racks, instances_per_rack=shape.instances_per_rack, gpus_per_instance=ranks))
    try:
        return graph_of(topo, racks=racks, ranks=ranks, prefix=PREFIX)
    except TopologyError as error:
        raise PluginError(str(error)) from error
