"""The configuration every agent gets, as objects. Format: docs/internals/agents.md."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

from emulation.scale import ScaleModel
from process.rights import Identity
from workloads.kv import KvModel
from workloads.prefill import PrefillTiming
from workloads.request import Request
from workloads.serving import TransferMode

FabricKind: TypeAlias = Literal["eps", "ocs", "none"]
EcmpUnit: TypeAlias = Literal["transfer", "pair"]


class AgentConfigError(ValueError):
    """The configuration of the agents is malformed; the message gives the key and its value."""


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """One prefill or decode instance. `namespace` "" leaves the process in the namespace it was started in."""

    name: str
    role: str
    namespace: str
    host_ip: str
    gpu_ips: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """The instances a tenant owns."""

    prefills: tuple[str, ...]
    decodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrefillChoiceConfig:
    """How the gateway chooses prefill instances: a built-in or a resolved plug-in, the seed it may take, and the
    SHA-256 that a plug-in's file must still have."""

    rule: str = "least-unfinished"
    seed: int = 0
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class SrptConfig:
    """What the arbiter of `routing: srpt` knows of the wiring: the rack of every instance, the uplinks of a rack."""

    racks: Mapping[str, int]
    uplinks: int


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What every agent knows. `kv_rate_bytes_per_s` is the real goodput of one KV link; `ecmp_ports[prefill][decode]
    [rank][uplink]` lists source ports that ECMP maps to that uplink. `realtime`: agents run before ordinary processes
    where that is permitted. `srpt`: KV packets carry a level that the gateway's arbiter decides.
    `run_as`: whom agents and their parent become, None where they have nothing to give up."""

    time_dilation: float
    scale: ScaleModel
    transfer: TransferMode
    fabric_kind: FabricKind
    ecmp_unit: EcmpUnit
    ecmp_seed: int
    ecmp_ports: Mapping[str, Mapping[str, Sequence[Sequence[Sequence[int]]]]]
    congestion_control: str
    kv_rate_bytes_per_s: float
    model: KvModel
    timing: PrefillTiming
    controller_host: str
    controller_port: int
    drain_s: float
    instances: Mapping[str, InstanceConfig]
    gateway: InstanceConfig
    tenants: Mapping[str, TenantConfig]
    request_port: int
    kv_port: int
    requests: tuple[Request, ...]
    realtime: bool
    srpt: SrptConfig | None = None
    prefill_choice: PrefillChoiceConfig = PrefillChoiceConfig()
    run_as: Identity | None = None

    @property
    def emulated_rate_bytes_per_s(self) -> float:
        """Goodput of one KV link as the packets see it."""
        return self.scale.emulated_bytes_per_s(self.kv_rate_bytes_per_s)

    def instance(self, name: str, role: str) -> InstanceConfig:
        """The instance of that name; AgentConfigError if it is not there or has another role."""
        found = self.instances.get(name)
        if found is None or found.role != role:
            raise AgentConfigError(f"{name!r} is no {role} instance; known: {', '.join(self.instances)}")
        return found

    def agents(self) -> dict[str, InstanceConfig]:
        """Every agent by name: the gateway and the instances."""
        return {self.gateway.name: self.gateway, **self.instances}


def load_config(raw: Mapping[str, Any]) -> AgentConfig:
    """Build the configuration from its JSON object and read the requests file it names.

    Raises AgentConfigError for a missing or wrong key, and for a request that cannot be read (with file and line).
    """
    try:
        instances = [_instance(entry, entry["role"]) for entry in raw["instances"]]
        config = AgentConfig(
            time_dilation=_positive("run_clock.time_dilation", raw["run_clock"]["time_dilation"]),
            scale=ScaleModel(**raw["scale"]),
            transfer=_one_of("transfer", raw["transfer"], ("layerwise", "pull")),
            fabric_kind=_one_of("fabric_kind", raw["fabric_kind"], ("eps", "ocs", "none")),
            ecmp_unit=_one_of("ecmp_unit", raw.get("ecmp_unit", "transfer"), ("transfer", "pair")),
            ecmp_seed=int(raw.get("ecmp_seed") or 0),
            ecmp_ports=raw.get("ecmp_ports") or {},
            congestion_control=raw["congestion_control"],
            kv_rate_bytes_per_s=_positive("kv_rate_bytes_per_s", raw["kv_rate_bytes_per_s"]),
            model=KvModel(**raw["model"]),
            timing=PrefillTiming(**raw["timing"]),
            controller_host=raw["controller"]["host"],
            controller_port=int(raw["controller"]["port"]),
            drain_s=_positive("drain_s", raw["drain_s"]),
            instances={instance.name: instance for instance in instances},
            gateway=_instance(raw["gateway"], "gateway"),
            tenants={
                name: TenantConfig(tuple(owned["prefills"]), tuple(owned["decodes"]))
                for name, owned in raw["tenants"].items()
            },
            request_port=int(raw["ports"]["request"]),
            kv_port=int(raw["ports"]["kv"]),
            requests=load_requests(Path(raw["requests_file"])),
            realtime=bool(raw.get("realtime", True)),
            srpt=None if raw.get("srpt") is None else SrptConfig(**raw["srpt"]),
            prefill_choice=PrefillChoiceConfig(**raw.get("prefill_choice", {})),
            run_as=None if raw.get("run_as") is None else Identity(**raw["run_as"]),
        )
    except KeyError as error:
        raise AgentConfigError(f"the agents' configuration lacks the key {error}") from error
    except TypeError as error:
        raise AgentConfigError(f"the agents' configuration has a wrong type: {error}") from error
    if len(instances) != len(config.instances) or config.gateway.name in config.instances:
        raise AgentConfigError("two agents have the same name")
    _check_owners(config)
    return config


def load_requests(path: Path) -> tuple[Request, ...]:
    """Read one request a line; AgentConfigError gives file and line."""
    known = {field.name for field in fields(Request)}
    requests = []
    with path.open() as file:
        for number, line in enumerate(file, start=1):
            try:
                raw = json.loads(line)
                requests.append(Request(**{key: value for key, value in raw.items() if key in known}))
            except (ValueError, TypeError, AttributeError) as error:
                raise AgentConfigError(f"{path}:{number}: no request: {error}") from error
    return tuple(requests)


def _check_owners(config: AgentConfig) -> None:
    for name, tenant in config.tenants.items():
        if not tenant.prefills or not tenant.decodes:
            raise AgentConfigError(
                f"tenant {name!r} owns {len(tenant.prefills)} prefill and {len(tenant.decodes)} decodes"
            )
        for prefill in tenant.prefills:
            config.instance(prefill, "prefill")
        for decode in tenant.decodes:
            config.instance(decode, "decode")
    ranks = {len(instance.gpu_ips) for instance in config.instances.values()}
    if len(ranks) > 1:
        raise AgentConfigError(f"instances differ in their number of GPU addresses: {sorted(ranks)}")
    strangers = {request.tenant for request in config.requests} - set(config.tenants)
    if strangers:
        raise AgentConfigError(f"requests of unknown tenants {sorted(strangers)}; known: {', '.join(config.tenants)}")


def _instance(raw: Mapping[str, Any], role: str) -> InstanceConfig:
    namespace = raw.get("namespace") or ""
    return InstanceConfig(raw["name"], role, namespace, raw["host_ip"], tuple(raw.get("gpu_ips", ())))


def _one_of(key: str, value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise AgentConfigError(f"{key} is {value!r}; allowed: {', '.join(allowed)}")
    return value


def _positive(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise AgentConfigError(f"{key} is {value!r}; it must be a finite number above 0")
    return float(value)
