"""What stands around the network of an experiment: its instances, and the controller's own core."""

from __future__ import annotations

from typing import Any

from controllers import config as controller_config
from controllers.core.demand import FabricController
from experiments.schema.spec import Experiment, Fabric, Ocs
from simulation.constants import Constants
from topologies.cluster import Cluster


def cluster_of(experiment: Experiment) -> Cluster:
    """Instances, racks and who can reach whom; the KV links are the twin's own."""
    cluster = experiment.cluster
    return Cluster(
        prefill_instances=cluster.prefill_instances,
        decode_instances=cluster.decode_instances,
        gpus_per_instance=cluster.gpus_per_instance,
        instances_per_rack=cluster.instances_per_rack,
        racks=cluster.racks,
        gpus_per_node=experiment.gpus_per_node,
        fabric="none",
    )


def build_core(
    experiment: Experiment, fabric: Fabric, cluster: Cluster, seed: int, constants: Constants
) -> FabricController:
    """The controller's own core, made by the controller's own loader: whatever policy that knows, the twin knows."""
    reachable = {
        prefill: [decode for decode in cluster.reachable[prefill] if decode in owned.decodes]
        for owned in experiment.owned_instances().values()
        for prefill in owned.prefills
    }
    policy: dict[str, Any] = {"choice": getattr(fabric, "decode_choice", "least-loaded")}
    if isinstance(fabric, Ocs):
        policy |= {
            "reconfiguration_s": fabric.reconfiguration_s,
            "excess_s": constants.calibrated_excess_s,
            "commit": fabric.commit,
            "reuse": fabric.reuse,
        }
    return controller_config.build_core(
        fabric.kind,
        reachable,
        transfer=experiment.transfer,
        rate_bytes_per_s=experiment.kv_goodput_bytes_per_s,
        seed=seed,
        **policy,
    )
