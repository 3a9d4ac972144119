"""Whatever the order of events, cancellations and overruns: no overlap, tau always paid, nothing leaks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reservation_cases import DECODES, PREFILLS, TAU_S, demand, reservations

from controllers.commit_rules import load as commit_rules
from controllers.core.demand import OutOfOrder
from controllers.core.reservations import Reservations


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
