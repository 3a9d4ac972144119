"""ECMP collisions by hand, and the spread over hash seeds told apart from that over arrivals."""

import math

import pytest
from cluster_cases import leaf_spine_paths

from results.metrics.collisions import collision_figures, collision_line, with_collisions
from results.metrics.hash_seeds import family, hash_spreads
from results.records.schema import TRANSFERS
from results.records.summary import RequestCounts, RunSummary, TtftStatistics
from results.report.table import remarks

APART = leaf_spine_paths(3, 3, uplinks=2)


def transfers(*rows):
    """(request, prefill, decode, uplink, first byte, last byte)."""
    columns = ("request", "prefill", "decode", "uplink", "first_byte_s", "last_byte_s")
    return TRANSFERS.frame([dict(zip(columns, row, strict=True)) | {"rank": 0, "bytes": 1} for row in rows])


def test_transfers_on_one_uplink_share_it_for_as_long_as_both_move():
    found = with_collisions(
        transfers(("a", "p0", "d0", 0, 0.0, 4.0), ("b", "p1", "d1", 0, 3.0, 5.0), ("c", "p2", "d2", 1, 0.0, 9.0)), APART
    )
    assert found["shared_s"].tolist() == [1.0, 1.0, 0.0]
    assert found["sharers"].tolist() == [1, 1, 0]
    assert collision_figures(found) == {
        "transfers": 3,
        "collided": 2,
        "shared_s": 2.0,
        "shared_share_of_time": pytest.approx(2 / 15),
        "most_sharers": 1,
    }
    assert "2 of 3 transfers shared an uplink" in collision_line(collision_figures(found))


def test_the_most_at_once_and_the_time_with_any():
    found = with_collisions(
        transfers(("a", "p0", "d0", 0, 0.0, 10.0), ("b", "p1", "d1", 0, 1.0, 3.0), ("c", "p2", "d2", 0, 2.0, 5.0)),
        APART,
    )
    assert found["shared_s"].tolist() == [4.0, 2.0, 3.0]
    assert found["sharers"].tolist() == [2, 2, 2]


def test_racks_with_uplinks_of_their_own_meet_on_the_way_down():
    paths = leaf_spine_paths(3, 2, uplinks=2, per_rack=2)  # p0 and p1 in one rack, p2 in another
    found = with_collisions(transfers(("a", "p0", "d0", 0, 0.0, 2.0), ("b", "p2", "d1", 0, 1.0, 3.0)), paths)
    assert found["shared_s"].tolist() == [1.0, 1.0]
    elsewhere = with_collisions(transfers(("a", "p0", "d0", 0, 0.0, 2.0), ("b", "p2", "d1", 1, 1.0, 3.0)), paths)
    assert elsewhere["shared_s"].tolist() == [0.0, 0.0]


def test_of_one_nic_to_one_nic_nothing_collides():
    found = with_collisions(transfers(("a", "p0", "d0", 0, 0.0, 2.0), ("b", "p0", "d0", 0, 1.0, 3.0)), APART)
    assert found["sharers"].tolist() == [0, 0]


def test_within_a_rack_and_unended_transfers_are_on_no_uplink():
    together = leaf_spine_paths(3, 3, uplinks=2, per_rack=8, racks="mixed")
    found = with_collisions(transfers(("a", "p0", "d0", 0, 0.0, 2.0)), together)
    assert math.isnan(found["shared_s"][0])
    assert collision_figures(found) is None
    assert collision_figures(with_collisions(transfers(("a", "p0", "d0", 0, 0.0, None)), APART)) is None


def test_warm_up_transfers_collide_but_are_not_counted():
    found = with_collisions(transfers(("warmup-a", "p0", "d0", 0, 0.0, 2.0), ("b", "p1", "d1", 0, 1.0, 3.0)), APART)
    assert collision_figures(found)["transfers"] == 1
    assert collision_figures(found)["collided"] == 1


def run_of(name, seed, hash_seed, mean_s, same="x"):
    counts = RequestCounts(offered=9, completed=9, failed=0, unfinished=0)
    return RunSummary(
        name=name,
        fabric="eps",
        seed=seed,
        substrate="simulation",
        requests=counts,
        ttft_s=TtftStatistics(n=9, mean=mean_s),
        verdict="valid",
        accounting={"ecmp": {"hash_seed": hash_seed, "family": same, "transfers": 0}},
    )


def test_the_spread_over_hashes_is_told_apart_from_that_over_arrivals():
    means = {(1, 3): 1.0, (1, 5): 1.2, (2, 3): 2.0, (2, 5): 2.2}
    runs = [run_of(f"e-h{hashed}", seed, hashed, mean) for (seed, hashed), mean in means.items()]
    (spread,) = hash_spreads(runs)
    assert (spread.fabric, spread.hash_seeds, spread.arrival_seeds) == ("e", (3, 5), (1, 2))
    assert spread.mean_s == pytest.approx(1.6)
    assert spread.over_hashes_s == pytest.approx(0.2 / math.sqrt(2))
    assert spread.over_arrivals_s == pytest.approx(1 / math.sqrt(2))
    assert any(
        "0.1414 s over 2 hash seeds under the same arrivals, 0.7071 s over 2" in line
        for line in remarks({"schema": 1, "runs": [run.model_dump() for run in runs]})
    )


def test_one_arrival_seed_says_nothing_of_arrivals():
    (spread,) = hash_spreads([run_of("e-h3", 1, 3, 1.0), run_of("e-h5", 1, 5, 1.2)])
    assert spread.over_arrivals_s is None
    assert "one arrival seed" in spread.line()


def test_what_is_missing_or_of_another_kind_is_left_out():
    assert hash_spreads([run_of("a", 1, 3, 1.0), run_of("b", 1, 5, 1.0, same="y")]) == []
    assert hash_spreads([run_of("e-h3", 1, 3, 1.0), run_of("e-h5", 1, 5, None)]) == []


def test_a_family_is_what_differs_in_name_and_hash_seed_only():
    fabric = {"name": "a", "kind": "eps", "uplinks": 2, "ecmp_seed": 1}
    assert family(fabric) == family(fabric | {"name": "b", "ecmp_seed": 9})
    assert family(fabric) != family(fabric | {"uplinks": 3})
