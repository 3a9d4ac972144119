"""The six parts of TTFT, from timestamps. Pure; the emulation and the simulation share it.

Times of one completed request: a = intended arrival, q = received by the prefill instance, s and e = *actual* start
and end of the prefill (a late timer is part of what happened, so the planned times are not used), l = last KV byte
over all ranks, L = max(l, e), f = first token at the client. The parts are differences of these timestamps, so they
add up to f - a by construction:

* ``queue_s`` = s - q
* ``prefill_s`` = e - s
* ``transfer_exposed_s``, in (e, L): on ``ocs`` inside a live window, as its sender was told; on ``eps`` once
  the decode is known
* ``control_s`` = (q - a), and in (e, L): on ``ocs`` a window is live and its sender not yet told; on ``eps``
  the decode is not known
* ``circuit_wait_s``, in (e, L), on ``ocs`` only: the rest, that is the time without a live circuit
* ``return_s`` = f - L

A live window ends when its sender is done with it; the last one the sender used ends with the last byte at the
receiver, since that byte crossed a live circuit whatever the sender's own time says. On ``none`` KV arrives the
moment it exists: l = e.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

FabricKind = Literal["eps", "ocs", "none"]
Interval = tuple[float, float]


def ttft_parts(
    arrival_s: float,
    received_s: float,
    start_s: float,
    end_s: float,
    last_s: float,
    first_token_s: float,
    *,
    kind: FabricKind,
    told_live: Sequence[Sequence[Any]] = (),
    decided_s: float | None = None,
) -> dict[str, float]:
    """The six parts of one TTFT, seconds, by the rules above; they add up to ``first_token_s - arrival_s``.

    ``last_s`` is L (not before ``end_s``); ``told_live`` holds ``[part, live_s, told_s, done_s or None]`` for each
    live window.
    """
    whole = (end_s, last_s)
    exposed_s = untold_s = wait_s = 0.0
    if kind == "eps":
        known_s = min(max(decided_s if decided_s is not None else end_s, end_s), last_s)
        untold_s, exposed_s = known_s - end_s, last_s - known_s
    elif kind == "ocs":
        # Windows told of after the last byte carried none of it.
        used = sorted(
            ([told, done, live] for _, live, told, done in told_live if told <= last_s), key=lambda window: window[0]
        )
        if used:
            used[-1][1] = last_s
        told = [_within((told, last_s if done is None else done), whole) for told, done, _ in used]
        live = [_within((live, told), whole) for told, _, live in used]
        exposed_s = covered_s(told)
        untold_s = covered_s(told + live) - exposed_s
        wait_s = (last_s - end_s) - exposed_s - untold_s
    return {
        "queue_s": start_s - received_s,
        "prefill_s": end_s - start_s,
        "circuit_wait_s": wait_s,
        "transfer_exposed_s": exposed_s,
        "control_s": (received_s - arrival_s) + untold_s,
        "return_s": first_token_s - last_s,
    }


def _within(interval: Interval, whole: Interval) -> Interval:
    return max(interval[0], whole[0]), min(interval[1], whole[1])


def covered_s(intervals: Iterable[Interval]) -> float:
    """Length of the union: windows of two parts may overlap, and time must not count twice."""
    total_s, reached_s = 0.0, float("-inf")
    for begin_s, end_s in sorted(intervals):
        if end_s > max(begin_s, reached_s):
            total_s += end_s - max(begin_s, reached_s)
            reached_s = end_s
    return total_s
