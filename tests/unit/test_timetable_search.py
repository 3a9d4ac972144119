"""What the calendars find fast, against the plain way: gaps over arrays, and the windows that nothing stands before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controllers.core.calendar import Ask, Calendar, Window
from controllers.core.timetable import Timetable

SPANS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=12)


@given(SPANS, st.integers(1, 6), st.integers(0, 40), st.integers(0, 40))
def test_few_windows_and_many_are_searched_alike(
    spans: list[tuple[int, int]], data_s: int, live_min_s: int, now_s: int
) -> None:
    calendar, end_s = Calendar("p0"), 0.0
    for number, (idle_s, long_s) in enumerate(spans):
        start_s = end_s + idle_s
        end_s = start_s + long_s
        calendar.insert(Window(number, "r", "all", "p0", "d0", start_s, start_s, end_s, long_s, needs_switch=False))
    ask = Ask("new", float(data_s), float(live_min_s), float(now_s))
    found = calendar.gaps(ask)
    assert found == calendar._gaps_at_once(ask)
    assert found[-1] == len(spans)
    for at, window in enumerate(calendar.windows):
        free_s = max(now_s, live_min_s, calendar.windows[at - 1].end_s if at else 0.0)
        assert (at in found) == (window.start_s - free_s >= data_s)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9), st.booleans()), max_size=14))
def test_the_first_windows_are_those_that_are_first_on_both_calendars(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    table = Timetable({f"p{number}": ["d0", "d1", "d2"] for number in range(3)}, dark_s=0.5, reuse=True)
    for number, (prefill, decode, value, books) in enumerate(steps):
        opened = [window for window in table.windows.values() if window.state == "booked"]
        if books:
            table.book(f"p{prefill}", f"d{decode}", "all", Ask(f"r{number}", 1.0, float(value), 0.0))
        elif opened:
            table.end(opened[value % len(opened)], "expired", "", 0.0)
        windows = [window for window in table.windows.values() if window.state == "booked"]
        earlier = {
            window.id
            for window in windows
            for other in windows
            if other.start_s < window.start_s and (other.prefill == window.prefill or other.decode == window.decode)
        }
        found = {window.id for window in table._first_windows()}
        assert found == {window.id for window in windows} - earlier
        assert (table.next_due_s() is None) == (not windows)
