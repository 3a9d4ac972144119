"""Synthetic agent turns: their percentiles, their sessions, and the prediction errors."""

import math
from statistics import fmean, median

import pytest

from workloads.prediction import lognormal_sigma, prediction_factor
from workloads.prefill import TIMINGS
from workloads.seeds import stream
from workloads.synthetic import (
    PROFILES,
    LognormalProfile,
    PercentileCurve,
    deal_sessions,
    draw_lengths,
    mean_prefill_s,
    poisson_arrivals,
)

H100 = TIMINGS["h100-tp4"]
DRAWS = 40_000


def drawn(profile):
    pairs = draw_lengths(PROFILES[profile], stream(7, "test"), DRAWS)
    return [context for context, _ in pairs], [new for _, new in pairs]


def percentile(values, share):
    return sorted(values)[int(share * len(values))]


def test_tracelab_medians_are_the_published_ones():
    contexts, news = drawn("tracelab")
    assert median(contexts) == pytest.approx(66_700, rel=0.01)
    assert median(news) == pytest.approx(1_100, rel=0.02)
    assert max(contexts) <= 131_072
    # Redrawn, not clipped: contexts do not pile up at the limit.
    assert max(contexts.count(context) for context in contexts[:1000]) < 10


def test_tracelab_new_tokens_have_the_published_spread():
    _, news = drawn("tracelab")
    assert percentile(news, 0.8413) / median(news) == pytest.approx(math.exp(1.2), rel=0.05)


def test_median_migrated_turn_demands_about_28_6_gb_per_s_and_gpu():
    contexts, news = drawn("tracelab")
    demands = [c * 81_920 / H100.duration_s(n, c - n) / 1e9 for c, n in zip(contexts, news, strict=True)]
    assert median(demands) == pytest.approx(28.6, rel=0.06)


def test_agentx_percentiles_are_the_published_ones():
    contexts, news = drawn("agentx")
    for share, tokens in [(0.1, 35_500), (0.5, 81_100), (0.9, 121_000)]:
        assert percentile(contexts, share) == pytest.approx(tokens, rel=0.02)
    for share, tokens in [(0.5, 707), (0.9, 5_028), (0.99, 67_978)]:
        assert percentile(news, share) == pytest.approx(tokens, rel=0.08)
    assert max(contexts) <= 131_072


@pytest.mark.parametrize("profile", list(PROFILES))
def test_new_tokens_are_always_fewer_than_the_context(profile):
    contexts, news = drawn(profile)
    assert all(1 <= new < context for context, new in zip(contexts, news, strict=True))


def test_new_tokens_are_redrawn_rather_than_cut_at_the_context():
    # Half of all independent pairs would have to be cut.
    profile = LognormalProfile(10_000, 0.3, 10_000, 0.3)
    pairs = draw_lengths(profile, stream(1, "test"), 4_000)
    assert sum(new == context - 1 for context, new in pairs) < 10


def test_agentx_contexts_of_long_inputs_are_drawn_among_the_longer_ones():
    pairs = draw_lengths(PROFILES["agentx"], stream(7, "test"), DRAWS)
    long = [(context, new) for context, new in pairs if new > 60_000]
    assert len(long) > 300
    assert sum(context == new + 1 for context, new in long) < 5


@pytest.mark.parametrize("profile", list(PROFILES))
@pytest.mark.parametrize("corner", [1e-15, 0.5, 1 - 1e-15])
def test_corners_of_the_distribution_are_requests_too(profile, corner):
    for other in (1e-15, 1 - 1e-15):
        context, new = PROFILES[profile].lengths(corner, other)
        assert 1 <= new < context <= 131_072


def test_mean_prefill_is_the_mean_over_the_profile_whatever_the_seed():
    contexts, news = drawn("tracelab")
    sample = fmean(H100.duration_s(n, c - n) for c, n in zip(contexts, news, strict=True))
    assert mean_prefill_s(PROFILES["tracelab"], H100) == pytest.approx(sample, rel=0.02)


def test_curve_goes_through_its_percentiles_and_its_inverse_leads_back():
    curve = PercentileCurve(((0.1, 100.0), (0.5, 1_000.0), (0.9, 5_000.0)), limit_tokens=10_000)
    for share, tokens in curve.percentiles:
        assert curve.quantile(share) == pytest.approx(tokens)
    for share in (0.001, 0.05, 0.3, 0.7, 0.95, 0.999):
        assert curve.probability(curve.quantile(share)) == pytest.approx(share)
    assert curve.quantile(1.0) == pytest.approx(10_000)


def test_first_draws_do_not_depend_on_how_many_follow():
    few = draw_lengths(PROFILES["tracelab"], stream(1, "x"), 10)
    assert draw_lengths(PROFILES["tracelab"], stream(1, "x"), 100)[:10] == few


def test_poisson_arrivals_have_the_rate_and_its_variance():
    counts = [len(poisson_arrivals(stream(seed, "arrivals"), 5.0, 20.0)) for seed in range(300)]
    assert fmean(counts) == pytest.approx(100, rel=0.03)
    assert fmean((count - 100) ** 2 for count in counts) == pytest.approx(100, rel=0.25)


def test_poisson_arrivals_at_twice_the_rate_are_the_same_pattern_in_half_the_time():
    slow = poisson_arrivals(stream(1, "arrivals"), 1.0, 50.0)
    fast = poisson_arrivals(stream(1, "arrivals"), 2.0, 25.0)
    assert fast == pytest.approx([time_s / 2 for time_s in slow])


def test_turns_of_a_session_are_ten_seconds_apart():
    count, rate_per_s = 30_000, 6.0
    sessions = deal_sessions(stream(1, "sessions"), count, rate_per_s, "s")
    last, gaps = {}, []
    for i, session in enumerate(sessions):
        if session in last:
            gaps.append((i - last[session]) / rate_per_s)
        last[session] = i
    assert fmean(gaps) == pytest.approx(10.0, rel=0.05)


def test_sessions_have_a_median_of_fifteen_turns_and_are_replaced():
    sessions = deal_sessions(stream(1, "sessions"), 30_000, 6.0, "s")
    turns = {}
    for session in sessions[:20_000]:
        turns[session] = turns.get(session, 0) + 1
    over = [turns[session] for session in turns if session not in set(sessions[20_000:])]
    assert median(over) == pytest.approx(15, abs=2)


@pytest.mark.parametrize("error", [0.01, 0.046, 0.1, 0.3])
def test_half_of_the_predictions_are_within_the_median_error(error):
    factors = [prediction_factor(error, seed=1, request_id=f"r{i}") for i in range(8_000)]
    assert median(abs(factor - 1) for factor in factors) == pytest.approx(error, rel=0.05)
    assert median(factors) == pytest.approx(1.0, abs=error / 10)


def test_predictions_are_exact_at_an_error_of_zero():
    assert prediction_factor(0.0, seed=1, request_id="r1") == 1.0


def test_a_request_keeps_its_draw_whatever_the_error():
    small = prediction_factor(0.046, seed=1, request_id="r1")
    large = prediction_factor(0.1, seed=1, request_id="r1")
    assert math.log(small) / lognormal_sigma(0.046) == pytest.approx(math.log(large) / lognormal_sigma(0.1))
    assert prediction_factor(0.046, seed=2, request_id="r1") != small


@pytest.mark.parametrize("error", [-0.1, 1.0, 4.6, math.nan])
def test_an_error_that_is_no_share_is_refused(error):
    with pytest.raises(ValueError, match="share"):
        prediction_factor(error, seed=1, request_id="r1")
