"""The benchmark of the northbound API: what it refuses before anything is built, and how it counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from controllers.config import ControllerConfig
from emulation.fabric_plan import FabricPlan
from experiments.spec import load
from scripts.northbound_benchmark import PAIRS, Latencies, LoadedPlan, main

DEMO = Path(__file__).resolve().parents[2] / "experiments" / "demo.yaml"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-file.yaml"], "no-such-file.yaml"),
        (["--set", "workload.window_s=-1"], "workload.window_s"),
        (["--fabric", "eps-2to1-ecmp"], "has ocs-25ms, ocs-25ms-no-reuse of kind ocs"),
        (["--set", "fabrics=[{name: packets, kind: eps, oversubscription: 2}]"], "has none of kind ocs"),
        (["--events-per-s", "0"], "1 to 5000 are allowed"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert says in capsys.readouterr().err


def test_percentiles_are_by_nearest_rank() -> None:
    found = Latencies([number / 1e3 for number in range(1, 101)])
    assert (found.p50_s, found.p99_s) == (pytest.approx(0.0505), 0.099)
    assert str(found) == "p50 50.50 ms, p99 99.00 ms, maximum 100.00 ms"
    assert Latencies([0.5]).p99_s == 0.5


def test_the_load_has_ports_of_its_own_on_every_plane_and_the_run_keeps_its_own_reach() -> None:
    experiment = load(DEMO)
    told = {"unixctls": dict.fromkeys(["plane0"], "/nowhere"), "log": Path("/nowhere/log")}
    plans = [kind(experiment, experiment.fabrics[1], 1, ()) for kind in (FabricPlan, LoadedPlan)]
    own, loaded = (ControllerConfig.model_validate(plan.controller(plan.cluster(), **told)) for plan in plans)
    assert loaded.decodes_of() == own.decodes_of() | {prefill: [decode] for prefill, decode in PAIRS.items()}
    for before, after in zip(own.planes, loaded.planes, strict=True):
        added = {name: port for name, port in after.ports.items() if name not in before.ports}
        assert set(added) == {*PAIRS, *PAIRS.values()}
        assert not set(added.values()) & set(before.ports.values())
