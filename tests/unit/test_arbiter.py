"""The arbiter of shortest remaining first: what senders tell it, and whom it tells what."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from agents_stand_in import a_request
from test_agents_end_to_end import Launch, launch, run  # noqa: F401

from emulation.agents.arbiter import Arbiter
from emulation.agents.config import SrptConfig
from emulation.agents.transfer import Frame, open_connection
from emulation.agents.wire import FrameHeader, KvPart
from emulation.network.dscp import tos

RACKS = {"p0": 0, "p1": 0, "p2": 0, "d0": 1, "d1": 1, "d2": 1}


class Desk:
    """An arbiter and the levels that its senders know."""

    def __init__(self, uplinks: int = 1, racks: dict[str, int] = RACKS) -> None:
        self.told: list[tuple[str, str]] = []
        self.levels: dict[str, list[int]] = {}
        self.later: list[Callable[[], None]] = []
        self.arbiter = Arbiter(SrptConfig(racks, uplinks), self._hear, lambda _, callback: self.later.append(callback))

    def _hear(self, prefill: str, message: dict) -> None:
        self.told.append((prefill, message["id"]))
        self.levels[message["id"]] = list(message["levels"])

    def remaining(self, prefill: str, request_id: str, decode: str, *sizes: int) -> None:
        message = {"type": "kv_remaining", "id": request_id, "decode": decode, "bytes": list(sizes)}
        self.arbiter.on_message(prefill, message)

    def settle(self) -> None:
        while self.later:
            self.later.pop()()

    def ended(self, prefill: str, request_id: str) -> None:
        self.arbiter.on_message(prefill, {"type": "kv_ended", "id": request_id})


def test_the_shorter_of_two_to_one_decode_goes_first_and_nobody_else_is_told():
    desk = Desk(uplinks=3)
    desk.remaining("p0", "long", "d0", 600_000)
    desk.remaining("p1", "short", "d0", 546_000)
    assert desk.levels["short"] < desk.levels["long"]
    assert desk.told == [("p0", "long"), ("p1", "short")]


def test_transfers_that_meet_on_a_crowded_uplink_only_are_told_apart():
    desk = Desk(uplinks=2)
    for number, size in enumerate((300, 200, 100)):
        desk.remaining(f"p{number}", f"r{number}", f"d{number}", size)
    assert desk.levels["r2"] <= desk.levels["r1"] < desk.levels["r0"]


def test_within_a_rack_no_uplink_is_crossed():
    desk = Desk(uplinks=1, racks=dict.fromkeys(RACKS, 0))
    for number, size in enumerate((300, 200, 100)):
        desk.remaining(f"p{number}", f"r{number}", f"d{number}", size)
    assert desk.levels["r0"] == desk.levels["r1"] == desk.levels["r2"]


def test_each_rank_has_ports_of_its_own():
    desk = Desk(uplinks=8)
    desk.remaining("p0", "a", "d0", 600, 100)
    desk.remaining("p1", "b", "d0", 300, 300)
    (first, second), (other_first, other_second) = desk.levels["a"], desk.levels["b"]
    assert first > other_first
    assert second < other_second


def test_word_that_changes_no_order_is_passed_on_to_nobody():
    desk = Desk()
    desk.remaining("p0", "a", "d0", 600)
    desk.remaining("p1", "b", "d0", 500)
    said = len(desk.told)
    desk.remaining("p0", "a", "d0", 550)
    assert len(desk.told) == said
    assert not desk.later
    desk.remaining("p0", "a", "d0", 400)
    desk.settle()
    assert desk.levels["a"] < desk.levels["b"]


def test_who_starts_is_told_at_once_and_what_overtakes_is_settled_together():
    desk = Desk()
    for number in range(3):
        desk.remaining(f"p{number}", f"r{number}", "d0", 300 - number)
    said = len(desk.told)
    assert {name for _, name in desk.told} == {"r0", "r1", "r2"}
    for number in range(3):
        desk.remaining(f"p{number}", f"r{number}", "d0", 100 + number)
    assert len(desk.told) == said
    assert len(desk.later) == 1
    desk.settle()
    assert desk.levels["r0"] < desk.levels["r1"] < desk.levels["r2"]


def test_what_a_lost_sender_sent_is_in_nobodys_way():
    desk = Desk()
    desk.remaining("p0", "a", "d0", 100)
    desk.arbiter.lost("p0")
    desk.remaining("p1", "b", "d0", 500)
    desk.remaining("p0", "a", "d0", 100)
    assert desk.levels["a"] < desk.levels["b"]


def test_the_end_of_one_that_is_not_there_is_nothing():
    desk = Desk()
    desk.ended("p0", "never")
    assert desk.told == []


def test_a_sender_of_no_known_rack_is_refused():
    with pytest.raises(KeyError):
        Desk().remaining("p9", "a", "d0", 100)


@pytest.mark.parametrize("transfer", ["pull", "layerwise"])
def test_agents_ask_for_a_level_before_they_send(launch: Launch, tmp_path: Path, transfer: str) -> None:  # noqa: F811
    requests = [a_request(number, 0.02 * number, new_tokens=300) for number in range(8)]
    srpt = {"racks": {"p0": 0, "p1": 0, "d0": 1, "d1": 1}, "uplinks": 2}
    agents, _ = launch(requests, prefills=2, decodes=2, ranks=2, transfer=transfer, srpt=srpt)
    records = run(agents)
    assert agents.of("error") == []
    assert {record["status"] for record in records.values()} == {"completed"}


def test_a_connection_marks_its_packets_and_knows_what_has_arrived() -> None:
    async def work() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        rate = {"congestion_control": "cubic", "rate_bytes_per_s": 4.5e6}
        connection = await open_connection("127.0.0.1", listener.getsockname(), **rate)
        peer, _ = listener.accept()
        done: list[Frame] = []
        frame = Frame(FrameHeader(0, 0, KvPart.ALL, 5_000, False), done.append, lambda *_: None)
        connection.mark(3)
        assert connection._socket.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == tos(3)
        with pytest.raises(ValueError, match="level is 8"):
            connection.mark(8)
        connection.enqueue(frame)
        connection.release(frame, 3_000)
        while connection.delivered_bytes < 3_000:
            await asyncio.sleep(0.001)
        assert done == []
        connection.release(frame, 5_000)
        while not done:
            await asyncio.sleep(0.001)
        assert connection.delivered_bytes == 5_000
        connection.close()
        connection.mark(1)  # one that is over has nothing to mark
        for end in (peer, listener):
            end.close()

    asyncio.run(asyncio.wait_for(work(), 10))
