"""The parts of an experiment spec: every key with its unit and what is allowed. Unknown keys are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from experiments.schema.words import migration_rule, one_of, one_of_or_own, own
from experiments.schema.words import timing as timing_word
from workloads.arrivals import SYNTHETIC, TRACE_READERS
from workloads.kv import KV_DTYPE_BYTES, MODELS
from workloads.prefill_choice import BUILT_IN as PREFILL_CHOICES
from workloads.synthetic import PROFILES
from workloads.tenants import CONTEXT_LIMIT_TOKENS, TenantSpec

DECODE_CHOICES = (
    "circuit-aware",
    "least-loaded",
    "round-robin",
    "session-affinity",
    "random",
    "network-aware",
    "sticky",
)
COMMITS = ("last-chunk", "admission", "none")
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


Name: TypeAlias = Annotated[str, Field(pattern=_NAME, max_length=60)]
Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]
DecodeChoice: TypeAlias = Annotated[str, one_of_or_own("decode choice", DECODE_CHOICES)]


#: A run whose kernel has not got it is refused before anything is built.
CongestionControl: TypeAlias = Annotated[str, one_of("congestion control", ("cubic", "bbr", "reno", "dctcp"))]


class SpecModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ClusterSpec(SpecModel):
    prefill_instances: int = Field(ge=1, le=1024, description="prefill instances of the cluster")
    decode_instances: int = Field(ge=1, le=1024, description="decode instances of the cluster")
    gpus_per_instance: int = Field(
        default=4, ge=1, description="emulated GPUs (TP ranks) of an instance; divides model.tp"
    )
    instances_per_rack: int = Field(default=4, ge=1, description="instances in a rack")
    racks: Literal["apart", "mixed"] = Field(
        default="apart",
        description="apart: prefill and decode instances have racks of their own; mixed: a rack holds both, in turn",
    )
    gpus_per_node: int | None = Field(
        default=None,
        ge=1,
        description="gpus_per_instance (one instance a node, the default) or twice that (two instances a node)",
    )
    link_gbps: float = Field(default=400, gt=0, description="rate of a GPU's KV link in Gbit/s, real")
    link_efficiency: Share = Field(default=0.9, description="goodput / link rate, a share above 0 and at most 1")
    link_delay_us: float = Field(
        default=0.0,
        ge=0,
        le=10_000,
        description="propagation delay of a KV link in real us, each way; needs netem, and the twin leaves it out",
    )


class Model(SpecModel):
    name: Annotated[str, one_of("known model", tuple(MODELS))] = Field(description="model of the KV table")
    kv_dtype: Annotated[str, one_of("kv_dtype", tuple(KV_DTYPE_BYTES))] = Field(
        default="bf16", description="type of the KV cache"
    )
    tp: int = Field(default=4, ge=1, description="tensor-parallel ranks of an instance")
    bytes_per_token: int | None = Field(
        default=None, ge=1, description="KV bytes per token over all ranks, instead of the table's"
    )


class Prefill(SpecModel):
    timing: Annotated[str, timing_word()] = Field(
        default="h100-tp4", description="timing model: a named set or a timing file (.yaml, as `fit` writes it)"
    )
    median_error: float = Field(
        default=0.0, ge=0, lt=1, description="median error of predictions, a share (0.046 is 4.6 %)"
    )
    error_on: Literal["prediction", "actual"] = Field(
        default="prediction",
        description="what deviates from the timing model by that error: prediction (prefills take what the model says) "
        "or actual (the scheduler predicts what the model says, and prefills take more or less)",
    )
    chunk_tokens: int | None = Field(
        default=None, ge=1, description="most new tokens of one prefill chunk; default: the timing's (named sets: 2048)"
    )
    choice: Annotated[str, one_of_or_own("prefill choice", tuple(PREFILL_CHOICES))] = Field(
        default="least-unfinished",
        description="which prefill instance gets a request: least-unfinished, least-work (predicted seconds of prefill "
        "that are left there) or your own module:Class",
    )


class Scale(SpecModel):
    rate_scale: float = Field(default=1e-4, gt=0, le=1, description="emulated bytes / real bytes")
    time_dilation: float = Field(default=1.0, ge=1, le=1000, description="wall time / real time")


class Tenant(SpecModel):
    name: Name = Field(description="the tenant's name; request ids start with it")
    source: Annotated[str, one_of_or_own("workload source", (SYNTHETIC, *TRACE_READERS))] = Field(
        description="where its requests come from: synthetic-agentic, a trace format, or your own module:Class"
    )
    profile: Annotated[str, one_of("synthetic profile", tuple(PROFILES))] | None = Field(
        default=None, description="lengths of the synthetic requests"
    )
    path: str | None = Field(default=None, min_length=1, description="the trace file")
    share: Share = Field(default=1.0, description="share of the GPUs it owns, above 0 and at most 1")
    load: float | None = Field(
        default=None,
        gt=0,
        le=10,
        description="offered utilisation of its prefill instances (0.6 is 60 %); traces: none keeps their rate",
    )
    migrate: Annotated[Literal["always", "affinity"] | float, migration_rule()] = Field(
        default="always", description="whose prefix crosses: always, affinity or a fraction"
    )
    offset_s: float | None = Field(
        default=None, ge=0, description="seconds of the trace at which the measured window starts"
    )
    ties: Literal["spread", "keep"] | None = Field(
        default=None, description="rows of a trace that share a time: spread (default) or keep"
    )
    max_context_tokens: int = Field(
        default=CONTEXT_LIMIT_TOKENS, ge=2, description="longer requests of a trace are dropped"
    )
    copies: int = Field(default=1, ge=1, le=1000, description="shifted copies of a trace to superpose")
    windows: Literal["same", "per-seed"] | None = Field(
        default=None,
        description="same (default): every seed replays the window at offset_s; per-seed: the trace and each of its "
        "copies is turned by a shift drawn from the seed, so that each seed replays another window",
    )
    speedup: float = Field(
        default=1.0, gt=0, le=1e6, description="every time of a trace is divided by it (2 is twice as fast)"
    )
    time_unit: Literal["s", "ms"] | None = Field(
        default=None,
        description="what the times of a trace are in, where its format leaves that open; none: the format's",
    )

    @model_validator(mode="before")
    @classmethod
    def _default_of_source(cls, data: Any) -> Any:
        """Keys of one kind of source get their default there and stay out of the others."""
        if isinstance(data, dict):
            key, default = ("profile", "tracelab") if data.get("source") == SYNTHETIC else ("ties", "spread")
            if data.get(key) is None:
                return {**data, key: default}
        return data

    def tenant_spec(self) -> TenantSpec:
        """The tenant as the workloads know it."""
        return TenantSpec(**(self.model_dump() | {"ties": self.ties or "spread", "windows": self.windows or "same"}))


class Workload(SpecModel):
    window_s: float = Field(gt=0, le=86_400, description="measured window in real seconds")
    warmup_s: float = Field(default=5.0, ge=0, le=86_400, description="warm-up before the window in real seconds")
    tenants: list[Tenant] = Field(min_length=1, description="who asks")
    placement: Literal["together", "spread"] = Field(
        default="together",
        description="which instances a tenant owns: together: the next ones; spread: nodes of every rack in turn",
    )


class Eps(SpecModel):
    """A packet fabric: leaf-spine for the GPU NICs."""

    name: Name = Field(description="the fabric's name; its artifacts' folder")
    kind: Literal["eps"]
    oversubscription: float | None = Field(
        default=None, ge=1, description="a rack's GPU links / its uplinks (2 is 2:1)"
    )
    uplinks: int | None = Field(default=None, ge=1, description="uplinks of a rack, instead of oversubscription")
    topology: Annotated[str, own("topology")] | None = Field(
        default=None,
        description="routers and links of your own, instead of oversubscription: module:Class, a Mininet Topo",
    )
    routing: Annotated[str, one_of("routing", ("ecmp", "adaptive", "srpt"))] = Field(
        default="ecmp",
        description="path choice: ecmp hashes flows, adaptive spreads them ideally over a pooled uplink, srpt is "
        "adaptive with the shortest remaining transfer first on every link",
    )
    ecmp_seed: int = Field(default=1, ge=0, description="seed of the ECMP hash")
    ecmp_seeds: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None,
        min_length=2,
        description="several seeds of the ECMP hash, instead of ecmp_seed: one fabric NAME-hSEED for each",
    )
    ecmp_unit: Literal["transfer", "pair"] = Field(
        default="transfer", description="what is hashed: each transfer or each pair"
    )
    queue: Literal["drr", "fifo", "priority"] = Field(
        default="drr",
        description="queue of its links: drr serves sources in turn, fifo is one queue, priority (srpt's own, and its "
        "default) serves the transfer with the least left first",
    )
    congestion_control: CongestionControl = Field(
        default="cubic", description="TCP's, on KV connections; the kernel must have it"
    )
    decode_choice: DecodeChoice = Field(
        default="least-loaded",
        description="how the decode instance is chosen; sticky stays with a prefill's last decode as a circuit would",
    )

    @model_validator(mode="before")
    @classmethod
    def _priorities_for_srpt(cls, data: Any) -> Any:
        """Shortest remaining first needs queues that know who is first."""
        if isinstance(data, dict) and data.get("routing") == "srpt" and data.get("queue") is None:
            return {**data, "queue": "priority"}
        return data

    def by_hash_seed(self) -> list[Eps]:
        """This fabric once for each of `ecmp_seeds`, with a name of its own; itself where there is only one seed."""
        if self.ecmp_seeds is None:
            return [self]
        return [
            self.model_copy(update={"name": f"{self.name}-h{seed}", "ecmp_seed": seed, "ecmp_seeds": None})
            for seed in self.ecmp_seeds
        ]


class Ocs(SpecModel):
    """An optical circuit switch per GPU position."""

    name: Name = Field(description="the fabric's name; its artifacts' folder")
    kind: Literal["ocs"]
    reconfiguration_ms: float = Field(ge=0, le=60_000, description="dark time of a switch in real ms")
    commit: Annotated[str, one_of_or_own("commit policy", COMMITS)] = Field(
        default="last-chunk",
        description="when windows are booked: last-chunk, admission, none or your own module:Class",
    )
    reuse: bool = Field(default=True, description="whether a standing circuit may serve another request")
    bring_forward: bool = Field(
        default=True,
        description="whether a booked window starts sooner once its prefill is found to end or start sooner than "
        "predicted; false: no sooner than booked",
    )
    congestion_control: CongestionControl = Field(
        default="cubic", description="TCP's, on KV connections; the kernel must have it"
    )
    decode_choice: DecodeChoice = Field(
        default="circuit-aware",
        description="how the decode instance is chosen (with commit none: least-loaded by default)",
    )

    @model_validator(mode="before")
    @classmethod
    def _by_load_without_reservations(cls, data: Any) -> Any:
        """Where nothing is booked ahead there is no gap to choose by."""
        if isinstance(data, dict) and data.get("commit") == "none" and data.get("decode_choice") is None:
            return {**data, "decode_choice": "least-loaded"}
        return data

    @property
    def reconfiguration_s(self) -> float:
        return self.reconfiguration_ms / 1e3


class NoFabric(SpecModel):
    """No network limit: KV arrives the moment it exists."""

    name: Name = Field(description="the fabric's name; its artifacts' folder")
    kind: Literal["none"]


Fabric: TypeAlias = Eps | Ocs | NoFabric


class Slo(SpecModel):
    ttft_multiple: float = Field(
        default=5.0, gt=0, description="TTFT limit as a multiple of the tenant's median prefill time"
    )
