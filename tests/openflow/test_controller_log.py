"""The controller's log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from full_disk import files_end_at

from controllers.ryu_app.event_log import EventLog


def test_each_event_is_on_disk_as_a_line_when_write_returns(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log.jsonl")
    log.write("window", window=1, t_s=0.5)
    log.write("fault", reason="line one\nline two")
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"event": "window", "window": 1, "t_s": 0.5},
        {"event": "fault", "reason": "line one\nline two"},
    ]


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    for number in range(2):
        log = EventLog(tmp_path / "log.jsonl")
        log.write("start", number=number)
        log.close()
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2


def test_a_number_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.write("window", t_s=float("nan"))
    assert (tmp_path / "log.jsonl").read_text() == ""


def test_a_log_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        EventLog(tmp_path / "missing" / "log.jsonl")


@pytest.mark.parametrize(("room_bytes", "why"), [(0, "File too large"), (5, "No space left on device")])
def test_a_log_without_room_ends_and_says_why(tmp_path: Path, room_bytes: int, why: str) -> None:
    log = EventLog(tmp_path / "log.jsonl")
    log.write("first")
    with files_end_at((tmp_path / "log.jsonl").stat().st_size + room_bytes):
        log.write("second")
    log.write("third")
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 1
    assert log.trouble is not None
    assert f"log.jsonl cannot be written: {why}" in log.trouble
