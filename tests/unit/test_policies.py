"""The commit policies beside last-chunk, the network-aware choice, and plug-ins that misbehave."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_reservations_vectors import KV, TIMING, R, turn
from virtual_circuits import Turn, VirtualCircuits

from controllers.commit_rules import load as commit_rules
from controllers.commit_rules.admission import AdmissionCommit
from controllers.commit_rules.no_reservation import NoReservation
from controllers.config import build_core
from controllers.core.demand import Demand
from controllers.core.placement import PacketPlacement
from controllers.core.reservations import Reservations
from controllers.decode_choices import load as decode_choice
from controllers.decode_choices.by_load import LeastLoaded
from controllers.decode_choices.by_network import CircuitAware, NetworkAware
from experiments.schema.models import COMMITS
from inputs import plugin_file
from inputs.plugin_fault import PluginFault

T_MS = 190.8682


def virtual(commit, transfer, *, prefills=("p1",), decodes=("d1",), stands=None, choice=None) -> VirtualCircuits:
    core = commit(
        {prefill: decodes for prefill in prefills},
        rate_bytes_per_s=R,
        reconfiguration_s=0.025,
        decode_choice=choice or CircuitAware(),
        transfer=transfer,
    )
    core.stand(stands or {})
    return VirtualCircuits(core, KV, transfer, R)


def queued(request_id, prefill, start_ms, arrival_ms, factor=1.0) -> Turn:
    one = turn(request_id, prefill, start_ms, factor)
    return Turn(one.id, one.prefill, one.start_s, one.actual, one.predicted, arrival_ms / 1e3)


def at(run, request_id, part, what) -> float:
    (moment,) = [entry[0] for entry in run.log if entry[1:] == (request_id, part, what)]
    return moment


def demand(request_id, prefill="p0", head_bytes=50_000_000, migrates=True, tail_bytes=5_000_000) -> Demand:
    return Demand(request_id, "t", "", prefill, head_bytes, tail_bytes, 62_500, 0.1, migrates)


def test_every_policy_of_the_spec_is_one_of_the_controller():
    assert tuple(commit_rules.BUILT_IN) == COMMITS


# admission


def test_admission_books_everything_when_the_request_arrives():
    run = virtual(AdmissionCommit, "layerwise")
    placement = run.core.admitted(run._demand(turn("r1", "p1")), 0.0)
    head, tail = run.core.windows.values()
    assert placement.decode == "d1"
    assert (head.live_s, head.end_s) == pytest.approx((0.025, 0.144421), abs=1e-6)
    assert (tail.live_s, tail.end_s) == pytest.approx((0.188891, 0.190893), abs=1e-6)


@pytest.mark.parametrize(("transfer", "ttft_ms"), [("layerwise", 190.893), ("pull", 312.292)])
def test_admission_with_exact_predictions_is_as_good_as_last_chunk(transfer, ttft_ms):
    run = virtual(AdmissionCommit, transfer)
    run.run([turn("r1", "p1")])
    assert round(run.last_byte_ms["r1"], 3) == ttft_ms


def test_admission_books_from_the_predicted_end_of_the_whole_queue():
    run = virtual(AdmissionCommit, "pull", decodes=("d1", "d2", "d3"))
    for number in range(3):
        run.core.admitted(run._demand(turn(f"r{number}", "p1")), 0.0)
    lives_ms = [window.live_s * 1e3 for window in run.core.windows.values()]
    # each booking waits for its own prefill, behind those ahead of it
    assert lives_ms == pytest.approx([T_MS, 2 * T_MS, 3 * T_MS], abs=1e-3)


def test_admission_keeps_the_window_of_a_late_prefill_and_pushes_those_behind():
    run = virtual(AdmissionCommit, "pull", prefills=("p1", "p2"))
    late = turn("r1", "p1", factor=1.5)
    other = turn("r2", "p2", 30.0)
    run.run([late, other])
    # r1's circuit is live when planned, idle until its KV exists, and held to its end; r2 follows with its tau
    assert at(run, "r1", "all", "live") == 190.868
    assert at(run, "r1", "all", "done") == pytest.approx(1.5 * T_MS + 121.424, abs=2e-3)
    assert at(run, "r2", "all", "dark") == at(run, "r1", "all", "done")


def test_an_error_ahead_in_the_queue_costs_admission_and_not_last_chunk():
    # r1 takes twice as long as predicted, so r2 starts late; r3 on p2 has its KV ready meanwhile and needs r2's decode
    def turns():
        r1 = queued("r1", "p1", 0.0, 0.0, factor=2.0)
        r2 = queued("r2", "p1", 2 * T_MS, 0.0)
        r3 = queued("r3", "p2", 200.0, 200.0)
        return [r1, r2, r3]

    ends_ms = {}
    for commit in (Reservations, AdmissionCommit):
        run = virtual(commit, "pull", prefills=("p1", "p2"))
        run.run(turns())
        ends_ms[commit] = run.last_byte_ms["r3"]
    assert ends_ms[AdmissionCommit] > ends_ms[Reservations] + 100


def test_admission_starts_a_head_early_when_the_queue_was_shorter_than_predicted():
    run = virtual(AdmissionCommit, "layerwise", stands={"p1": "d1"})
    run.run([queued("r1", "p1", 0.0, 0.0, factor=0.5), queued("r2", "p1", T_MS / 2, 0.0)])
    assert at(run, "r2", "head", "live") == pytest.approx(at(run, "r1", "tail", "done"), abs=0.5)
    assert run.last_byte_ms["r2"] == pytest.approx(1.5 * T_MS + 0.025, abs=2e-3)


def test_a_request_that_died_waiting_does_not_count_as_queued_for_ever():
    core = virtual(AdmissionCommit, "pull").core
    for number in range(3):
        core.admitted(demand(f"r{number}", "p1"), 0.0)
    core.expire("r1", "agent killed", 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    core.prefill_started("r2", 0.3, 0.2)  # r1 ran in between, unannounced
    core.admitted(demand("r3", "p1"), 0.2)
    assert core.windows[3].live_s == pytest.approx(0.4)


def test_every_policy_frees_the_calendars_of_a_request_that_dies_booked_dark_or_live():
    for commit in commit_rules.BUILT_IN.values():
        for transfer in ("pull", "layerwise"):
            for moment_s in (0.0, 0.191, 0.3):
                core = virtual(commit, transfer).core
                core.admitted(demand("r0", "p1", head_bytes=5_000_000_000), 0.0)
                core.prefill_started("r0", 0.19, 0.0)
                core.last_chunk_started("r0", 0.19, 0.0)
                core.last_chunk_started("r0", 0.19, 0.19)
                for window in core.due(moment_s):
                    if window.state == "dark" and moment_s > 0.25:
                        core.live(window.id, moment_s)
                core.expire("r0", "agent killed", moment_s)
                for window in [window for window in core.windows.values() if window.state == "dark"]:
                    core.live(window.id, moment_s + 0.025)
                assert all(not calendar.windows for calendar in core.timetable.calendars.values())
                assert set(core.requests.unfinished.values()) == {0}


# none


def test_without_reservation_ports_are_first_come_first_served():
    run = virtual(NoReservation, "pull", prefills=("p1", "p2"), choice=LeastLoaded())
    run.run([turn("r1", "p1"), turn("r2", "p2", 30.0)])
    # r2 asks at 220.868, waits for r1's last byte at 337.292, and only then does its circuit go dark
    assert at(run, "r2", "all", "dark") == 337.292
    assert run.last_byte_ms["r2"] == pytest.approx(337.292 + 25 + 121.424, abs=2e-3)


def test_without_reservation_layerwise_makes_the_next_wait_for_the_whole_prefill():
    run = virtual(NoReservation, "layerwise", prefills=("p1", "p2"), choice=LeastLoaded())
    run.run([turn("r1", "p1"), turn("r2", "p2", 30.0)])
    assert at(run, "r2", "head", "dark") == 190.893
    assert run.last_byte_ms["r2"] == pytest.approx(337.317, abs=1e-3)


def test_without_reservation_who_waits_starts_as_soon_as_the_ports_are_free():
    core = virtual(NoReservation, "layerwise", prefills=("p1", "p2")).core
    for request_id, prefill in (("r1", "p1"), ("r2", "p2")):
        core.admitted(demand(request_id, prefill), 0.0)
        core.prefill_started(request_id, 10.0, 0.0)
    (window,) = core.due(0.0)
    core.live(window.id, 0.025)
    assert core.next_due_s() is None or core.next_due_s() < 1
    core.expire("r1", "died", 0.5)
    assert core.next_due_s() == 0.5
    (window,) = core.due(0.5)
    assert (window.request_id, window.state) == ("r2", "dark")


def test_without_reservation_layerwise_plans_to_hold_its_ports_until_the_last_layer_is_sent():
    core = virtual(NoReservation, "layerwise").core
    core.admitted(demand("r1", "p1"), 0.0)
    core.prefill_started("r1", 0.5, 0.0)
    head, tail = core.windows.values()
    assert (head.start_s, tail.start_s) == (0.0, head.end_s)
    assert tail.end_s == pytest.approx(0.5 + 62_500 / R)


def test_without_reservation_nobody_overtakes_into_a_gap():
    core = virtual(NoReservation, "pull", prefills=("p1", "p2"), decodes=("d1", "d2"), choice=LeastLoaded()).core
    for number, prefill in enumerate(("p1", "p2", "p1")):
        core.admitted(demand(f"r{number}", prefill, head_bytes=9_000_000_000), 0.0)
        core.prefill_started(f"r{number}", 0.1, 0.0)
        assert core.last_chunk_started(f"r{number}", 0.1, 0.0) is None
    for number in range(3):
        core.last_chunk_started(f"r{number}", 0.1, 0.1)
    by_request = {window.request_id: window for window in core.windows.values()}
    assert by_request["r2"].start_s == pytest.approx(by_request["r0"].end_s)


# network-aware


def test_network_aware_takes_the_decode_where_the_kv_arrives_first():
    core = virtual(Reservations, "pull", prefills=("p1", "p2"), decodes=("d1", "d2"), choice=NetworkAware()).core
    core.stand({"p1": "d1"})
    core.admitted(demand("busy", "p2", head_bytes=45_000_000_000), 0.0)
    core.prefill_started("busy", 0.0, 0.0)
    taken = core.last_chunk_started("busy", 0.0, 0.0).decode
    core.admitted(demand("r1", "p1"), 0.0)
    core.prefill_started("r1", 0.0, 0.0)
    assert core.last_chunk_started("r1", 0.0, 0.0).decode != taken


def test_network_aware_on_packets_counts_the_bytes_on_their_way():
    core = PacketPlacement({"p0": ("d0", "d1")}, transfer="pull", decode_choice=NetworkAware(), rate_bytes_per_s=1e9)
    chosen = []
    for number, head_bytes in enumerate((9_000_000_000, 1_000_000_000, 1_000_000_000, 1_000_000_000)):
        core.admitted(demand(f"r{number}", head_bytes=head_bytes), 0.0)
        core.prefill_started(f"r{number}", 0.1, 0.0)
        chosen.append(core.last_chunk_started(f"r{number}", 0.1, 0.0).decode)
    # by load alone the third would go to d0 again
    assert chosen == ["d0", "d1", "d1", "d1"]
    core.transfer_done("r0", "all", 0.2)
    core.admitted(demand("last"), 0.2)
    core.prefill_started("last", 0.3, 0.2)
    assert core.last_chunk_started("last", 0.3, 0.2).decode == "d0"


# plug-ins


class Raises:
    def choose(self, demand, candidates, now_s):
        raise ZeroDivisionError("no load anywhere")


class Elsewhere:
    def choose(self, demand, candidates, now_s):
        return "d99"


@pytest.mark.parametrize(
    ("choice", "says"), [(Raises, ["Raises", "ZeroDivisionError: no load", "test_policies.py"]), (Elsewhere, ["'d99'"])]
)
@pytest.mark.parametrize("packets", [True, False])
def test_a_decode_choice_that_fails_says_its_name_and_where(choice, says, packets):
    reachable = {"p0": ("d0",)}
    core = (
        PacketPlacement(reachable, transfer="layerwise", decode_choice=choice())
        if packets
        else Reservations(
            reachable, rate_bytes_per_s=1e9, reconfiguration_s=0.0, decode_choice=choice(), transfer="layerwise"
        )
    )
    core.admitted(demand("r0"), 0.0)
    with pytest.raises(PluginFault) as fault:
        core.prefill_started("r0", 0.1, 0.0)
    for text in says:
        assert text in str(fault.value)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("last_chunk", "not one of last-chunk, admission, none"),
        ("pathlib:Path", "names no file yet"),
        ("/no_such_module.py:Rule", "No such file"),
        ("{}/empty.py:NoSuchClass", "no NoSuchClass; its classes: Path, Rule"),
        ("{}/empty.py:Path", "not a class derived from"),
        ("{}/broken_rule.py:Rule", "SyntaxError"),
    ],
)
def test_a_commit_rule_that_cannot_be_loaded_is_refused_by_name(tmp_path: Path, spec, says):
    (tmp_path / "broken_rule.py").write_text("class Rule(:\n")
    (tmp_path / "empty.py").write_text("from pathlib import Path\nclass Rule: ...\n")
    spec = spec.format(tmp_path)
    with pytest.raises(ValueError, match="commit") as refused:
        commit_rules.load(spec)
    assert spec in str(refused.value)
    assert says in str(refused.value)


def test_a_users_commit_rule_is_built_with_the_experiments_settings(tmp_path: Path):
    (tmp_path / "my_rule.py").write_text(
        "from controllers.core.reservations import Reservations\nclass Mine(Reservations):\n    pass\n"
    )
    core = build_core(
        "ocs",
        {"p0": ["d0"]},
        transfer="pull",
        rate_bytes_per_s=1e9,
        reconfiguration_s=0.010,
        excess_s=0.002,
        commit=f"{tmp_path}/my_rule.py:Mine",
        choice="network-aware",
    )
    assert type(core) is plugin_file.load(f"{tmp_path}/my_rule.py:Mine")
    assert core.timetable.dark_s == pytest.approx(0.012)


def test_a_module_that_breaks_on_import_is_refused_as_a_decode_choice_too(tmp_path: Path):
    (tmp_path / "broken_choice.py").write_text("raise RuntimeError('no licence')\n")
    with pytest.raises(ValueError, match=r"broken_choice.py:Choice': .*broken_choice.py:1: RuntimeError: no licence"):
        decode_choice.load(f"{tmp_path}/broken_choice.py:Choice", 1)


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("example", "page"), [("stickiest.py", "own-decode-choice.md"), ("at_prefill_start.py", "own-commit-rule.md")]
)
def test_the_documented_plugins_are_the_files_that_run(example, page):
    text = (ROOT / "examples" / example).read_text()
    assert f"```python\n{text}```" in (ROOT / "docs/how-to" / page).read_text()
    assert len(text.splitlines()) <= 30


def test_the_documented_commit_rule_hides_tau_that_last_chunk_cannot():
    # V8: the last chunk is shorter than tau, so committing at it exposes the rest of tau
    plan = TIMING.plan(2_100, 65_600, KV.layers)
    ends_ms = {}
    own = plugin_file.find("examples.at_prefill_start:AtPrefillStart", [])
    for rule in ("last-chunk", own):
        run = virtual(commit_rules.load(rule), "pull")
        run.run([Turn("r1", "p1", 0.0, plan, plan)])
        ends_ms[rule] = run.last_byte_ms["r1"]
    exposed_ms = 25 - (plan.duration_s - plan.last_chunk_start_s) * 1e3
    assert ends_ms["last-chunk"] - ends_ms[own] == pytest.approx(exposed_ms)
