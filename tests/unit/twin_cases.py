"""Small experiments for tests of the twin: the worked turn of 1,100 new and 65,600 cached tokens at 45 GB/s a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from experiments.schema.spec import Experiment, load
from simulation.constants import Constants
from simulation.twin import Twin, TwinResult
from workloads.request import Request

NEW, CACHED = 1_100, 65_600
R = 45e9
OCS = {"name": "ocs", "kind": "ocs", "reconfiguration_ms": 25}
EPS = {"name": "eps", "kind": "eps", "uplinks": 1}


def experiment(
    folder: Path, fabric: dict[str, Any], *, transfer: str = "pull", overrun: float = 1.0, **cluster: int
) -> Experiment:
    """One prefill and one decode instance unless `cluster` says another; prefills take `overrun` times the model."""
    timing = folder / "timing.yaml"
    values = {"t0_ms": 8.82, "a_ms_per_token": 0.0586, "b_ms_per_token2": 1.616e-6, "floor_ms": 18.0}
    timing.write_text(
        yaml.safe_dump({key: value * overrun for key, value in values.items()} | {"chunk_tokens": 2048, "tp": 4})
    )
    sizes = {"prefill_instances": 1, "decode_instances": 1, "gpus_per_instance": 1, "instances_per_rack": 4}
    document = {
        "name": "case",
        "cluster": sizes | cluster | {"link_gbps": 400, "link_efficiency": 0.9},
        "model": {"name": "llama-3.1-70b", "kv_dtype": "bf16", "tp": 4},
        "prefill": {"timing": str(timing)},
        "transfer": transfer,
        "workload": {"window_s": 1, "tenants": [{"name": "t", "source": "synthetic-agentic", "load": 0.5}]},
        "fabrics": [fabric],
    }
    file = folder / "case.yaml"
    file.write_text(yaml.safe_dump(document))
    return load(file)


def turn(name: str, start_ms: float = 0.0, *, factor: float = 1.0, new: int = NEW, cached: int = CACHED) -> Request:
    """A migrated turn; its predicted duration is `factor` times the actual one."""
    return Request(name, "t", "", start_ms / 1e3, new, cached, True, factor)


def twin(case: Experiment, *turns: Request, **more: Any) -> TwinResult:
    """The twin of the case's only fabric."""
    return Twin(case, case.fabrics[0], 1, turns, more.pop("constants", Constants()), **more).run()


def ttft_ms(result: TwinResult) -> list[float]:
    """TTFT of every request, to a microsecond."""
    return [round(1e3 * value, 3) for value in result.frames.requests["ttft_s"]]
