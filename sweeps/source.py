"""Which code computes a grid: cells of two versions are never mixed unnoticed."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_FIGURES = ("inputs", "topologies", "workloads", "controllers", "experiments", "results", "simulation", "sweeps")

#: The rooms that a figure depends on, by substrate.
ROOMS = {
    "simulation": _FIGURES,
    "emulation": (*_FIGURES, "process", "emulation", "commands"),
}


@lru_cache(maxsize=2)
def source_digest(substrate: str) -> str:
    """A digest of every module that the substrate's figures depend on, in this checkout."""
    digest = hashlib.sha256()
    for room in ROOMS[substrate]:
        for path in sorted((ROOT / room).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
