"""Shortest remaining first: levels of a few priorities that put the flows of a fabric in order."""

from hypothesis import given
from hypothesis import strategies as st

from emulation.agents.ranks import MIDDLE, Ranks
from emulation.network.dscp import LEVELS

POOL = 2


def ranks(**capacities: int) -> Ranks:
    return Ranks({"pool": POOL, **capacities})


def test_of_two_on_a_link_the_shorter_goes_first_however_near_they_are():
    fabric = ranks()
    fabric.start("long", ["d0"], 600_000)
    first = fabric.rank()
    fabric.start("short", ["d0"], 546_000)
    second = fabric.rank()
    assert first == {"long": MIDDLE}
    assert second == {"short": MIDDLE - 1}, "the one under way is not moved: its queued packets would go first"


def test_what_counts_is_what_remains():
    fabric = ranks()
    fabric.start("long", ["d0"], 600_000)
    fabric.rank()
    assert not fabric.remaining("long", 540_000)
    fabric.start("short", ["d0"], 546_000)
    assert fabric.rank() == {"short": MIDDLE + 1}


def test_the_longer_one_resumes_at_the_level_it_has():
    fabric = ranks()
    for name, size in (("long", 900), ("short", 500)):
        fabric.start(name, ["d0"], size)
        fabric.rank()
    fabric.end("short")
    assert fabric.rank() == {}


def test_a_flow_that_overtakes_another_is_put_before_it():
    fabric = ranks()
    levels = {}
    for name, size in (("a", 900), ("b", 500)):
        fabric.start(name, ["d0"], size)
        levels |= fabric.rank()
    assert fabric.remaining("a", 400)
    levels |= fabric.rank()
    assert levels["a"] < levels["b"]


def test_flows_that_share_nothing_share_a_level():
    fabric = ranks()
    fabric.start("a", ["d0"], 900)
    fabric.start("b", ["d1"], 100)
    assert fabric.rank() == {"a": MIDDLE, "b": MIDDLE}


def test_a_pool_orders_only_what_it_cannot_carry():
    fabric = ranks()
    for number in range(5):
        fabric.start(number, ["pool"], 100 * (number + 1))
    levels = fabric.rank()
    assert levels[0] <= levels[1] < levels[2] < levels[3] < levels[4]


def test_equal_flows_go_in_the_order_of_their_start():
    fabric = ranks()
    for name in ("first", "second"):
        fabric.start(name, ["d0"], 100)
    levels = fabric.rank()
    assert levels["first"] < levels["second"]


def test_more_flows_than_levels_share_the_last_one_and_move_up_when_they_can():
    fabric = ranks()
    for number in range(LEVELS + 3):
        fabric.start(number, ["d0"], 100 * (number + 1))
    levels = fabric.rank()
    assert [levels[number] for number in range(LEVELS + 3)] == [*range(LEVELS), *[LEVELS - 1] * 3]
    for number in range(6):
        fabric.end(number)
    levels |= fabric.rank()
    assert [levels[number] for number in range(6, LEVELS + 3)] == sorted(
        {levels[number] for number in range(6, LEVELS + 3)}
    )


Sizes = st.lists(
    st.tuples(st.sampled_from(["p0", "p1", "p2"]), st.sampled_from(["d0", "d1", "d2"]), st.integers(1, 50)),
    min_size=1,
    max_size=12,
)


@given(Sizes, st.randoms(use_true_random=False))
def test_the_order_holds_on_every_crowded_link_after_any_history(flows, random):
    """Except among those that share the last level because there are too few."""
    fabric = ranks()
    alive: dict[int, tuple[tuple[str, ...], int, int]] = {}
    levels: dict[int, int] = {}
    for number, (source, destination, size) in enumerate(flows):
        links = (source, "pool", destination)
        fabric.start(number, links, size)
        alive[number] = (links, size, number)
        levels |= fabric.rank()
        if random.random() < 0.3:
            gone = random.choice(list(alive))
            fabric.end(gone)
            del alive[gone]
        elif random.random() < 0.5:
            changed = random.choice(list(alive))
            links, _, place = alive[changed]
            alive[changed] = (links, random.randint(1, 50), place)
            fabric.remaining(changed, alive[changed][1])
        levels |= fabric.rank()
        for link in {link for links, *_ in alive.values() for link in links}:
            on = sorted((flow for flow in alive if link in alive[flow][0]), key=lambda flow: alive[flow][1:])
            capacity = POOL if link == "pool" else 1
            if len(on) <= capacity:
                continue
            there = [levels[flow] for flow in on]
            assert there == sorted(there)
            for place in range(capacity, len(there)):
                assert there[place - 1] < there[place] or there[place] == LEVELS - 1


@given(Sizes)
def test_overtaking_is_noticed(flows):
    """Where `remaining` says that nobody was overtaken, ranking anew changes nothing."""
    fabric = ranks()
    for number, (source, destination, size) in enumerate(flows):
        fabric.start(number, (source, "pool", destination), size)
    fabric.rank()
    for number, (*_, size) in enumerate(flows):
        if not fabric.remaining(number, max(size - 7, 0)):
            assert fabric.rank() == {}
        fabric.rank()
