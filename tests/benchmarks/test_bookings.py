"""How fast a booking is: 5,000 a second on calendars of 100 windows, at most a millisecond at 10,000.

Limits are on processor time, and on the fastest of several rounds: other programs can only make a round slower.
"""

from __future__ import annotations

import random
import time

import pytest

from controllers.core.calendar import Ask
from controllers.core.timetable import Timetable

TAU_S = 0.025


def loaded(windows: int, *, packed: bool, seed: int = 1) -> Timetable:
    """Two prefills and two decodes whose calendars hold `windows` windows each: packed solid, or with gaps of all
    sizes."""
    draw = random.Random(seed)
    table = Timetable({"p0": ["d0", "d1"], "p1": ["d0", "d1"]}, dark_s=TAU_S, reuse=True)
    for number in range(windows):
        live_min_s = 0.0 if packed else number * 0.25
        for prefill, decode in (("p0", "d0"), ("p1", "d1")) if number % 2 else (("p0", "d1"), ("p1", "d0")):
            data_s = 0.05 if packed else draw.uniform(0.02, 0.2)
            table.book(prefill, decode, "all", Ask(f"w{number}{prefill}", data_s, live_min_s, 0.0))
    return table


def best_booking_s(table: Timetable, *, rounds: int = 7, each: int = 20, data_s: float) -> float:
    """Seconds of one booking (search, entry, follow-up), the best of `rounds`; the bookings are taken back."""
    draw = random.Random(2)
    horizon_s = table.calendars["p0"].windows[-1].end_s
    best_s = float("inf")
    for _ in range(rounds):
        asks = [Ask(f"new{i}", data_s, draw.uniform(0, horizon_s), 0.0) for i in range(each)]
        began_s = time.process_time()
        booked = [table.book("p0", "d0", "all", ask) for ask in asks]
        best_s = min(best_s, (time.process_time() - began_s) / each)
        for window in booked:
            table.end(window, "expired", "", 0.0)
    return best_s


@pytest.mark.parametrize("packed", [True, False])
def test_five_thousand_bookings_a_second_on_calendars_of_100_windows(benchmark, packed):
    table = loaded(100, packed=packed)
    benchmark.extra_info["windows"] = 100
    best_s = benchmark.pedantic(best_booking_s, args=(table,), kwargs={"data_s": 0.04}, rounds=3)
    assert best_s <= 1 / 5000


@pytest.mark.parametrize("packed", [True, False])
def test_a_booking_on_calendars_of_10_000_windows_takes_at_most_a_millisecond(benchmark, packed):
    table = loaded(10_000, packed=packed)
    best_s = benchmark.pedantic(best_booking_s, args=(table,), kwargs={"data_s": 0.04}, rounds=3)
    assert best_s <= 1e-3


def test_under_overload_a_thousand_queued_windows_do_not_slow_the_search(benchmark):
    # nothing fits before the end, from wherever it looks: the worst case of a search in time order
    table = loaded(1_000, packed=True)
    best_s = benchmark.pedantic(best_booking_s, args=(table,), kwargs={"data_s": 10.0}, rounds=3)
    assert best_s <= 1 / 2000
