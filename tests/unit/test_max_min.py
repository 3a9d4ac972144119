"""Max-min fair rates: by hand, and by their two defining properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.max_min import max_min

INF = math.inf


def test_one_flow_gets_its_narrowest_link():
    assert max_min([[0, 1]], [INF], [10.0, 4.0]) == [4.0]


def test_two_flows_share_a_link_equally():
    assert max_min([[0], [0]], [INF, INF], [10.0]) == [5.0, 5.0]


def test_three_flows_on_two_links():
    # link 0 (10) carries a and b, link 1 (4) carries b and c: b and c get 2 each, a takes what b leaves
    assert max_min([[0], [0, 1], [1]], [INF] * 3, [10.0, 4.0]) == [8.0, 2.0, 2.0]


def test_what_a_limited_flow_leaves_goes_to_the_others():
    assert max_min([[0], [0], [0]], [1.0, INF, INF], [10.0]) == [1.0, 4.5, 4.5]


def test_a_flow_that_has_nothing_to_send_takes_nothing():
    assert max_min([[0], [0]], [0.0, INF], [10.0]) == [0.0, 10.0]


def test_a_flow_without_link_or_limit_is_refused():
    with pytest.raises(ValueError, match="flow 0 crosses no link"):
        max_min([[]], [INF], [])


@st.composite
def networks(draw):
    links = draw(st.integers(1, 6))
    capacities = draw(st.lists(st.floats(0.5, 100), min_size=links, max_size=links))
    flows = draw(st.integers(1, 10))
    paths = [draw(st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True)) for _ in range(flows)]
    limits = draw(st.lists(st.one_of(st.just(INF), st.floats(0, 50)), min_size=flows, max_size=flows))
    return paths, limits, capacities


@given(networks())
def test_rates_fit_every_link_and_none_can_grow_without_lowering_one_no_larger(network):
    paths, limits, capacities = network
    rates = max_min(paths, limits, capacities)
    tolerance = 1e-9 * max(capacities)
    load = [
        sum(rate for rate, path in zip(rates, paths, strict=True) if link in path) for link in range(len(capacities))
    ]
    assert all(rate >= 0 for rate in rates)
    assert all(carried <= capacity + tolerance for carried, capacity in zip(load, capacities, strict=True))
    for rate, path, limit in zip(rates, paths, limits, strict=True):
        assert rate <= limit + tolerance
        # its bottleneck: its own limit, or a full link on which nobody is faster
        fastest = {link: max(r for r, p in zip(rates, paths, strict=True) if link in p) for link in path}
        full = [link for link in path if load[link] >= capacities[link] - tolerance]
        assert rate >= limit - tolerance or any(rate >= fastest[link] - tolerance for link in full)
