"""A small experiment to sweep, and what tests of sweeps begin with."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from outputs.terminal import Terminal
from sweeps.cell import Cell
from sweeps.progress import GridProgress

ROOT = Path(__file__).resolve().parents[2]
SPEC = """
name: small
cluster: {prefill_instances: 2, decode_instances: 2, gpus_per_instance: 1, instances_per_rack: 2, link_gbps: 400}
model: {name: llama-3.1-70b, kv_dtype: bf16, tp: 4}
transfer: pull
workload:
  window_s: 20
  warmup_s: 1
  tenants:
    - {name: agentic, source: synthetic-agentic, share: 0.5, load: 0.6}
    - {name: other, source: synthetic-agentic, share: 0.5, load: 0.6}
fabrics:
  - {name: ecmp, kind: eps, uplinks: 1, routing: ecmp}
  - {name: ocs, kind: ocs, reconfiguration_ms: 25}
seeds: [1, 2]
"""
DEFINITION = {"schema": 1, "grid": "g", "source": "s"}


def of_any_version(cells: list[Cell]) -> list[Cell]:
    """Cells that no worker refuses because the checkout is being edited while the test runs."""
    return [replace(cell, source="") for cell in cells]


def quiet() -> GridProgress:
    return GridProgress("sweep", console=Terminal(file=io.StringIO()))
