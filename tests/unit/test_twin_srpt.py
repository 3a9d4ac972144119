"""Shortest remaining first, by hand: one link, two links, streams that grow, and the twin of `routing: srpt`."""

from __future__ import annotations

import math
import random

import pytest
from twin_cases import EPS, R, experiment, ttft_ms, turn, twin

from simulation.clock import VirtualClock
from simulation.release import Piece
from simulation.shortest_first import ShortestFirstNetwork, _remaining


def all_at(at_s: float, size: float) -> tuple[Piece, ...]:
    return Piece(-math.inf, 0.0, 0.0, at_s), Piece(at_s, size, 0.0, math.inf)


def run(capacities, flows, watch=None) -> tuple[list[float], ShortestFirstNetwork]:
    """`flows`: (start_s, path, pieces); when each has crossed."""
    clock, done = VirtualClock(), [math.nan] * len(flows)
    network = ShortestFirstNetwork(clock, capacities)
    if watch is not None:
        clock.after_each_moment(lambda now_s: watch(network, now_s))
    for index, (start_s, path, pieces) in enumerate(flows):

        def start(now_s, index=index, path=path, pieces=pieces):
            network.start(path, pieces, lambda at_s: done.__setitem__(index, at_s))

        clock.at(start_s, start)
    clock.run(math.inf)
    network.close(clock.now_s)
    return done, network


def test_the_shorter_has_the_whole_link_and_the_longer_resumes_after_it():
    done, _ = run([10.0], [(0.0, (0,), all_at(0.0, 60.0)), (0.0, (0,), all_at(0.0, 54.6))])
    assert done == pytest.approx([11.46, 5.46])


def test_a_shorter_one_that_comes_later_interrupts():
    # 30 of 50 are left at 2 s; 20 go first, until 4 s
    done, _ = run([10.0], [(0.0, (0,), all_at(0.0, 50.0)), (2.0, (0,), all_at(0.0, 20.0))])
    assert done == pytest.approx([7.0, 4.0])


def test_what_remains_counts_and_not_the_size():
    # at 4 s 10 of 50 are left, and 20 that come then wait
    done, _ = run([10.0], [(0.0, (0,), all_at(0.0, 50.0)), (4.0, (0,), all_at(0.0, 20.0))])
    assert done == pytest.approx([5.0, 7.0])


def test_of_two_alike_the_first_to_start_goes_first():
    done, _ = run([10.0], [(0.0, (0,), all_at(0.0, 30.0)), (0.0, (0,), all_at(0.0, 30.0))])
    assert done == pytest.approx([3.0, 6.0])


def test_one_that_waits_elsewhere_holds_back_nobody():
    # c (10) has link 1, so b (20) waits; a (60) has link 0 meanwhile, and is interrupted from 1 s to 3 s
    flows = [(0.0, (0,), all_at(0.0, 60.0)), (0.0, (0, 1), all_at(0.0, 20.0)), (0.0, (1,), all_at(0.0, 10.0))]
    done, _ = run([10.0, 10.0], flows)
    assert done == pytest.approx([8.0, 3.0, 1.0])


def test_a_slower_one_leaves_the_rest_and_is_overtaken_on_the_way():
    # a (30) has 4 over link 1, b (40) the other 6 of link 0: even at 5 s with 10 left each; then b has all of link 0
    # and ends at 6 s, and a goes on at 4 for 2.5 s
    flows = [(0.0, (0, 1), all_at(0.0, 30e6)), (0.0, (0,), all_at(0.0, 40e6))]
    done, _ = run([10e6, 4e6], flows)
    assert done == pytest.approx([8.5, 6.0], abs=1e-5)


def test_a_stream_that_grows_takes_what_exists_and_its_place_is_by_all_of_it():
    # a: 20 in all, 2 a second, so it goes first and b (50) has the other 8: even at 5 s with 10 left each; then b has
    # all of it and ends at 6 s, and a catches up
    grows = (Piece(-math.inf, 0.0, 0.0, 0.0), Piece(0.0, 0.0, 2e6, 10.0), Piece(10.0, 20e6, 0.0, math.inf))
    done, _ = run([10e6], [(0.0, (0,), grows), (0.0, (0,), all_at(0.0, 50e6))])
    assert done == pytest.approx([10.0, 6.0], abs=1e-5)
    # 15 are less than 20, most of which do not exist yet
    done, _ = run([10e6], [(0.0, (0,), grows), (0.0, (0,), all_at(0.0, 15e6))])
    assert done == pytest.approx([10.0, 1.5], abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_at_every_moment_no_flow_is_held_back_by_one_with_more_left(seed):
    draw, checked = random.Random(seed), 0
    capacities = [draw.choice([4e3, 10e3, 25e3]) for _ in range(8)]

    def holds(network, now_s):
        nonlocal checked
        flows = list({flow: None for link in network.links for flow in link.flows})
        for link in network.links:
            assert sum(flow.rate for flow in link.flows) <= link.capacity * (1 + 1e-9)
        for flow in flows:
            if flow.rate >= flow.limit * (1 - 1e-9):
                continue
            # a link where those that go before it, a byte or so even with it included, leave it just what it has
            left = _remaining(flow, now_s)
            assert any(
                link.capacity - sum(o.rate for o in link.flows if o is not flow and _remaining(o, now_s) <= left + 2)
                <= flow.rate + 1e-3
                for link in flow.path
            )
            checked += 1

    flows = []
    for _ in range(50):
        start_s, size = draw.uniform(0, 20), float(draw.randint(1_000, 60_000))
        grows = (
            Piece(-math.inf, 0.0, 0.0, start_s),
            Piece(start_s, 0.0, size / 3, start_s + 3),
            Piece(start_s + 3, size + 500, 0.0, math.inf),
        )
        flows.append((start_s, tuple(draw.sample(range(8), 3)), draw.choice([all_at(start_s, size), grows])))
    done, network = run(capacities, flows, holds)
    assert checked > 200
    assert not any(math.isnan(at_s) for at_s in done)
    total = sum(pieces[-1].level_bytes for _, _, pieces in flows)
    assert sum(network.carried_bytes) == pytest.approx(3 * total)


def test_two_turns_of_which_the_shorter_goes_first(tmp_path):
    """On one uplink: the shorter ends as if it were alone, and the other when the link has carried both."""
    case = experiment(tmp_path, EPS | {"routing": "srpt"}, prefill_instances=2, decode_instances=2)
    longer, shorter = turn("r0", new=1_000, cached=65_000), turn("r1", new=1_100, cached=64_000)
    b_ms = [1e3 * case.kv.rank_bytes(each.new_tokens + each.cached_tokens) / R for each in (longer, shorter)]
    t_ms = [1e3 * case.timing.duration_s(each.new_tokens, each.cached_tokens) for each in (longer, shorter)]
    # what remains of the longer one when the shorter starts is less than the shorter has: it goes on
    assert t_ms[1] - t_ms[0] > b_ms[0] - b_ms[1] > 0
    assert ttft_ms(twin(case, longer, shorter)) == pytest.approx([t_ms[0] + b_ms[0], t_ms[0] + sum(b_ms)], abs=2e-3)
    # both at once, as if their prefills were alike: the shorter goes first
    late = turn("r2", t_ms[1] - t_ms[0], new=1_000, cached=65_000)
    wanted = [t_ms[1] + b_ms[1], t_ms[0] + sum(b_ms)]
    assert ttft_ms(twin(case, shorter, late)) == pytest.approx(wanted, abs=2e-3)
