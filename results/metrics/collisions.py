"""ECMP collisions: transfers of different GPU NICs that a hash has put onto one uplink, or one downlink, at a time.

Transfers of one NIC are limited by it wherever they go, so they do not collide. Times are run-clock seconds, from a
transfer's first byte at the receiver to its last.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from experiments.schema.spec import Experiment, Fabric
from results.metrics.hash_seeds import family
from results.metrics.ttft_parts import covered_s
from results.records.schema import is_warmup
from topologies.shape import KvPaths, links_of


class _Flow(NamedTuple):
    row: int
    nic: tuple[str, int]
    start_s: float
    end_s: float


def with_collisions(transfers: pd.DataFrame, paths: KvPaths) -> pd.DataFrame:
    """The same transfers with `shared_s` (seconds in which another shared its uplink or downlink) and `sharers` (the
    most at once). Both are missing where no uplink was crossed or a transfer did not end. `paths`: of the fabric; a
    transfer's `uplink` is the number of the one it took."""
    shared: dict[int, list[tuple[float, float]]] = {}
    sharers: dict[int, int] = {}
    for flows in _by_link(transfers, paths).values():
        for flow in flows:
            shared.setdefault(flow.row, [])
            sharers.setdefault(flow.row, 0)
        for flow, most, interval in _meetings(flows):
            shared[flow.row].append(interval)
            sharers[flow.row] = max(sharers[flow.row], most)
    found = transfers.copy()
    # on both links at once counts once
    found["shared_s"] = pd.Series({row: covered_s(spans) for row, spans in shared.items()}, dtype="float64")
    found["sharers"] = pd.Series(sharers, dtype="Int64")
    return found


def collision_figures(transfers: pd.DataFrame) -> dict[str, Any] | None:
    """Of measured transfers `with_collisions`: how many crossed an uplink, how many of them shared it, for how long.
    None where none crossed one."""
    crossed = transfers[transfers["shared_s"].notna() & ~is_warmup(transfers["request"])]
    if crossed.empty:
        return None
    collided = crossed[crossed["sharers"] > 0]
    lasted_s = float((crossed["last_byte_s"] - crossed["first_byte_s"]).sum())
    return {
        "transfers": len(crossed),
        "collided": len(collided),
        "shared_s": float(crossed["shared_s"].sum()),
        "shared_share_of_time": float(crossed["shared_s"].sum()) / lasted_s if lasted_s > 0 else 0.0,
        "most_sharers": int(crossed["sharers"].max()),
    }


def collision_line(figures: Mapping[str, Any]) -> str:
    """The figures in a sentence."""
    return (
        f"{figures['collided']} of {figures['transfers']} transfers shared an uplink with another NIC's, for "
        f"{figures['shared_s']:.1f} s in all ({figures['shared_share_of_time']:.0%} of their time), with up to "
        f"{figures['most_sharers']} others at once"
    )


def account_ecmp(experiment: Experiment, fabric: Fabric, transfers: pd.DataFrame) -> dict[str, Any]:
    """The key ``ecmp`` of ``accounting``: the hash seed, its family, and the collisions; nothing without a hash."""
    if fabric.kind != "eps" or fabric.routing != "ecmp":
        return {}
    figures = collision_figures(transfers) or {"transfers": 0}
    same = family(fabric.model_dump(mode="json", exclude_none=True))
    return {"ecmp": {"hash_seed": fabric.ecmp_seed, "family": same, **figures}}


def _by_link(transfers: pd.DataFrame, paths: KvPaths) -> dict[tuple[str, str], list[_Flow]]:
    """A link between routers, in one direction -> flows. Those that start at one leaf are told apart by their sender's
    NIC, those that end there by their receiver's."""
    links = defaultdict(list)
    ended = transfers.dropna(subset=["uplink", "first_byte_s", "last_byte_s"])
    columns = ("prefill", "decode", "rank", "uplink", "first_byte_s", "last_byte_s")
    for row, prefill, decode, rank, uplink, start_s, end_s in zip(
        ended.index.tolist(), *(ended[column].tolist() for column in columns), strict=True
    ):
        if not paths.cross(prefill, decode, rank):
            continue
        crossed = links_of(paths.between(prefill, decode, rank)[uplink])
        for place, link in enumerate(crossed):
            instance = prefill if 2 * place < len(crossed) else decode
            links[link].append(_Flow(row, (instance, rank), start_s, end_s))
    return links


def _meetings(flows: Sequence[_Flow]) -> Iterator[tuple[_Flow, int, tuple[float, float]]]:
    """(flow, most others of another NIC at once, interval) for each stretch in which a flow is not alone on a link."""
    moments = [(flow.start_s, 1, number) for number, flow in enumerate(flows)]
    moments += [(flow.end_s, 0, number) for number, flow in enumerate(flows)]
    moments.sort()
    here: dict[int, tuple[str, int]] = {}  # number -> NIC
    of_nic: Counter[tuple[str, int]] = Counter()
    met: dict[int, tuple[float, int]] = {}  # number -> since when, most others
    for at_s, starts, number in moments:
        nic = flows[number].nic
        if starts:
            here[number] = nic
            of_nic[nic] += 1
        elif here.pop(number, None) is not None:
            of_nic[nic] -= 1
            if number in met:
                since_s, most = met.pop(number)
                yield flows[number], most, (since_s, at_s)
        total = len(here)
        for each, own in here.items():
            others = total - of_nic[own]
            if others and each not in met:
                met[each] = at_s, others
            elif others > met.get(each, (0.0, others))[1]:
                met[each] = met[each][0], others
            elif not others and each in met:
                since_s, most = met.pop(each)
                yield flows[each], most, (since_s, at_s)
