"""Which uplink a flow takes under ECMP: one rule for packets and for flows (standard library only: agents import it)."""

from __future__ import annotations

import hashlib


def hashed_uplink(seed: int, parts: tuple[str, ...], uplinks: int) -> int:
    """The uplink a flow hashes to: blake2b over the seed and what identifies the flow, uniform over the uplinks.

    `parts`: (request id, rank) where each transfer is a flow of its own, (prefill, decode, rank) where a pair keeps
    its connection.
    """
    text = "\0".join((str(seed), *parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") % uplinks
