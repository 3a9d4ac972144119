"""Flows in virtual time: closed forms of sharing and of streams that grow, and bytes that are conserved."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from simulation.clock import VirtualClock
from simulation.fair_share import FairNetwork
from simulation.flows import FlowNetwork
from simulation.max_min import max_min
from simulation.release import Piece, finish_s, release_pieces
from workloads.kv import kv_model
from workloads.prefill import TIMINGS
from workloads.serving import KvStream

KV = kv_model("llama-3.1-70b", tp=4)
TIMING = TIMINGS["h100-tp4"]


def all_at(at_s: float, size: float) -> tuple[Piece, ...]:
    return Piece(-math.inf, 0.0, 0.0, at_s), Piece(at_s, size, 0.0, math.inf)


def run(capacities, flows) -> tuple[list[float], FlowNetwork]:
    """`flows`: (start_s, path, pieces); when each has crossed."""
    clock, done = VirtualClock(), [math.nan] * len(flows)
    network = FairNetwork(clock, capacities)
    for index, (start_s, path, pieces) in enumerate(flows):

        def start(now_s, index=index, path=path, pieces=pieces):
            network.start(path, pieces, lambda at_s: done.__setitem__(index, at_s))

        clock.at(start_s, start)
    clock.run(math.inf)
    network.close(clock.now_s)
    return done, network


def test_a_lone_flow_takes_its_bytes_over_the_rate():
    done, _ = run([10.0], [(1.0, (0,), all_at(0.0, 50.0))])
    assert done == pytest.approx([6.0])


def test_two_flows_share_and_the_second_speeds_up_when_the_first_is_done():
    # 5 each until 20 and 20 bytes are gone at 4 s; then the second has the link: 30 bytes in 3 s
    done, _ = run([10.0], [(0.0, (0,), all_at(0.0, 20.0)), (0.0, (0,), all_at(0.0, 50.0))])
    assert done == pytest.approx([4.0, 7.0])


def test_a_late_flow_slows_the_first_one():
    # 10 alone for 2 s, then 5 each: 30 more bytes take 6 s
    done, _ = run([10.0], [(0.0, (0,), all_at(0.0, 50.0)), (2.0, (0,), all_at(0.0, 100.0))])
    assert done == pytest.approx([8.0, 15.0])


def test_three_flows_on_two_links_change_rates_together():
    # rates 8, 2, 2 (by hand in test_max_min); b ends at 5 s, then a has 10 and c has 4
    flows = [(0.0, (0,), all_at(0.0, 60.0)), (0.0, (0, 1), all_at(0.0, 10.0)), (0.0, (1,), all_at(0.0, 30.0))]
    done, _ = run([10.0, 4.0], flows)
    assert done == pytest.approx([7.0, 5.0, 10.0])


def test_a_flow_that_waits_for_its_stream_leaves_the_rest_of_the_link_to_others():
    grows = (Piece(-math.inf, 0.0, 0.0, 0.0), Piece(0.0, 0.0, 2.0, 10.0), Piece(10.0, 20.0, 0.0, math.inf))
    done, _ = run([10.0], [(0.0, (0,), grows), (0.0, (0,), all_at(0.0, 40.0))])
    assert done == pytest.approx([10.0, 5.0])


def test_a_flow_that_fell_behind_its_stream_catches_up():
    # 4 bytes/s come into being until 10 s; with two others on the link it gets 10/3 until they are done at 6 s
    grows = (Piece(-math.inf, 0.0, 0.0, 0.0), Piece(0.0, 0.0, 4.0, 10.0), Piece(10.0, 41.0, 0.0, math.inf))
    done, _ = run([10.0], [(0.0, (0,), grows), (0.0, (0,), all_at(0.0, 20.0)), (0.0, (0,), all_at(0.0, 20.0))])
    assert done == pytest.approx([10.1, 6.0, 6.0])


def test_what_a_flow_gives_back_when_it_has_caught_up_goes_to_the_others():
    # thirds until c is gone at 3 s; then 5 each, a catches up at 5 s and needs 4, so b goes on at 6
    grows = (Piece(-math.inf, 0.0, 0.0, 0.0), Piece(0.0, 0.0, 4.0, 10.0), Piece(10.0, 40.0, 0.0, math.inf))
    done, _ = run([10.0], [(0.0, (0,), grows), (0.0, (0,), all_at(0.0, 50.0)), (0.0, (0,), all_at(0.0, 10.0))])
    assert done == pytest.approx([10.0, 10.0, 3.0])


def test_every_link_carries_exactly_the_bytes_of_its_flows():
    flows = [(0.0, (0,), all_at(0.0, 60.0)), (0.5, (0, 1), all_at(0.7, 10.0)), (1.0, (1,), all_at(0.0, 30.0))]
    _, network = run([10.0, 4.0], flows)
    assert network.carried_bytes == pytest.approx([70.0, 40.0])


def test_a_run_that_is_cut_counts_what_crossed():
    clock = VirtualClock()
    network = FairNetwork(clock, [10.0])
    clock.at(0.0, lambda now_s: network.start((0,), all_at(0.0, 50.0), lambda at_s: None) and None)
    clock.at(2.0, lambda now_s: None)
    clock.run(2.0)
    network.close(2.0)
    assert network.carried_bytes == pytest.approx([20.0])


@pytest.mark.parametrize("seed", range(6))
def test_rates_stay_max_min_of_the_whole_network_although_only_a_part_is_computed(seed):
    draw, clock = random.Random(seed), VirtualClock()
    capacities = [draw.choice([4.0, 10.0, 25.0]) for _ in range(12)]
    network = FairNetwork(clock, capacities)
    checked = 0

    def whole(now_s: float) -> None:
        nonlocal checked
        flows = list({flow: None for link in network.links for flow in link.flows})
        wanted = max_min(
            [[link.number for link in flow.path] for flow in flows], [flow.limit for flow in flows], capacities
        )
        assert [flow.rate for flow in flows] == pytest.approx(wanted, rel=1e-6, abs=1e-6)
        checked += len(flows)

    clock.after_each_moment(whole)
    for _ in range(60):
        start_s, size = draw.uniform(0, 20), draw.uniform(1, 60)
        path = tuple(draw.sample(range(12), 3))
        slow = Piece(start_s, 0.0, draw.uniform(0.1, 6.0), start_s + 3)
        grows = (Piece(-math.inf, 0.0, 0.0, start_s), slow, Piece(start_s + 3, 18.0 + size, 0.0, math.inf))
        pieces = draw.choice([all_at(start_s, size), grows])
        clock.at(start_s, lambda now_s, p=path, q=pieces: network.start(p, q, lambda at_s: None) and None)
    clock.run(math.inf)
    assert checked > 500


@pytest.mark.parametrize(("new", "cached"), [(1_100, 65_600), (5_000, 61_700), (60, 0), (2_100, 2_000)])
@pytest.mark.parametrize("rate", [45e9, 15e9, 2e9, 1e8])
def test_a_stream_in_pieces_ends_when_the_stream_of_layers_does(new, cached, rate):
    """The staircase of layers, sent at a constant rate from any moment: latest of release + what was left then."""
    stream = KvStream(TIMING.plan(new, cached, KV.layers), KV, "layerwise", 3.0)
    for live_s in (3.0, 3.0 + stream.plan.duration_s * 0.37, stream.end_s, stream.end_s + 1):
        staircase_s, at_s = live_s + stream.total_bytes / rate, 2.0
        while (next_s := stream.next_release_s(at_s)) is not None:
            left = stream.total_bytes - stream.bytes_at(at_s)
            staircase_s = max(staircase_s, max(next_s, live_s) + left / rate)
            at_s = next_s
        ours_s = finish_s(release_pieces(stream), 0, stream.total_bytes, live_s, rate)
        assert ours_s == pytest.approx(staircase_s, abs=2 / rate + 1e-9)
        done, _ = run([rate], [(live_s, (0,), release_pieces(stream))])
        assert done == pytest.approx([staircase_s], abs=4 / rate + 1e-9)


def test_pieces_are_contiguous_and_never_ahead_of_the_stream():
    stream = KvStream(TIMING.plan(5_000, 61_700, KV.layers), KV, "layerwise", 3.0)
    pieces = release_pieces(stream)
    assert all(before.end_s == after.start_s for before, after in pairwise(pieces))
    assert pieces[-1].level_bytes == stream.total_bytes
    for step in range(1, 2_000):
        at_s = 3.0 + stream.plan.duration_s * step / 2_000
        piece = next(piece for piece in pieces if piece.start_s <= at_s < piece.end_s)
        assert piece.at(at_s) <= stream.bytes_at(at_s) + 2
