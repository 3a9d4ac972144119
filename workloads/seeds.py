"""Seeded randomness by name: each draw depends on the seed and on what it is for, never on what was drawn before it."""

from __future__ import annotations

import hashlib
from statistics import NormalDist

import numpy as np

_STANDARD_NORMAL = NormalDist()


def _key(seed: int, labels: tuple[str, ...]) -> bytes:
    text = "\x1f".join((str(seed), *labels))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def stream(seed: int, *labels: str) -> np.random.Generator:
    """A generator of its own for these labels."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(_key(seed, labels), "big")))


def uniform(seed: int, *labels: str) -> float:
    """One number in the open interval (0, 1) for these labels."""
    return (int.from_bytes(_key(seed, labels)[:6], "big") + 0.5) / 2**48


def normal(seed: int, *labels: str) -> float:
    """One standard normal number for these labels."""
    return _STANDARD_NORMAL.inv_cdf(uniform(seed, *labels))
