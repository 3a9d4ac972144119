"""Clusters for tests, from one flat list of options."""

from dataclasses import fields

from topologies.cluster import Cluster, KvLinks
from topologies.graph import RouterGraph, RouterLink
from topologies.shape import ClusterShape, KvPaths

_LINKS = {"kv_goodput_bps": "goodput_bps", "queue": "queue", "rto_min_ms": "rto_min_ms", "window_bytes": "window_bytes"}


def cluster_of(*, fabric: str = "eps", uplinks: int | None = 2, pooled: bool = False, **options) -> Cluster:
    """A cluster of a `ClusterShape`'s and `KvLinks`' options; over packets a leaf-spine of `uplinks` a rack."""
    links = {_LINKS[key]: options.pop(key) for key in list(options) if key in _LINKS}
    shape = ClusterShape(
        **{key: options.pop(key) for key in [each.name for each in fields(ClusterShape)] if key in options}
    )
    graph = shape.leaf_spine(uplinks, pooled=pooled) if fabric == "eps" and uplinks is not None else None
    return Cluster(shape, fabric=fabric, graph=graph, links=KvLinks(**links), **options)


def spines_of(cluster: Cluster) -> int:
    """The routers of its KV fabric that are no leaves."""
    return len(cluster.graph.routers) - len(cluster.graph.leaves)


def leaf_spine_paths(prefills: int, decodes: int, *, uplinks: int, per_rack: int = 4, racks: str = "apart") -> KvPaths:
    """The paths of a leaf-spine."""
    shape = ClusterShape(prefills, decodes, instances_per_rack=per_rack, racks=racks)
    return KvPaths(shape, shape.leaf_spine(uplinks))


def graph_with_leaves(links: list[tuple[str, str]], leaves: dict[int, str]) -> RouterGraph:
    """A graph of plain links, its routers in order of appearance."""
    routers = tuple(dict.fromkeys(end for link in links for end in link))
    return RouterGraph(
        routers, tuple(RouterLink(*link) for link in links), {(r, 0): leaf for r, leaf in leaves.items()}
    )
