"""What a controller process is told when it starts: the JSON file named by HELIOGRAPH_CONTROLLER, checked, and the core
it describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from controllers.commit_rules import load as commit_rules
from controllers.core.placement import PacketPlacement
from controllers.core.reservations import Reservations
from controllers.core.switching import PlanePorts
from controllers.decode_choices import load as decode_choice
from inputs.plugin_file import keep, sha256

Seconds = Annotated[float, Field(ge=0)]


class ControllerConfigError(Exception):
    """A controller file that cannot be read or does not make sense; one line, with the path."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class FabricConfig(_Strict):
    """The fabric's kind and, on circuits, its policy. `plugins`: SHA-256 that a plug-in's file must still have."""

    kind: Literal["eps", "ocs", "none"]
    reconfiguration_s: Seconds | None = None
    commit: str = "last-chunk"
    reuse: bool = True
    bring_forward: bool = True
    decode_choice: str = "circuit-aware"
    plugins: dict[str, str] = {}


class PlaneConfig(_Strict):
    """One circuit switch: `ports` maps each instance with a GPU at its position to its OpenFlow port."""

    bridge: str
    dpid: Annotated[int, Field(ge=1, lt=1 << 64)]
    unixctl: str
    ports: dict[str, Annotated[int, Field(ge=1, le=0xFF00)]]

    def plane(self) -> PlanePorts:
        """As the switching machine wants it."""
        return PlanePorts(self.bridge, self.dpid, self.unixctl, self.ports)


class RunAs(_Strict):
    """Whom the controller becomes before it loads a plug-in."""

    uid: Annotated[int, Field(ge=0)]
    gid: Annotated[int, Field(ge=0)]


class ControllerConfig(_Strict):
    """The whole file. Real units: `rate_bytes_per_s` of one rank's circuit, seconds of the real cluster. `run_as`: none
    where it has nothing to give up."""

    fabric: FabricConfig
    transfer: Literal["pull", "layerwise"]
    rate_bytes_per_s: Annotated[float, Field(gt=0)]
    time_dilation: Annotated[float, Field(gt=0)] = 1.0
    excess_s: Seconds = 0.0
    seed: int = 0
    prefills: Annotated[list[str], Field(min_length=1)]
    decodes: Annotated[list[str], Field(min_length=1)]
    planes: list[PlaneConfig] = []
    reachable: dict[str, list[str]] = {}
    log: str
    run_as: RunAs | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ControllerConfig:
        instances = [*self.prefills, *self.decodes]
        if len(set(instances)) != len(instances):
            raise ValueError("an instance is named twice in prefills and decodes")
        for prefill, decodes in self.reachable.items():
            if prefill not in self.prefills or not decodes or not set(decodes) <= set(self.decodes):
                raise ValueError(
                    f"reachable[{prefill!r}] is {decodes}; it maps a prefill to one or more decode instances"
                )
        if self.reachable and set(self.reachable) != set(self.prefills):
            raise ValueError(
                f"reachable lacks {sorted(set(self.prefills) - set(self.reachable))}; name every prefill or none"
            )
        if (self.fabric.kind == "ocs") != bool(self.planes):
            raise ValueError(
                f"a fabric of kind {self.fabric.kind!r} with {len(self.planes)} planes; ocs has some, the others none"
            )
        if self.fabric.kind == "ocs" and self.fabric.reconfiguration_s is None:
            raise ValueError("fabric.reconfiguration_s is missing; a circuit switch has one (0 is allowed)")
        if len({plane.dpid for plane in self.planes}) != len(self.planes):
            raise ValueError("two planes have the same dpid")
        if self.planes:
            self._check_reach(instances)
        for plane in self.planes:
            if len(set(plane.ports.values())) != len(plane.ports):
                raise ValueError(f"{plane.bridge} gives one port to two instances")
        return self

    def _check_reach(self, instances: Sequence[str]) -> None:
        """Every instance has its ports on some planes, and on the same ones as each peer that it can reach."""
        planes_of = {name: [plane.bridge for plane in self.planes if name in plane.ports] for name in instances}
        if missing := [name for name, planes in planes_of.items() if not planes]:
            raise ValueError(f"{self.planes[0].bridge} has no port for {', '.join(sorted(missing))}, nor has any other")
        for prefill, decodes in self.decodes_of().items():
            for decode in decodes:
                if planes_of[prefill] != planes_of[decode]:
                    raise ValueError(
                        f"{prefill} is on {', '.join(planes_of[prefill])} and cannot reach {decode}, which is on "
                        f"{', '.join(planes_of[decode])}; KV moves between equal GPU positions only"
                    )

    def decodes_of(self) -> dict[str, list[str]]:
        """Prefill -> the decode instances that it can reach; all of them where the file does not say."""
        return self.reachable or {prefill: list(self.decodes) for prefill in self.prefills}


def read(path: str | Path) -> ControllerConfig:
    """The checked file; raises ControllerConfigError."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ControllerConfigError(
            f"HELIOGRAPH_CONTROLLER={path}: {error.strerror}; it must name the controller's JSON file"
        ) from error
    try:
        return ControllerConfig.model_validate_json(text)
    except ValidationError as error:
        raise ControllerConfigError(f"HELIOGRAPH_CONTROLLER={path}: {one_line(error)}") from error


def keep_plugins(config: ControllerConfig) -> None:
    """Read the plug-ins that the file names, for `core` to load: afterwards they may be out of reach. Raises
    ControllerConfigError where one cannot be read."""
    try:
        for path in config.fabric.plugins:
            keep(Path(path))
    except ValueError as error:
        raise ControllerConfigError(str(error)) from error


def core(config: ControllerConfig) -> Reservations | PacketPlacement:
    """The pure core that decides; raises ControllerConfigError where the file asks for a policy that is not there."""
    fabric = config.fabric
    try:
        for path, digest in fabric.plugins.items():
            if sha256(Path(path)) != digest:
                raise ControllerConfigError(f"{path} has changed since the run began: its SHA-256 was {digest}")
        return build_core(
            fabric.kind,
            config.decodes_of(),
            transfer=config.transfer,
            rate_bytes_per_s=config.rate_bytes_per_s,
            reconfiguration_s=fabric.reconfiguration_s or 0.0,
            excess_s=config.excess_s,
            commit=fabric.commit,
            reuse=fabric.reuse,
            bring_forward=fabric.bring_forward,
            choice=fabric.decode_choice,
            seed=config.seed,
        )
    except ValueError as error:
        raise ControllerConfigError(str(error)) from error


def build_core(
    kind: str,
    reachable: Mapping[str, Sequence[str]],
    *,
    transfer: str,
    rate_bytes_per_s: float,
    reconfiguration_s: float = 0.0,
    excess_s: float = 0.0,
    commit: str = "last-chunk",
    reuse: bool = True,
    bring_forward: bool = True,
    choice: str = "least-loaded",
    seed: int = 0,
) -> Reservations | PacketPlacement:
    """The core of a fabric of this kind (ocs, or a packet fabric) as its experiment describes it.

    Both substrates build theirs here. Raises ValueError where a policy is not there, or a value makes no sense.
    """
    decodes = decode_choice.load(choice, seed)
    if kind != "ocs":
        return PacketPlacement(reachable, transfer=transfer, decode_choice=decodes, rate_bytes_per_s=rate_bytes_per_s)
    return commit_rules.build(
        commit,
        reachable,
        rate_bytes_per_s=rate_bytes_per_s,
        reconfiguration_s=reconfiguration_s,
        excess_s=excess_s,
        transfer=transfer,
        reuse=reuse,
        bring_forward=bring_forward,
        decode_choice=decodes,
    )


def one_line(error: ValidationError) -> str:
    """Every fault of a document: where, what, and the value."""
    faults = []
    for fault in error.errors(include_url=False):
        where = ".".join(str(part) for part in fault["loc"])
        value = "" if fault["type"] in ("missing", "value_error", "json_invalid") else f" (got {fault['input']!r:.80})"
        faults.append(f"{where}: {fault['msg']}{value}" if where else f"{fault['msg']}{value}")
    return "; ".join(faults)
