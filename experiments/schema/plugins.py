"""The plug-ins that an experiment names: can its topologies, prefill and decode choices and commit rules be loaded?"""

from __future__ import annotations

from collections.abc import Callable

from controllers.config import build_core
from controllers.decode_choices import load as decode_choice
from experiments.schema.spec import Eps, Experiment, Ocs
from workloads import prefill_choice


def refusals(experiment: Experiment) -> list[str]:
    """A line for each rule that cannot be loaded or built: spec path, value, what is wrong. Empty when all can."""
    found = []
    seed = experiment.seeds[0]
    if why := _refused(lambda: prefill_choice.load(experiment.prefill.choice, seed)):
        found.append(f"prefill.choice: {why}")
    for i, fabric in enumerate(experiment.fabrics):
        if isinstance(fabric, Eps) and (why := _refused(lambda fabric=fabric: experiment.kv_graph(fabric))):  # type: ignore[misc]
            found.append(f"fabrics.{i}.topology: {why}")
        choice = getattr(fabric, "decode_choice", None)
        if choice is not None and (why := _refused(lambda choice=choice: decode_choice.load(choice, seed))):  # type: ignore[misc]
            found.append(f"fabrics.{i}.decode_choice: {why}")
        if isinstance(fabric, Ocs) and (why := _refused(lambda fabric=fabric: _build(experiment, fabric))):  # type: ignore[misc]
            found.append(f"fabrics.{i}.commit: {why}")
    return found


def _build(experiment: Experiment, fabric: Ocs) -> None:
    """The commit rule, made as a run makes it; the decode choice is asked for above."""
    owned = experiment.owned_instances().values()
    build_core(
        fabric.kind,
        {prefill: list(each.decodes) for each in owned for prefill in each.prefills},
        transfer=experiment.transfer,
        rate_bytes_per_s=experiment.kv_goodput_bytes_per_s,
        reconfiguration_s=fabric.reconfiguration_s,
        commit=fabric.commit,
        reuse=fabric.reuse,
        bring_forward=fabric.bring_forward,
    )


def _refused(load: Callable[[], object]) -> str | None:
    try:
        load()
    except ValueError as error:
        return str(error)
    return None
