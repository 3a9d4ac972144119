"""The gap that is booked is the earliest there is, on calendars of any history."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reservation_cases import DECODES, PREFILLS, TAU_S, reservations

from controllers.core.calendar import Ask, Calendar, Window, earliest_gap


def brute_force_live_s(prefill: Calendar, decode: Calendar, ask: Ask, *, reuse: bool) -> float:
    """The earliest live time on a millisecond grid, straight from the rules."""

    def last_before(calendar: Calendar, start_ms: int) -> Window | None:
        return max(
            (w for w in calendar.windows if round(w.end_s * 1e3) <= start_ms), key=lambda w: w.start_s, default=None
        )

    def fits(live_ms: int) -> bool:
        for dark_ms in (0, 25):
            start_ms, end_ms = live_ms - dark_ms, live_ms + round(ask.data_s * 1e3)
            if start_ms < round(ask.now_s * 1e3):
                continue
            before = last_before(prefill, start_ms), last_before(decode, start_ms)
            peers = (
                before[0].decode if before[0] else prefill.peer,
                before[1].prefill if before[1] else decode.peer,
            )
            owners = (
                before[0].request_id if before[0] else prefill.owner,
                before[1].request_id if before[1] else decode.owner,
            )
            stands = peers == (decode.instance, prefill.instance) and (reuse or owners == (ask.request_id,) * 2)
            if (dark_ms == 0) != stands:
                continue
            room = True
            for window in {*prefill.windows, *decode.windows}:
                needs_ms = round(window.start_s * 1e3)
                after = needs_ms >= start_ms and (window in (_next(prefill, start_ms), _next(decode, start_ms)))
                undisturbed = window.joins(prefill.instance, decode.instance)
                disturbed = not (undisturbed and (reuse or window.request_id == ask.request_id))
                if after and not window.needs_switch and disturbed:
                    needs_ms = round(window.live_s * 1e3) - 25
                if start_ms < round(window.end_s * 1e3) and end_ms > needs_ms:
                    room = False
            if room:
                return True
        return False

    def _next(calendar: Calendar, start_ms: int) -> Window | None:
        return min(
            (w for w in calendar.windows if round(w.start_s * 1e3) >= start_ms), key=lambda w: w.start_s, default=None
        )

    live_ms = max(round(ask.live_min_s * 1e3), round(ask.now_s * 1e3))
    while not fits(live_ms):
        live_ms += 1
    return live_ms / 1e3


@settings(max_examples=150, deadline=None)
@given(
    bookings=st.lists(
        st.tuples(
            st.sampled_from(PREFILLS),
            st.sampled_from(DECODES),
            st.integers(1, 80),
            st.integers(0, 400),
            st.integers(0, 1),
        ),
        max_size=12,
    ),
    changes=st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=6),
    data_ms=st.integers(1, 120),
    live_min_ms=st.integers(0, 300),
    reuse=st.booleans(),
    whose=st.integers(0, 1),
    stands=st.sampled_from([{}, {"p0": "d0"}, {"p0": "d1"}, {"p1": "d0"}]),
)
def test_the_booked_gap_is_the_earliest_that_brute_force_finds(
    bookings, changes, data_ms, live_min_ms, reuse, whose, stands
):
    """On calendars of any history; `whose` makes the new booking one of the requests that booked before."""
    table = reservations("pull", reuse).timetable
    table.stand(stands)
    for prefill, decode, length_ms, live_ms, request in bookings:
        table.book(prefill, decode, "all", Ask(f"r{request}", length_ms / 1e3, live_ms / 1e3, 0.0))
    ask = Ask(f"r{whose}", data_ms / 1e3, live_min_ms / 1e3, 0.0)
    prefill, decode = table.calendars["p0"], table.calendars["d0"]
    for number, cancelled in changes:  # windows go and move after a search has looked at them
        table.earliest_gap("p0", "d0", ask)
        if number in table.windows and cancelled:
            table.end(table.windows[number], "expired", "", 0.0)
        elif number in table.windows:
            table.bring_forward(table.windows[number], 0.0, 0.0)
    gap = earliest_gap(prefill, decode, ask, dark_s=TAU_S, reuse=reuse)
    assert gap.live_s == pytest.approx(brute_force_live_s(prefill, decode, ask, reuse=reuse))
    assert gap.live_s - gap.start_s == pytest.approx(0.0 if gap.stands else TAU_S)
    assert gap.end_s - gap.live_s == pytest.approx(ask.data_s)
