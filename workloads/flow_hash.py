"""The uplink that ECMP gives a flow: one rule for the emulation, which picks source ports by it, and the twin."""

from __future__ import annotations

import hashlib


def hashed_uplink(seed: int, parts: tuple[str, ...], uplinks: int) -> int:
    """The uplink a flow hashes to: blake2b over the seed and what identifies the flow, uniform over the uplinks.

    `parts`: (request id, rank) where each transfer is a flow of its own, (prefill, decode, rank) where a pair keeps
    its connection.
    """
    text = "\0".join((str(seed), *parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") % uplinks
