"""Where the error of a prediction is (`prefill.error_on`), and what an early prefill gains (`bring_forward`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents_stand_in import a_request
from twin_cases import CACHED, NEW, OCS, R, experiment, ttft_ms, turn, twin

from controllers.config import FabricConfig
from emulation.plan.fabric_plan import FabricPlan
from experiments.schema.errors import SpecError
from experiments.schema.spec import load
from workloads.kv import kv_model
from workloads.prefill import TIMINGS
from workloads.serving import LastChunkStarted, PrefillEnded, PrefillQueue, PrefillStarted

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "experiments" / "demo.yaml"
H100 = TIMINGS["h100-tp4"]
T_MS = 1e3 * H100.duration_s(NEW, CACHED)
DATA_MS = 1e3 * kv_model("llama-3.1-70b", tp=4).rank_bytes(NEW + CACHED) / R


def drawn(error_on: str, error: float = 0.1):
    return load(DEMO, [f"prefill.median_error={error}", f"prefill.error_on={error_on}"]).requests(1)


def test_the_same_draw_deviates_what_is_predicted_or_what_a_prefill_takes():
    predicted, actual = drawn("prediction"), drawn("actual")
    assert [each.prediction_factor for each in predicted] == [each.duration_factor for each in actual]
    assert {each.duration_factor for each in predicted} == {each.prediction_factor for each in actual} == {1.0}
    assert len({each.duration_factor for each in actual}) > 10
    assert [(each.id, each.arrival_s, each.new_tokens) for each in predicted] == [
        (each.id, each.arrival_s, each.new_tokens) for each in actual
    ]


def test_without_an_error_both_readings_are_the_same_requests():
    assert drawn("prediction", 0.0) == drawn("actual", 0.0)


def test_a_prefill_that_deviates_takes_its_time_and_is_predicted_by_the_model():
    queue = PrefillQueue(H100, 80)
    plan = queue.submit(a_request(1, 0.0, new_tokens=5_000, duration_factor=1.5), 1.0)
    model = H100.plan(5_000, 2_000, 80)
    assert plan.duration_s == pytest.approx(1.5 * model.duration_s)
    assert [chunk.duration_s for chunk in plan.chunks] == pytest.approx([1.5 * c.duration_s for c in model.chunks])
    started, last, ended = queue.advance(100.0)
    assert isinstance(started, PrefillStarted)
    assert isinstance(last, LastChunkStarted)
    assert isinstance(ended, PrefillEnded)
    assert started.predicted_end_s == 1.0 + model.duration_s
    assert last.at_s == pytest.approx(1.0 + 1.5 * model.last_chunk_start_s)
    assert last.predicted_end_s == pytest.approx(last.at_s + model.chunks[-1].duration_s)
    assert ended.at_s == pytest.approx(1.0 + 1.5 * model.duration_s)


def slow(factor: float):
    """The worked turn on a machine that takes `factor` times what the model says."""
    one = turn("r")
    return type(one)(one.id, "t", "", 0.0, NEW, CACHED, True, 1.0, duration_factor=factor)


def test_a_machine_that_is_slower_than_the_model_keeps_its_circuit_until_the_kv_is_over(tmp_path):
    assert ttft_ms(twin(experiment(tmp_path, OCS), slow(2.0))) == pytest.approx([2 * T_MS + DATA_MS], abs=0.01)


@pytest.mark.parametrize(
    ("bring_forward", "live_ms"), [(True, T_MS + 25), (False, 2 * T_MS)], ids=["brought forward", "as booked"]
)
def test_a_prefill_that_is_over_early_waits_for_its_window_unless_that_is_brought_forward(
    tmp_path, bring_forward, live_ms
):
    case = experiment(tmp_path, {**OCS, "bring_forward": bring_forward})
    assert ttft_ms(twin(case, turn("r", factor=2.0))) == pytest.approx([live_ms + DATA_MS], abs=0.01)


def test_a_head_booked_at_admission_starts_no_sooner_either(tmp_path):
    found = {}
    for bring_forward in (True, False):
        fabric = {**OCS, "commit": "admission", "bring_forward": bring_forward}
        case = experiment(tmp_path, fabric, transfer="layerwise")
        # the first is over in half of what is predicted, so the second starts that much before its head's window
        found[bring_forward] = ttft_ms(twin(case, turn("a", factor=2.0, new=4_000), turn("b")))[1]
    assert found[True] < found[False]


def test_the_controller_of_packets_is_told(tmp_path):
    found = load(DEMO, ["fabrics.1.bring_forward=false"])
    plan = FabricPlan(found, found.fabrics[1], 1, ())
    cluster = plan.cluster()
    unixctls = {plane.bridge: "" for plane in cluster.planes}
    fabric = plan.controller(cluster, unixctls=unixctls, log=tmp_path / "log")["fabric"]
    assert FabricConfig.model_validate(fabric).bring_forward is False


def test_nothing_to_bring_forward_is_refused():
    with pytest.raises(SpecError, match=r"bring_forward: false, and commit none books nothing"):
        load(DEMO, ["fabrics.1.commit=none", "fabrics.1.decode_choice=least-loaded", "fabrics.1.bring_forward=false"])
