"""The requests of a run: who owns what, who migrates, and what never changes."""

import math

import pytest

from workloads import tenant_requests
from workloads.arrivals import arrivals, owned_instances, requests
from workloads.prefill import TIMINGS
from workloads.tenants import TenantSpec, migrates
from workloads.traces import formats

H100 = TIMINGS["h100-tp4"]
AGENTIC = TenantSpec("agentic", "synthetic-agentic", share=1.0, load=0.6, profile="tracelab")


def run(tenants=(AGENTIC,), **changes):
    settings = {
        "prefill_instances": 4, "timing": H100, "window_s": 55.0, "warmup_s": 5.0, "seed": 1, "median_error": 0.0,
    }  # fmt: skip
    return arrivals(tenants, **(settings | changes))


def measured(of):
    return [request for request in of.requests if not request.warmup]


def test_demo_offers_at_least_300_measured_requests():
    assert len(measured(run())) >= 300


def test_requests_are_sorted_and_the_warm_up_comes_first_with_ids_and_sessions_of_its_own():
    everything = run().requests
    assert [r.arrival_s for r in everything] == sorted(r.arrival_s for r in everything)
    warm = [r for r in everything if r.warmup]
    assert warm
    assert all(r.id.startswith("warmup-agentic-") and 0 <= r.arrival_s < 5 for r in warm)
    assert all(r.id.startswith("agentic-") and 5 <= r.arrival_s < 60 for r in everything if not r.warmup)
    assert not {r.session for r in warm} & {r.session for r in everything if not r.warmup}
    assert len({r.id for r in everything}) == len(everything)
    assert measured(run())[0].id == "agentic-000000"


def test_offered_load_is_the_tenants_load_over_a_long_window():
    long = run(window_s=8_000.0)
    work_s = math.fsum(H100.duration_s(r.new_tokens, r.cached_tokens) for r in measured(long))
    assert work_s / (8_000 * 4) == pytest.approx(0.6, rel=0.03)
    assert long.reports[0].offered_load == pytest.approx(work_s / (8_000 * 4))


def test_the_same_seed_gives_the_same_requests_and_another_gives_others():
    assert run().requests == run().requests
    assert run().requests != run(seed=2).requests


def test_a_longer_warm_up_shifts_the_measured_requests_and_changes_nothing_else():
    short, long = measured(run(warmup_s=5.0)), measured(run(warmup_s=9.0))
    assert [r.arrival_s - 5 for r in short] == pytest.approx([r.arrival_s - 9 for r in long])
    assert [(r.id, r.new_tokens, r.session) for r in short] == [(r.id, r.new_tokens, r.session) for r in long]


def test_prediction_errors_change_no_arrival_and_no_length():
    exact, noisy = run(median_error=0.0).requests, run(median_error=0.046).requests
    assert all(r.prediction_factor == 1.0 for r in exact)
    assert all(r.prediction_factor != 1.0 for r in noisy)
    assert [(r.id, r.arrival_s, r.new_tokens) for r in exact] == [(r.id, r.arrival_s, r.new_tokens) for r in noisy]


def test_another_tenant_changes_nothing_for_the_first():
    half = TenantSpec("agentic", "synthetic-agentic", share=0.5, load=0.6, profile="tracelab")
    other = TenantSpec("other", "synthetic-agentic", share=0.5, load=0.3, profile="agentx")
    alone = run([AGENTIC], prefill_instances=2).requests
    assert [r for r in run([half, other], prefill_instances=4).requests if r.tenant == "agentic"] == alone


def test_tenants_with_the_same_profile_ask_differently_and_are_merged_in_time():
    pair = [TenantSpec(name, "synthetic-agentic", share=0.5, load=0.6, profile="tracelab") for name in ("a", "b")]
    everything = run(pair).requests
    assert [r.arrival_s for r in everything] == sorted(r.arrival_s for r in everything)
    lengths = {name: [r.new_tokens for r in everything if r.tenant == name] for name in ("a", "b")}
    assert lengths["a"][:20] != lengths["b"][:20]


def test_requests_is_the_requests_of_arrivals():
    settings = {"timing": H100, "window_s": 5.0, "warmup_s": 1.0, "seed": 1, "median_error": 0.0}
    assert requests([AGENTIC], prefill_instances=4, **settings) == run(**settings).requests


def test_always_and_affinity_need_no_draw():
    assert migrates("always", seed=1, request_id="r1") is True
    assert migrates("affinity", seed=1, request_id="r1") is None


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_a_fraction_of_the_requests_migrates(fraction):
    drawn = [migrates(fraction, seed=1, request_id=f"r{i}") for i in range(5_000)]
    assert sum(drawn) / 5_000 == pytest.approx(fraction, abs=0.02)


def test_more_migrations_keep_those_there_were():
    few = {i for i in range(500) if migrates(0.3, seed=1, request_id=f"r{i}")}
    assert few < {i for i in range(500) if migrates(0.6, seed=1, request_id=f"r{i}")}


def shares(*values):
    return [TenantSpec(f"t{i}", "synthetic-agentic", share=value, load=0.5) for i, value in enumerate(values)]


def test_tenants_own_consecutive_instances_by_share():
    owned = owned_instances(shares(0.25, 0.75), prefill_instances=8, decode_instances=4)
    assert owned["t0"].prefills == ("p0", "p1")
    assert owned["t0"].decodes == ("d0",)
    assert owned["t1"].prefills == ("p2", "p3", "p4", "p5", "p6", "p7")
    assert owned["t1"].decodes == ("d1", "d2", "d3")


def test_largest_remainder_gets_the_instance_left_over():
    owned = owned_instances(shares(0.45, 0.55), prefill_instances=3, decode_instances=2)
    # 1.35 and 1.65 of 3; 0.9 and 1.1 of 2.
    assert [len(o.prefills) for o in owned.values()] == [1, 2]
    assert [len(o.decodes) for o in owned.values()] == [1, 1]


def test_whole_quotas_survive_rounding():
    owned = owned_instances(shares(*[0.1] * 10), prefill_instances=30, decode_instances=10)
    assert {len(o.prefills) for o in owned.values()} == {3}


def test_spread_tenants_own_nodes_of_every_rack_in_turn():
    owned = owned_instances(shares(0.25, 0.25, 0.5), prefill_instances=16, decode_instances=8, spread=(8, 2))
    assert owned["t0"].prefills == ("p0", "p1", "p8", "p9")  # the first node of each of two racks
    assert owned["t1"].prefills == ("p2", "p3", "p10", "p11")
    assert owned["t2"].decodes == ("d4", "d5", "d6", "d7")  # one rack: nothing to spread over
    everyone = [name for each in owned.values() for name in each.prefills]
    assert sorted(everyone) == sorted(f"p{i}" for i in range(16))
    uneven = owned_instances(shares(0.5, 0.5), prefill_instances=7, decode_instances=2, spread=(4, 1))
    assert uneven["t0"].prefills == ("p0", "p1", "p4", "p5")
    assert uneven["t1"].prefills == ("p2", "p3", "p6")


def test_a_tenant_that_would_own_nothing_is_refused_with_what_would_do():
    with pytest.raises(ValueError, match=r"t0 .*owns 0\.30 of 3 decode_instances.*to 10"):
        owned_instances(shares(0.1, 0.9), prefill_instances=10, decode_instances=3)


@pytest.mark.parametrize("values", [(0.5,), (0.6, 0.6)])
def test_shares_that_do_not_add_up_to_one_are_refused(values):
    with pytest.raises(ValueError, match="add up to"):
        owned_instances(shares(*values), prefill_instances=4, decode_instances=4)


@pytest.mark.parametrize(
    ("tenant", "message"),
    [
        (TenantSpec("t", "azur", load=0.5), "unknown source 'azur'"),
        (TenantSpec("t", "synthetic-agentic", load=0.5, profile="tracelap"), "unknown profile"),
        (TenantSpec("t", "synthetic-agentic", profile="tracelab"), "needs a load"),
        (TenantSpec("t", "mooncake", load=0.5), "needs a path"),
    ],
)
def test_tenants_that_cannot_be_served_are_refused(tenant, message):
    with pytest.raises(ValueError, match=message):
        run([tenant])


def test_a_trace_is_read_once_however_often_its_requests_are_wanted_and_anew_once_it_has_changed(tmp_path, monkeypatch):
    path = tmp_path / "trace.csv"
    rows = [
        f"2023-11-16 18:15:{second:02d}.{part}000000,{100 + second},5" for second in range(60) for part in range(10)
    ]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows, ""]))
    opened = []
    monkeypatch.setattr(
        tenant_requests, "open_trace", lambda *at, **how: opened.append(at) or formats.open_trace(*at, **how)
    )
    tenant = TenantSpec("azure", "azure", load=0.5, path=str(path))
    first, passes = run([tenant], window_s=4.0, warmup_s=1.0), len(opened)
    assert first.requests
    first.requests.clear()  # whoever changes what was asked for changes it for nobody else
    again = run([tenant], window_s=4.0, warmup_s=1.0)
    assert (len(opened), len(again.requests)) == (
        passes,
        sum(r.measured_requests + r.warmup_requests for r in again.reports),
    )
    path.write_text(path.read_text().replace(",5\n", ",7\n").replace(",1", ",2"))
    longer = run([tenant], window_s=4.0, warmup_s=1.0)
    assert len(opened) == 2 * passes
    assert [r.new_tokens for r in longer.requests] != [r.new_tokens for r in again.requests]
