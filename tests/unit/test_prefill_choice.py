"""Which prefill instance gets a request: the built-in choices, the gateway's books, and a user's own class."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agents_stand_in import a_request
from plugin_cases import heliograph
from twin_cases import EPS, experiment, turn, twin

from emulation.plan.fabric_plan import FabricPlan
from experiments.schema import plugins
from experiments.schema.errors import SpecError
from experiments.schema.spec import load
from inputs.plugin_fault import PluginFault
from inputs.plugin_file import sha256
from workloads.prefill import TIMINGS
from workloads.prefill_choice import LeastUnfinished, LeastWork
from workloads.prefill_router import PrefillRouter

ROOT = Path(__file__).resolve().parents[2]
DEMO, EXAMPLE = ROOT / "experiments" / "demo.yaml", ROOT / "examples" / "same_prefill.py"
H100 = TIMINGS["h100-tp4"]
LONG = {"new_tokens": 40_000, "cached_tokens": 0}
LONG_S = H100.duration_s(40_000, 0)
SHORT_S = H100.duration_s(100, 2000)
NAMES = ["p0", "p1", "p2"]


class Recorder:
    """Answers by rote, and keeps what it was shown."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.seen: list[dict[str, tuple[int, float, int, bool]]] = []

    def choose(self, demand, candidates, now_s):
        self.seen.append({c.prefill: (c.unfinished, round(c.work_s, 6), c.rank, c.served) for c in candidates})
        return self.answers.pop(0)


def router(choice) -> PrefillRouter:
    return PrefillRouter(choice, H100)


def test_least_unfinished_prefers_the_idle_and_breaks_ties_by_recency():
    balance = router(LeastUnfinished())
    assert [balance.send(a_request(i, 0.0), NAMES, 0.0) for i in range(4)] == ["p0", "p1", "p2", "p0"]
    balance.ended("r2", 1.0)
    assert balance.send(a_request(4, 0.0), NAMES, 1.0) == "p2"
    balance.ended("r0", 1.0)
    # All have one; p1 was chosen longest ago.
    assert balance.send(a_request(5, 0.0), NAMES, 1.0) == "p1"


def test_least_work_sends_no_turn_behind_a_long_prefill():
    by_work, by_count = router(LeastWork()), router(LeastUnfinished())
    turns = [a_request(0, 0.0, **LONG), *(a_request(i, 0.0) for i in range(1, 5))]
    assert [by_work.send(each, NAMES[:2], 0.0) for each in turns] == ["p0", "p1", "p1", "p1", "p1"]
    assert [by_count.send(each, NAMES[:2], 0.0) for each in turns] == ["p0", "p1", "p0", "p1", "p0"]


def test_work_left_is_that_of_the_queue_with_the_rest_of_the_prefill_that_runs():
    rote = Recorder("p0", "p0", "p1")
    books = router(rote)
    books.send(a_request(0, 0.0, **LONG), NAMES[:2], 0.0)
    books.send(a_request(1, 0.0), NAMES[:2], 0.5)
    books.send(a_request(2, 0.0), NAMES[:2], LONG_S)
    assert rote.seen[1] == {"p0": (1, round(LONG_S - 0.5, 6), 1, False), "p1": (0, 0.0, 0, False)}
    # the long one is over by the prediction, and unfinished: its first token is not here
    assert rote.seen[2]["p0"][:2] == (2, round(SHORT_S, 6))


def test_work_is_the_predicted_work():
    rote = Recorder("p0", "p0")
    books = router(rote)
    books.send(a_request(0, 0.0, prediction_factor=2.0), ["p0"], 0.0)
    books.send(a_request(1, 0.0), ["p0"], 0.0)
    assert rote.seen[1]["p0"][1] == round(2 * SHORT_S, 6)


def test_a_prefill_that_ends_early_brings_forward_what_is_behind_it():
    rote = Recorder("p0", "p0", "p0")
    books = router(rote)
    books.send(a_request(0, 0.0, **LONG), ["p0"], 0.0)
    books.send(a_request(1, 0.0), ["p0"], 0.0)
    books.ended("r0", 1.0)
    books.send(a_request(2, 0.0), ["p0"], 1.0)
    assert rote.seen[2]["p0"][:2] == (1, round(SHORT_S, 6))


def test_the_prefill_of_a_request_that_failed_runs_on():
    rote = Recorder("p0", "p0")
    books = router(rote)
    books.send(a_request(0, 0.0, **LONG), ["p0"], 0.0)
    books.ended("r0", 1.0, prefilled=False)
    books.send(a_request(1, 0.0), ["p0"], 1.0)
    assert rote.seen[1]["p0"][:2] == (0, round(LONG_S - 1.0, 6))


def test_a_session_s_last_instance_is_marked():
    rote = Recorder("p1", "p0", "p0")
    books = router(rote)
    for i, session in enumerate(["a", "b", "a"]):
        books.send(a_request(i, 0.0, session=session), NAMES, 0.0)
    assert [served for *_, served in rote.seen[1].values()] == [False] * 3
    assert [served for *_, served in rote.seen[2].values()] == [False, True, False]


def test_what_is_not_under_way_cannot_end_and_no_instance_is_no_choice():
    with pytest.raises(ValueError, match="r9 is not under way"):
        router(LeastWork()).ended("r9", 0.0)
    with pytest.raises(ValueError, match="no instance"):
        router(LeastWork()).send(a_request(1, 0.0), [], 0.0)


@pytest.mark.parametrize("answer", ["d0", None, 7])
def test_an_answer_that_is_no_candidate_is_said_with_the_rule_s_name(answer):
    with pytest.raises(PluginFault, match=r"prefill choice .*Recorder returned .* it may choose among p0, p1, p2"):
        router(Recorder(answer)).send(a_request(1, 0.0), NAMES, 0.0)


def test_the_twin_sends_a_turn_past_a_long_prefill_with_least_work(tmp_path):
    case = experiment(tmp_path, {**EPS, "uplinks": 4}, prefill_instances=2, decode_instances=2)
    turns = [turn("long", new=40_000, cached=0), turn("a", 10), turn("b", 20), turn("c", 30)]
    ways = {}
    for choice in ("least-unfinished", "least-work"):
        asked = case.model_copy(update={"prefill": case.prefill.model_copy(update={"choice": choice})})
        prefills = twin(asked, *turns).frames.requests.set_index("id")["prefill"]
        ways[choice] = [prefills[each.id] for each in turns]
    assert ways["least-work"] == ["p0", "p1", "p1", "p1"]
    assert ways["least-unfinished"] == ["p0", "p1", "p0", "p1"]


def test_the_example_keeps_a_session_where_it_is_from_a_folder_outside_the_checkout(tmp_path):
    (tmp_path / "my_prefill.py").write_text(EXAMPLE.read_text())
    text = DEMO.read_text().replace("prefill: {", 'prefill: {choice: "my_prefill:SamePrefill", ')
    (tmp_path / "mine.yaml").write_text(text.replace("window_s: 55", "window_s: 20"))
    done = heliograph("simulate", "mine.yaml", "--artifact-dir", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = load(tmp_path / "out" / "config.yaml")
    assert config.plugins == {"prefill.choice": f"{tmp_path}/my_prefill.py:SamePrefill"}
    assert len(EXAMPLE.read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("least-woork", "is no prefill choice; did you mean 'least-work'"),
        ("nosuch:Thing", "prefill.choice"),
    ],
)
def test_a_choice_that_is_nowhere_is_refused_with_its_key(setting, said):
    with pytest.raises(SpecError, match=said):
        load(DEMO, [f"prefill.choice={setting}"])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("class Own: pass", "it has no method choose"),
        ("class Own:\n    def __init__(self, x): ...\n    def choose(self): ...", "TypeError"),
        ("raise SystemExit(0)", "own.py:1: SystemExit: 0"),
    ],
)
def test_a_class_that_cannot_be_built_is_refused_before_anything_is(tmp_path, body, said):
    (tmp_path / "own.py").write_text(body)
    [line] = plugins.refusals(load(DEMO, [f"prefill.choice={tmp_path}/own.py:Own"]))
    assert line.startswith("prefill.choice: ")
    assert said in line


def test_the_gateway_is_told_the_rule_the_seed_and_the_digest_of_its_file(tmp_path):
    found = load(DEMO, [f"prefill.choice={EXAMPLE}:SamePrefill"])
    plan = FabricPlan(found, found.fabrics[0], 3, (), {str(EXAMPLE): sha256(EXAMPLE)})
    cluster = plan.cluster()
    names = dict.fromkeys([*(instance.name for instance in cluster.instances), "gw"], "")
    agents = plan.agents(
        cluster, namespaces=names, controller=("127.0.0.1", 1), ecmp_ports={}, requests_file=Path(os.devnull)
    )
    assert agents["prefill_choice"] == {"rule": f"{EXAMPLE}:SamePrefill", "seed": 3, "sha256": sha256(EXAMPLE)}
