"""From an experiment and one of its fabrics to what each part of the run is told: topology, controller, agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from emulation.network.shaping import MIN_WINDOW_BYTES, WINDOW_S, Shape, window_bytes
from emulation.scale import ScaleModel
from experiments.schema.spec import Eps, Experiment, Fabric, Ocs
from inputs.plugin_file import file_of, names_plugin
from topologies.cluster import PRIORITY_RTO_MIN_MS, RTO_MIN_MS, Cluster, KvLinks
from workloads.request import Request

REQUEST_PORT, KV_PORT = 7000, 7100
#: What one ovs-vswitchd carried over 64 circuits on 128 ports, with both cores to itself.
ONE_VSWITCHD_BPS = 1.65e9
#: Real seconds that a run waits, after the last arrival, for what is under way. Longer than any prefill of 128K tokens.
DRAIN_S = 45.0
#: From a GPU NIC to another: leaf, spine, leaf.
PATH_LINKS = 4


@dataclass(frozen=True)
class FabricPlan:
    """One fabric and one seed of an experiment; `requests` are the same for every fabric. `plugins`: SHA-256 of each
    plug-in's file as the run began, which its controller compares."""

    experiment: Experiment
    fabric: Fabric
    seed: int
    requests: tuple[Request, ...]
    plugins: Mapping[str, str] = field(default_factory=dict)

    @property
    def scale(self) -> ScaleModel:
        return ScaleModel(self.experiment.scale.rate_scale, self.experiment.scale.time_dilation)

    @property
    def kv_goodput_bps(self) -> float:
        """Emulated payload rate of a KV link."""
        return self.scale.emulated_bytes_per_s(self.experiment.kv_goodput_bytes_per_s) * 8

    @property
    def link_delay_s(self) -> float:
        """Propagation delay of a KV link each way, wall seconds."""
        return self.scale.wall_s(self.experiment.cluster.link_delay_us / 1e6)

    @property
    def queue(self) -> str:
        """How the ports of the packet fabric serve their queues."""
        return self.fabric.queue if isinstance(self.fabric, Eps) else "drr"

    @property
    def queue_bytes(self) -> int:
        """Limit of one queue of a KV link's port."""
        return Shape(self.kv_goodput_bps, "priority" if self.queue == "priority" else "fifo").queue_bytes

    @property
    def window_bytes(self) -> int:
        """TCP's window on KV routes, payload: what keeps a link busy, and what is on its way on the longest path of the
        fabric, there and back."""
        on_its_way_bytes = self.kv_goodput_bps / 8 * 2 * PATH_LINKS * self.link_delay_s
        return window_bytes(self.kv_goodput_bps) + round(on_its_way_bytes)

    @property
    def rto_min_ms(self) -> int:
        """TCP's minimum RTO on KV routes, in wall milliseconds.

        A window is at least 64 KB, so it drains the more slowly the slower the links are: a timeout that is not longer
        than that fires on segments which merely wait (one transfer in nine, at 9 Mbit/s and 40 ms).
        """
        return max(self._rto_of_window_ms, PRIORITY_RTO_MIN_MS if self.queue == "priority" else RTO_MIN_MS)

    @property
    def rto_follows_window(self) -> bool:
        """Whether the links are so slow that the minimum RTO grows with the time in which a window drains."""
        return self.rto_min_ms == self._rto_of_window_ms > RTO_MIN_MS

    @property
    def _rto_of_window_ms(self) -> int:
        return round(RTO_MIN_MS * MIN_WINDOW_BYTES * 8 / self.kv_goodput_bps / WINDOW_S)

    @property
    def ecmp_unit(self) -> str:
        """A new connection for each transfer, or one kept for each pair; circuits always keep theirs."""
        return self.fabric.ecmp_unit if isinstance(self.fabric, Eps) else "pair"

    @property
    def hashes(self) -> bool:
        """Whether each flow takes one path of several, by its hash."""
        return isinstance(self.fabric, Eps) and self.fabric.routing == "ecmp"

    @property
    def congestion_control(self) -> str:
        """Of the KV connections."""
        return getattr(self.fabric, "congestion_control", "cubic")

    @property
    def keeps_connections(self) -> bool:
        """Whether KV connections are opened before the clock starts."""
        return self.fabric.kind == "ocs" or (self.fabric.kind == "eps" and self.ecmp_unit == "pair")

    @property
    def agents_drain_s(self) -> float:
        """Real seconds after the last arrival that the gateway waits for what is under way."""
        return DRAIN_S

    def cluster(self) -> Cluster:
        """The topology. Raises ValueError where it cannot be wired."""
        return Cluster(
            self.experiment.shape,
            fabric=self.fabric.kind,
            graph=self.experiment.kv_graph(self.fabric),
            links=KvLinks(self.kv_goodput_bps, self.queue, self.rto_min_ms, self.window_bytes, self.congestion_control),
        )

    @property
    def switch_daemons(self) -> int:
        """How many ovs-vswitchd the circuit switches need on the user-space datapath: one, or two where the circuits
        at full rate are more than one carries (a third finds no core: two carry 1.9 to 2.3 Gbit/s on two)."""
        cluster = self.experiment.cluster
        circuits = min(cluster.prefill_instances, cluster.decode_instances) * cluster.gpus_per_instance
        return 1 if circuits * self.kv_goodput_bps <= ONE_VSWITCHD_BPS else 2

    def switch_ports(self, cluster: Cluster) -> dict[str, dict[str, int]]:
        """Bridge -> instance -> OpenFlow port, of every circuit switch, as the controller is told."""
        return {plane.bridge: dict(plane.ports) for plane in cluster.planes}

    def controller(self, cluster: Cluster, *, unixctls: Mapping[str, str], log: Path) -> dict[str, Any]:
        """The controller's file (`controllers/config.py`). unixctls: of each plane's ovs-vswitchd."""
        fabric: dict[str, Any] = {"kind": self.fabric.kind}
        if isinstance(self.fabric, Ocs):
            fabric |= {
                "reconfiguration_s": self.fabric.reconfiguration_s,
                "commit": self.fabric.commit,
                "reuse": self.fabric.reuse,
                "bring_forward": self.fabric.bring_forward,
            }
        # on the ceiling no path is better than another: the load decides
        fabric["decode_choice"] = getattr(self.fabric, "decode_choice", "least-loaded")
        if self.plugins:
            fabric["plugins"] = dict(self.plugins)
        names = {role: [i.name for i in cluster.instances if i.role == role] for role in ("prefill", "decode")}
        return {
            "fabric": fabric,
            "transfer": self.experiment.transfer,
            "rate_bytes_per_s": self.experiment.kv_goodput_bytes_per_s,
            "time_dilation": self.scale.time_dilation,
            "seed": self.seed,
            "prefills": names["prefill"],
            "decodes": names["decode"],
            "planes": [
                {
                    "bridge": plane.bridge,
                    "dpid": plane.dpid,
                    "unixctl": unixctls[plane.bridge],
                    "ports": self.switch_ports(cluster)[plane.bridge],
                }
                for plane in cluster.planes
            ],
            "reachable": self.experiment.reachable(),
            "log": str(log),
        }

    @property
    def _prefill_choice(self) -> dict[str, Any]:
        """How the gateway chooses prefill instances, with the SHA-256 of a plug-in's file."""
        rule = self.experiment.prefill.choice
        file = str(file_of(rule)) if names_plugin(rule) else None
        return {"rule": rule, "seed": self.seed, "sha256": None if file is None else self.plugins[file]}

    def _srpt(self, cluster: Cluster) -> dict[str, Any] | None:
        """What the arbiter of shortest remaining first knows of the wiring; None elsewhere."""
        if not isinstance(self.fabric, Eps) or self.fabric.routing != "srpt":
            return None
        racks = {instance.name: instance.rack for instance in cluster.instances}
        return {"racks": racks, "uplinks": self.experiment.uplinks(self.fabric)}

    def agents(
        self,
        cluster: Cluster,
        *,
        namespaces: Mapping[str, str],
        controller: tuple[str, int],
        ecmp_ports: Mapping[str, Any],
        requests_file: Path,
    ) -> dict[str, Any]:
        """The agents' configuration (docs/internals/agents.md)."""
        return {
            "run_clock": {"time_dilation": self.scale.time_dilation},
            "scale": asdict(self.scale),
            "transfer": self.experiment.transfer,
            "fabric_kind": self.fabric.kind,
            "ecmp_unit": self.ecmp_unit,
            "ecmp_seed": getattr(self.fabric, "ecmp_seed", 0),
            "ecmp_ports": ecmp_ports,
            "srpt": self._srpt(cluster),
            "congestion_control": self.congestion_control,
            "kv_rate_bytes_per_s": self.experiment.kv_goodput_bytes_per_s,
            "model": asdict(self.experiment.kv),
            "timing": asdict(self.experiment.timing),
            "controller": {"host": controller[0], "port": controller[1]},
            "drain_s": DRAIN_S,
            "instances": [
                {
                    "name": instance.name,
                    "role": instance.role,
                    "namespace": namespaces[instance.name],
                    "host_ip": instance.host_ip,
                    # the ceiling has no KV network, so nothing to listen on
                    "gpu_ips": [] if self.fabric.kind == "none" else list(instance.gpu_ips),
                }
                for instance in cluster.instances
            ],
            "gateway": {"name": "gw", "namespace": namespaces["gw"], "host_ip": cluster.gateway_ip},
            "tenants": {
                tenant: {"prefills": list(owned.prefills), "decodes": list(owned.decodes)}
                for tenant, owned in self.experiment.owned_instances().items()
            },
            "ports": {"request": REQUEST_PORT, "kv": KV_PORT},
            "prefill_choice": self._prefill_choice,
            "requests_file": str(requests_file),
        }


def rounds(reachable: Mapping[str, list[str]]) -> list[dict[str, str]]:
    """Every reachable pair once, in rounds in which each instance has at most one peer."""
    decodes = list(dict.fromkeys(decode for peers in reachable.values() for decode in peers))
    # pair (i, j) meets in round j - i: a Latin square, so nobody meets two in one round
    order = max(len(reachable), len(decodes))
    found: list[dict[str, str]] = [{} for _ in range(order)]
    for i, (prefill, peers) in enumerate(reachable.items()):
        for decode in peers:
            found[(decodes.index(decode) - i) % order][prefill] = decode
    return [pairs for pairs in found if pairs]
