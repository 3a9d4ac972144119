"""The sticky decode choice: on packets, what circuits make of a placement."""

from controllers.config import build_core
from controllers.core.demand import Demand
from controllers.decode_choices.load import BUILT_IN
from experiments.schema.models import DECODE_CHOICES

GB = 1_000_000_000


def placed(core, request_id, prefill, now_s, *, gigabytes=1, end_s=None) -> str:
    """The decode of a request whose last chunk starts at `now_s` and whose KV exists at `end_s`."""
    core.admitted(Demand(request_id, "t", "", prefill, gigabytes * GB, 0, 0, 0.1, True), now_s)
    core.prefill_started(request_id, now_s, now_s)
    return core.last_chunk_started(request_id, now_s if end_s is None else end_s, now_s).decode


def sticky(kind="eps", **options):
    reachable = {prefill: ["d0", "d1"] for prefill in ("p0", "p1")}
    return build_core(kind, reachable, transfer="pull", rate_bytes_per_s=GB, choice="sticky", **options)


def test_every_choice_of_the_spec_is_one_of_the_controller():
    assert sorted(BUILT_IN) == sorted(DECODE_CHOICES)


def test_a_prefill_stays_with_the_decode_it_used_last():
    core = sticky()
    decodes = []
    for number in range(4):
        decodes.append(placed(core, f"r{number}", "p0", 10.0 * number))
        core.transfer_done(f"r{number}", "all", 10.0 * number + 5)
    assert len(set(decodes)) == 1


def test_it_leaves_a_decode_that_is_not_free_in_time():
    core = sticky()
    first = placed(core, "r0", "p0", 0.0, gigabytes=5)
    assert placed(core, "r1", "p0", 1.0) != first


def test_what_ends_before_the_kv_exists_is_free_in_time():
    core = sticky()
    first = placed(core, "r0", "p0", 0.0, gigabytes=5)
    assert placed(core, "r1", "p0", 1.0, end_s=7.0) == first


def test_a_prefill_does_not_follow_another_ones_decode():
    core = sticky()
    first = placed(core, "r0", "p0", 0.0)
    core.transfer_done("r0", "all", 1.0)
    assert placed(core, "r1", "p1", 2.0) != first


def test_where_none_is_free_the_earliest_is_taken():
    core = sticky()
    first = placed(core, "r0", "p0", 0.0, gigabytes=9)
    other = placed(core, "r1", "p1", 0.0, gigabytes=2)
    assert first != other
    assert placed(core, "r2", "p0", 1.0) == other


def test_on_circuits_it_is_the_same_code():
    core = sticky("ocs", reconfiguration_s=0.025)
    first = placed(core, "r0", "p0", 0.0)
    (window,) = core.due(0.0)
    core.live(window.id, 0.025)
    core.transfer_done("r0", "all", 1.1)
    assert placed(core, "r1", "p0", 2.0) == first
