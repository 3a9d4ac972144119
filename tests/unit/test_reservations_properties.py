"""Whatever the order of events, cancellations and overruns: no overlap, tau always paid, nothing leaks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers import commit_rules
from controllers.calendar import Ask, Calendar, Window, earliest_gap
from controllers.decode_choice import CircuitAware, LeastLoaded
from controllers.demand import Demand, DuplicateRequest, EventError, OutOfOrder, UnknownRequest
from controllers.placement import PacketPlacement
from controllers.reservations import Reservations

TAU_S = 0.025
PREFILLS, DECODES = ("p0", "p1", "p2"), ("d0", "d1")
REACHABLE = {prefill: DECODES for prefill in PREFILLS}


def reservations(transfer: str, reuse: bool = True, commit: str = "last-chunk") -> Reservations:
    return commit_rules.load(commit)(
        REACHABLE,
        rate_bytes_per_s=1e9,
        reconfiguration_s=TAU_S,
        decode_choice=CircuitAware(),
        transfer=transfer,
        reuse=reuse,
    )


def demand(request_id: str, prefill: str = "p0", head_bytes: int = 50_000_000, migrates: bool | None = True) -> Demand:
    return Demand(request_id, "t", "", prefill, head_bytes, 5_000_000, 62_500, 0.1, migrates)


class Driver:
    """Plays random events against the core and checks after each that its ports could really be wired like that."""

    def __init__(self, core: Reservations) -> None:
        self.core = core
        self.now_s = 0.0
        self.requests: list[str] = []
        self.circuits: dict[str, str] = {}
        self.torn_at: dict[tuple[str, str], float] = {}

    def step(self, action: int, pick: int, wait_ms: int) -> None:
        self.now_s += wait_ms / 1e3
        self._start_due()
        if action <= 1:
            request_id = f"r{len(self.requests)}"
            self.requests.append(request_id)
            prefill = PREFILLS[pick % len(PREFILLS)]
            # a head that takes longer to move than the prefill takes has its tail right behind it
            head_bytes = [50_000_000, 150_000_000][pick % 2]
            asked = demand(request_id, prefill, head_bytes, migrates=[True, False, None][pick % 3])
            self.core.admitted(asked, self.now_s)
        elif self.requests:
            request_id = self.requests[-1 - pick % min(len(self.requests), 4)]
            try:
                if action == 9:
                    self.core.sender_lost(PREFILLS[pick % len(PREFILLS)], "killed", self.now_s)
                elif action == 8:
                    self.core.expire(request_id, "killed", self.now_s)
                elif action == 7:  # whatever the request's state
                    self.core.last_chunk_started(request_id, self.now_s + (pick % 7) * 0.01, self.now_s)
                else:
                    self._advance(request_id, pick)
            except OutOfOrder:
                pass
        self._start_due()
        self._check()

    def _advance(self, request_id: str, pick: int) -> None:
        """The event that this request waits for; its live windows are done."""
        state = self.core.requests.get(request_id).state
        live = [window for window in self.core.timetable.open_windows(request_id) if window.state == "live"]
        if state == "admitted":
            self.core.prefill_started(request_id, self.now_s + 0.05, self.now_s)
        elif state == "prefill-started" and not live:
            self.core.last_chunk_started(request_id, self.now_s + (pick % 7) * 0.01, self.now_s)
        for window in live:
            self.core.transfer_done(request_id, window.part, self.now_s)

    def finish_everything(self) -> None:
        for _ in range(20 * (len(self.requests) + 1)):
            open_windows = [w for w in self.core.windows.values() if w.state in ("booked", "dark", "live")]
            if not open_windows:
                return
            for window in open_windows:
                if window.state == "live":
                    self.core.transfer_done(window.request_id, window.part, self.now_s)
            self.now_s += 0.05
            self._start_due()
            self._check()
        raise AssertionError("windows never end: the calendars are deadlocked")

    def _start_due(self) -> None:
        for window in list(self.core.windows.values()):  # the shell's switches, each at the moment it is over
            if window.state == "dark" and window.dark_at_s + TAU_S <= self.now_s:
                self.core.live(window.id, window.dark_at_s + TAU_S)
        while (due_s := self.core.next_due_s()) is not None and due_s <= self.now_s:
            for window in self.core.due(self.now_s):
                if window.state == "live":
                    assert self.core.standing()[window.prefill] == window.decode
                else:
                    assert window.prefill not in self.core.standing()
                    assert window.live_s >= self.now_s + TAU_S - 1e-9

    def _check(self) -> None:
        for calendar in self.core.timetable.calendars.values():
            for earlier, later in zip(calendar.windows, calendar.windows[1:], strict=False):
                assert earlier.end_s <= later.start_s + 1e-9
                continues = later.request_id == earlier.request_id and later.joins(earlier.prefill, earlier.decode)
                assert later.state == "booked" or (earlier.state == "live" and continues), "a port was given away early"
        for window in self.core.windows.values():
            if window.state in ("booked", "dark", "live"):
                assert window.end_s >= window.start_s, "a window ends before it starts"
                assert window.end_s - window.live_s >= window.data_s - 1e-9 or window.state == "live"
            if window.live_at_s is not None and window.dark_at_s is not None:
                assert window.live_at_s - window.dark_at_s >= TAU_S - 1e-9
            if window.state == "booked" and window.needs_switch:
                assert window.live_s - window.start_s >= TAU_S - 1e-9, "a window that switches holds tau"
            if window.state == "booked" and not window.needs_switch:
                assert window.live_s == pytest.approx(window.start_s), "reuse never pays tau"
        decodes = list(self.core.standing().values())
        assert len(decodes) == len(set(decodes)), "a port is in two circuits"
        self._check_conserved()

    def _check_conserved(self) -> None:
        """Booked time is neither made nor lost: whatever was pushed, pulled, booked anew or given tau back, each open
        window lies on its own two calendars once, and a booked one has time for exactly what it was booked for."""
        table = self.core.timetable
        on: dict[int, list[str]] = {}
        for name, calendar in table.calendars.items():
            for window in calendar.windows:
                on.setdefault(window.id, []).append(name)
        still_open = {w.id: w for w in self.core.windows.values() if w.state in ("booked", "dark", "live")}
        assert {number: set(names) for number, names in on.items()} == {
            number: {window.prefill, window.decode} for number, window in still_open.items()
        }
        assert all(len(names) == 2 for names in on.values()), "a window lies on a calendar twice"
        for window in still_open.values():
            if window.state == "booked":
                assert window.end_s - window.live_s == pytest.approx(window.data_s, abs=1e-9)
        booked_s = [
            sum(
                window.end_s - window.start_s
                for name in names
                for window in table.calendars[name].windows
                if window.state == "booked"
            )
            for names in (PREFILLS, DECODES)
        ]
        assert booked_s[0] == pytest.approx(booked_s[1], abs=1e-6)
        demanded_s = sum(
            window.data_s + (TAU_S if window.needs_switch else 0.0)
            for window in still_open.values()
            if window.state == "booked"
        )
        assert booked_s[0] == pytest.approx(demanded_s, abs=1e-6)


@settings(max_examples=300, deadline=None)
@given(
    commit=st.sampled_from(list(commit_rules.BUILT_IN)),
    transfer=st.sampled_from(["pull", "layerwise"]),
    reuse=st.booleans(),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 41), st.integers(0, 60)), min_size=30, max_size=120),
)
def test_random_events_never_overlap_windows_nor_leak_one(commit, transfer, reuse, steps):
    driver = Driver(reservations(transfer, reuse, commit))
    for step in steps:
        driver.step(*step)
    for request_id in driver.requests:
        if driver.core.requests.get(request_id).state != "done":
            driver.core.expire(request_id, "end of the test", driver.now_s)
    driver.finish_everything()
    assert all(not calendar.windows for calendar in driver.core.timetable.calendars.values())
    assert all(load == 0 for load in driver.core.requests.unfinished.values())


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


@pytest.mark.parametrize(
    "make",
    [lambda: reservations("pull"), lambda: PacketPlacement(REACHABLE, transfer="pull", decode_choice=LeastLoaded())],
)
def test_events_out_of_order_are_refused_and_change_nothing(make):
    core = make()
    with pytest.raises(UnknownRequest):
        core.prefill_started("r0", 0.1, 0.0)
    core.admitted(demand("r0"), 0.0)
    with pytest.raises(DuplicateRequest):
        core.admitted(demand("r0"), 0.0)
    with pytest.raises(OutOfOrder):
        core.last_chunk_started("r0", 0.1, 0.0)
    with pytest.raises(OutOfOrder):
        core.transfer_done("r0", "all", 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    core.last_chunk_started("r0", 0.1, 0.0)
    with pytest.raises(OutOfOrder):
        core.transfer_done("r0", "head", 0.5)
    with pytest.raises(EventError, match="p9"):
        core.admitted(demand("r1", prefill="p9"), 0.0)


def test_a_request_that_dies_in_the_dark_keeps_its_ports_until_the_switch_is_over():
    core = reservations("layerwise")
    core.admitted(demand("r0"), 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    (window,) = core.due(0.0)
    core.expire("r0", "agent killed", 0.010)
    assert window.state == "dark"
    assert core.live(window.id, 0.025).state == "expired"
    assert core.standing() == {"p0": window.decode}
    assert all(not calendar.windows for calendar in core.timetable.calendars.values())


def test_a_refused_switch_frees_both_ports_and_ends_the_request():
    core = reservations("layerwise")
    core.admitted(demand("r0"), 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    (window,) = core.due(0.0)
    core.refuse(window.id, "barrier timed out", 0.030)
    assert (window.state, window.reason) == ("refused", "barrier timed out")
    assert core.requests.get("r0").state == "done"
    assert core.requests.unfinished[window.decode] == 0


def test_without_reuse_only_the_same_request_finds_its_circuit_standing():
    core = reservations("layerwise", reuse=False)
    for request_id in ("r0", "r1"):
        core.admitted(demand(request_id), 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    core.last_chunk_started("r0", 0.1, 0.0)
    head, tail = core.windows.values()
    assert (head.needs_switch, tail.needs_switch) == (True, False)
    core.prefill_started("r1", 0.3, 0.2)
    assert core.windows[2].needs_switch


def test_a_new_prediction_books_a_window_that_is_not_dark_anew():
    core = reservations("pull")
    core.admitted(demand("r0"), 0.0)
    core.prefill_started("r0", 0.2, 0.0)
    core.last_chunk_started("r0", 0.2, 0.0)
    core.last_chunk_started("r0", 0.3, 0.1)
    old, new = core.windows.values()
    assert (old.state, new.state) == ("released", "booked")
    assert new.live_s == pytest.approx(0.3)


def test_a_circuit_aware_choice_prefers_a_standing_circuit_to_an_idle_decode():
    core = reservations("pull")
    core.stand({"p0": "d1"})
    core.admitted(demand("r0"), 0.0)
    core.prefill_started("r0", 0.2, 0.0)
    assert core.last_chunk_started("r0", 0.2, 0.0).decode == "d1"


def test_affinity_leaves_the_head_where_the_session_was_served():
    core = PacketPlacement(REACHABLE, transfer="layerwise", decode_choice=LeastLoaded())
    moves = []
    for request_id in ("r0", "r1", "r2"):
        core.admitted(Demand(request_id, "t", "s", "p0", 1000, 10, 1, 0.1, None), 0.0)
        placement = core.prefill_started(request_id, 0.1, 0.0)
        core.last_chunk_started(request_id, 0.1, 0.1)
        for part in ("head", "tail") if placement.head_moves else ("tail",):
            core.transfer_done(request_id, part, 0.1)
        moves.append((placement.decode, placement.head_moves))
    assert moves == [("d0", True), ("d1", True), ("d0", True)]


def test_a_shorter_prediction_leaves_a_dark_window_time_for_its_data():
    core = reservations("layerwise")
    core.admitted(demand("r0", migrates=False), 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    core.last_chunk_started("r0", 0.03, 0.0)
    (window,) = core.due(core.next_due_s())
    core.last_chunk_started("r0", 0.0, 0.0051)
    assert window.state == "dark"
    assert window.end_s >= window.live_s + window.data_s


def test_nothing_is_booked_over_a_tail_that_is_live_behind_its_head():
    """The tail's plan may still lie in the future when the head ends early; its ports are taken all the same."""
    core = Reservations(
        {"p0": ("d0",), "p1": ("d0",)},
        rate_bytes_per_s=1e9,
        reconfiguration_s=0.0,
        decode_choice=CircuitAware(),
        transfer="layerwise",
    )
    core.admitted(demand("r0"), 0.0)
    core.prefill_started("r0", 0.01, 0.0)
    core.last_chunk_started("r0", 0.01, 0.0)
    for window in core.due(0.0):
        if window.state == "dark":
            core.live(window.id, 0.0)
    core.due(0.0)
    head, tail = core.windows.values()
    assert (head.state, tail.state) == ("live", "live")
    core.transfer_done("r0", "head", head.end_s - 0.004)
    core.admitted(Demand("r1", "t", "", "p1", 1_000_000, 10_000, 125, 0.1, True), head.end_s - 0.004)
    core.prefill_started("r1", head.end_s + 0.1, head.end_s - 0.004)
    assert core.windows[2].start_s >= tail.end_s


def test_a_prefill_that_ends_before_its_head_has_moved_leaves_the_tail_its_time():
    """The tail is live along with the head, and a new prediction of the prefill's end lies before the head's."""
    core = reservations("layerwise", commit="admission")
    core.admitted(demand("r0", head_bytes=150_000_000), 0.0)
    core.prefill_started("r0", 0.1, 0.0)
    for window in core.due(0.0):
        core.live(window.id, TAU_S)
    core.due(TAU_S)
    head, tail = core.windows.values()
    assert (head.state, tail.state) == ("live", "live")
    core.last_chunk_started("r0", 0.02, TAU_S)
    assert tail.start_s >= head.end_s
    assert tail.end_s == pytest.approx(tail.start_s + tail.data_s)
    core.admitted(demand("r1", "p1"), TAU_S)
    core.admitted(demand("r2", "p2"), TAU_S)
    calendar = core.timetable.calendars[head.decode].windows
    assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(calendar))
