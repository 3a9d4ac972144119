"""What stands around the network of an experiment: its instances, and the controller's own core."""

from __future__ import annotations

from typing import Any

from controllers import config as controller_config
from controllers.core.demand import FabricController
from experiments.schema.spec import Experiment, Fabric, Ocs
from simulation.constants import Constants


def build_core(experiment: Experiment, fabric: Fabric, seed: int, constants: Constants) -> FabricController:
    """The controller's own core, made by the controller's own loader: whatever policy that knows, the twin knows."""
    policy: dict[str, Any] = {"choice": getattr(fabric, "decode_choice", "least-loaded")}
    if isinstance(fabric, Ocs):
        policy |= {
            "reconfiguration_s": fabric.reconfiguration_s,
            "excess_s": constants.calibrated_excess_s,
            "commit": fabric.commit,
            "reuse": fabric.reuse,
            "bring_forward": fabric.bring_forward,
        }
    return controller_config.build_core(
        fabric.kind,
        experiment.reachable(),
        transfer=experiment.transfer,
        rate_bytes_per_s=experiment.kv_goodput_bytes_per_s,
        seed=seed,
        **policy,
    )
