"""What this machine's links and names cannot make of an experiment, found before anything is built.

The experiment itself is right where this speaks up: the flow-level twin can simulate it. Nothing is built; only the
kernel is asked for a congestion control.
"""

from __future__ import annotations

from emulation.doctor.preflight import available_congestion_controls, congestion_control_works, netem_works
from emulation.network.shaping import MAX_GOODPUT_BPS, MIN_GOODPUT_BPS, Shape, ShapingError
from emulation.plan.fabric_plan import FabricPlan
from experiments.schema.spec import Experiment


def refusals(experiment: Experiment) -> list[str]:
    """A line for each thing that cannot be emulated: spec path, value, what is allowed, remedy. Empty when all can."""
    return [*_rate(experiment), *_wiring(experiment), *_congestion_controls(experiment), *_link_delay(experiment)]


def _link_delay(experiment: Experiment) -> list[str]:
    delay_us = experiment.cluster.link_delay_us
    if not delay_us or all(fabric.kind == "none" for fabric in experiment.fabrics):
        return []
    if FabricPlan(experiment, experiment.fabrics[0], experiment.seeds[0], ()).link_delay_s < 1e-6:
        return [f"cluster.link_delay_us: {delay_us:g} us is less than the 1 us that netem can make; leave it out"]
    if netem_works():
        return []
    return [
        f"cluster.link_delay_us: {delay_us:g} us of delay needs the qdisc netem, and this kernel has none (sch_netem); "
        "leave it out, or use a stock kernel: that of the virtual machine (vagrant up) has it"
    ]


def _congestion_controls(experiment: Experiment) -> list[str]:
    wanted = {
        f"fabrics.{i}.congestion_control": FabricPlan(experiment, fabric, experiment.seeds[0], ()).congestion_control
        for i, fabric in enumerate(experiment.fabrics)
        if fabric.kind != "none"
    }
    return [
        f"{where}: this kernel has no {name!r}; modprobe tcp_{name}, or choose one of "
        f"{' '.join(available_congestion_controls())}"
        for where, name in wanted.items()
        if not congestion_control_works(name)
    ]


def _rate(experiment: Experiment) -> list[str]:
    if all(fabric.kind == "none" for fabric in experiment.fabrics):
        return []
    real_bps = experiment.kv_goodput_bytes_per_s * 8
    goodput_bps = FabricPlan(experiment, experiment.fabrics[0], experiment.seeds[0], ()).kv_goodput_bps
    try:
        Shape(goodput_bps)
    except ShapingError:
        scale, cluster = experiment.scale, experiment.cluster
        per_bps = scale.time_dilation / real_bps
        return [
            f"scale.rate_scale: {scale.rate_scale:g} makes a KV link of {cluster.link_gbps:g} Gbit/s x link_efficiency "
            f"{cluster.link_efficiency:g} / time_dilation {scale.time_dilation:g} into {goodput_bps:.4g} bit/s, and a "
            f"shaper makes {MIN_GOODPUT_BPS:g} to {MAX_GOODPUT_BPS:g}; give a rate_scale from "
            f"{MIN_GOODPUT_BPS * per_bps:.2g} to {min(MAX_GOODPUT_BPS * per_bps, 1.0):.2g}, or another time_dilation"
        ]
    return []


def _wiring(experiment: Experiment) -> list[str]:
    """What the topology refuses, and links that are wider than one KV link (a pooled uplink)."""
    found = []
    for i, fabric in enumerate(experiment.fabrics):
        plan = FabricPlan(experiment, fabric, experiment.seeds[0], ())
        try:
            rates_bps = {info.get("goodput_bps") for *_, info in plan.cluster().links(withInfo=True)}
        except ValueError as error:
            found.append(f"fabrics.{i}: {fabric.name} cannot be wired: {error}")
            continue
        for rate_bps in sorted(rate for rate in rates_bps if rate is not None and rate != plan.kv_goodput_bps):
            try:
                Shape(rate_bps)
            except ShapingError:
                found.append(
                    f"fabrics.{i}: {fabric.name} has uplinks of {rate_bps:.4g} bit/s, and a shaper makes "
                    f"{MIN_GOODPUT_BPS:g} to {MAX_GOODPUT_BPS:g}; lower scale.rate_scale or raise scale.time_dilation"
                )
    return found
