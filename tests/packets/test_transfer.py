"""KV transfers over a shaped link between two namespaces: a frame takes bytes / goodput, and agents agree."""

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import pytest
from agents_stand_in import AgentsUnderTest, StandInController, a_request, loopback_config
from namespaces import inside

from emulation.agents.clock import new_event_loop
from emulation.agents.kernel import enter_network_namespace, set_timer_slack
from emulation.agents.lines import listen
from emulation.agents.transfer import Frame, KvConnection, open_connection, receive_now
from emulation.agents.wire import FrameHeader, FrameReader, KvPart

GOODPUT_BPS = 36_000_000
WIRE_BPS = GOODPUT_BPS * 1514 // 1448
RATE_BYTES_PER_S = GOODPUT_BPS / 8
SENDER_IP, RECEIVER_IP, KV_PORT = "10.77.0.1", "10.77.0.2", 7100
#: Many times what any transfer here takes.
HANG_S = 120.0

Result = TypeVar("Result")


@dataclass(frozen=True)
class Pair:
    """Two namespaces with one shaped link."""

    sender: str
    receiver: str


def shell(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture
def pair() -> Iterator[Pair]:
    tag = f"hg{os.getpid() & 0xFFFF:04x}"
    names = Pair(f"{tag}-tp0", f"{tag}-td0")
    ends = ((names.sender, SENDER_IP), (names.receiver, RECEIVER_IP))
    try:
        for name, _ in ends:
            shell("ip", "netns", "add", name)
        peer = ("peer", "name", "kv0", "netns", names.receiver)
        shell(*inside(names.sender), "ip", "link", "add", "kv0", "type", "veth", *peer)
        for name, ip in ends:
            shell(*inside(name), "ip", "link", "set", "lo", "up")
            shell(*inside(name), "ip", "link", "set", "kv0", "gso_max_size", "9000", "up")
            shell(*inside(name), "ip", "addr", "add", f"{ip}/24", "dev", "kv0")
            tc = (*inside(name), "tc", "qdisc", "add", "dev", "kv0")
            shell(*tc, "root", "handle", "1:", "htb", "default", "1")
            rate = ("rate", f"{WIRE_BPS}bit", "ceil", f"{WIRE_BPS}bit", "burst", "3028", "cburst", "3028")
            shell(*inside(name), "tc", "class", "add", "dev", "kv0", "parent", "1:", "classid", "1:1", "htb", *rate)
            shell(*tc, "parent", "1:1", "handle", "10:", "bfifo", "limit", "60000")
            for key in ("tcp_slow_start_after_idle=0", "tcp_no_metrics_save=1"):
                shell(*inside(name), "sysctl", "-qw", f"net.ipv4.{key}")
        yield names
    finally:
        for name, _ in ends:
            subprocess.run(("ip", "netns", "del", name), check=False, capture_output=True)


def in_namespace(name: str, work: Callable[[], Result]) -> Result:
    """Run `work` in a thread that has entered the namespace."""
    results: list[Any] = []

    def body() -> None:
        try:
            enter_network_namespace(name)
            set_timer_slack()
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(HANG_S)
    assert results, f"not over after {HANG_S:g} s"
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]  # type: ignore[no-any-return]


class Receiver:
    """Receives frames in the other namespace; the (first byte, last byte) times of each."""

    def __init__(self, namespace: str) -> None:
        self.times_s: list[tuple[float, float]] = []
        self._namespace = namespace
        self._loop = new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._up.wait(5)

    def times_of(self, frames: int) -> list[tuple[float, float]]:
        """The times, once so many frames came: the sender's kernel knows of the last byte before this process does."""
        deadline_s = time.monotonic() + 5
        while len(self.times_s) < frames and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert len(self.times_s) == frames
        return self.times_s

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_S)
        self._loop.close()

    def _run(self) -> None:
        enter_network_namespace(self._namespace)
        set_timer_slack()
        self._loop.run_until_complete(self._listen())
        self._loop.run_forever()

    async def _listen(self) -> None:
        listen(RECEIVER_IP, KV_PORT, self._accept)
        self._up.set()

    def _accept(self, sock: Any, peer: str) -> None:
        sock.setblocking(False)
        reader, buffer = FrameReader(), memoryview(bytearray(1 << 18))
        started_s = 0.0

        def read() -> None:
            nonlocal started_s
            try:
                count = sock.recv_into(buffer)
            except OSError:
                count = 0
            if count == 0:
                self._loop.remove_reader(sock)
                sock.close()
                return
            receive_now(sock)
            for event in reader.feed(buffer[:count]):
                if event.ended:
                    self.times_s.append((started_s, self._loop.time()))
                else:
                    started_s = self._loop.time()

        self._loop.add_reader(sock, read)


@pytest.fixture
def receiver(pair: Pair) -> Iterator[Receiver]:
    opened = Receiver(pair.receiver)
    yield opened
    opened.close()


async def send_frame(connection: KvConnection, index: int, size_bytes: int) -> tuple[float, float]:
    """Send one frame that exists as a whole; when it was released and when it was done."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[float] = loop.create_future()
    header = FrameHeader(index, 0, KvPart.ALL, size_bytes, False)
    frame = Frame(
        header,
        lambda frame: done.set_result(loop.time()),
        lambda frame, reason: done.set_exception(ConnectionError(reason)),
    )
    connection.enqueue(frame)
    start_s = loop.time()
    connection.release(frame, size_bytes)
    return start_s, await asyncio.wait_for(done, 10)


async def open_kv(source_ports: tuple[int, ...] = ()) -> KvConnection:
    return await open_connection(
        SENDER_IP,
        (RECEIVER_IP, KV_PORT),
        congestion_control="cubic",
        rate_bytes_per_s=RATE_BYTES_PER_S,
        source_ports=source_ports,
    )


def run_sender(namespace: str, work: Callable[[], Any]) -> Any:
    def body() -> Any:
        loop = new_event_loop()
        try:
            return loop.run_until_complete(work())
        finally:
            loop.close()

    return in_namespace(namespace, body)


def test_a_lone_transfer_on_a_kept_connection_takes_bytes_over_goodput(pair: Pair, receiver: Receiver) -> None:
    size_bytes, repeats = 546_000, 30

    async def send_all() -> list[tuple[float, float]]:
        connection = await open_kv()
        await send_frame(connection, 0, 1_000_000)  # past slow start, as after the warm-up of a run
        times = []
        for index in range(1, repeats + 1):
            times.append(await send_frame(connection, index, size_bytes))
            await asyncio.sleep(0.02)
        connection.close()
        return times

    sent = run_sender(pair.sender, send_all)
    received = receiver.times_of(repeats + 1)[1:]
    arrived = [last_s - start_s for (start_s, _), (_, last_s) in zip(sent, received, strict=True)]
    held = [done_s - last_s for (_, done_s), (_, last_s) in zip(sent, received, strict=True)]
    expected_s = size_bytes / RATE_BYTES_PER_S
    ratio = median(arrived) / expected_s
    print(
        f"median {ratio:.4f} of {expected_s * 1e3:.1f} ms (min {min(arrived) / expected_s:.3f}, max "
        f"{max(arrived) / expected_s:.3f}); done after the last byte: median {median(held) * 1e3:.2f} ms"
    )
    assert 0.97 <= ratio <= 1.02
    # A delayed ACK would hold it for 40 ms.
    assert median(held) < 0.005


def test_the_first_transfer_of_a_new_connection_pays_slow_start_only(pair: Pair, receiver: Receiver) -> None:
    size_bytes = 546_000

    async def send_each() -> list[tuple[float, float]]:
        kept = await open_kv()
        await send_frame(kept, 0, 1_000_000)
        times = []
        for index in range(1, 21, 2):  # alternately, so that what disturbs one kind disturbs the other
            times.append(await send_frame(kept, index, size_bytes))
            connection = await open_kv()
            times.append(await send_frame(connection, index + 1, size_bytes))
            connection.close()
        kept.close()
        return times

    sent = run_sender(pair.sender, send_each)
    taken_s = [last_s - start_s for (start_s, _), (_, last_s) in zip(sent, receiver.times_of(21)[1:], strict=True)]
    ratio = median(taken_s[1::2]) / median(taken_s[::2])
    print(f"new connection against a kept one: {ratio:.4f}, longest {max(taken_s[1::2]) * 1e3:.1f} ms")
    assert 0.97 <= ratio <= 1.03


def test_a_source_port_serves_transfer_after_transfer_to_the_same_peer(pair: Pair, receiver: Receiver) -> None:
    # A connection closed by FIN would hold the port in TIME_WAIT for a minute; its frame must arrive all the same.
    async def send_each() -> list[int]:
        ports = []
        for index in range(3):
            connection = await open_kv(source_ports=(20_300,))
            await send_frame(connection, index, 100_000)
            ports.append(connection.source_port)
            connection.close()
        return ports

    assert run_sender(pair.sender, send_each) == [20_300] * 3
    receiver.times_of(3)


def test_frames_on_one_connection_pass_one_after_another(pair: Pair, receiver: Receiver) -> None:
    async def send_two() -> None:
        connection = await open_kv()
        await asyncio.gather(send_frame(connection, 0, 200_000), send_frame(connection, 1, 200_000))
        connection.close()

    run_sender(pair.sender, send_two)
    (first_start_s, first_end_s), (second_start_s, _) = receiver.times_of(2)
    assert first_start_s < first_end_s <= second_start_s


def test_a_frame_cut_short_takes_its_connection_along_and_an_unwritten_one_does_not(
    pair: Pair, receiver: Receiver
) -> None:
    lost: list[str] = []

    def frame(index: int) -> Frame:
        header = FrameHeader(index, 0, KvPart.ALL, 100_000, False)
        return Frame(header, lambda frame: None, lambda frame, reason: lost.append(f"{frame.header.index}: {reason}"))

    async def withdraw() -> tuple[bool, bool]:
        connection = await open_kv()
        first, second, third = frame(0), frame(1), frame(2)
        for each in (first, second, third):
            connection.enqueue(each)
        connection.withdraw(second)
        usable_before = connection.usable
        connection.release(first, 14_480)
        connection.withdraw(first)
        return usable_before, connection.usable

    assert run_sender(pair.sender, withdraw) == (True, False)
    assert [text.split(":")[0] for text in lost] == ["0", "2"]
    assert "cut short" in lost[0]


def test_a_congestion_control_that_is_not_there_is_refused_by_name(pair: Pair, receiver: Receiver) -> None:
    async def connect() -> None:
        await open_connection(
            SENDER_IP, (RECEIVER_IP, KV_PORT), congestion_control="nosuch", rate_bytes_per_s=RATE_BYTES_PER_S
        )

    with pytest.raises(RuntimeError, match="congestion control 'nosuch' was refused"):
        run_sender(pair.sender, connect)


@pytest.mark.parametrize("transfer", ["pull", "layerwise"])
def test_agents_in_namespaces_move_kv_at_the_rate_of_the_link(pair: Pair, tmp_path: Path, transfer: str) -> None:
    # Head 65,600 tokens: 537,395 emulated bytes, 119.42 ms at 36 Mbit/s; T = 190.87 ms (VECTORS, V1).
    requests = [a_request(i, 0.1 + 0.4 * i, new_tokens=1100, cached_tokens=65_600) for i in range(5)]
    starts: list[StandInController] = []
    in_namespace(
        pair.receiver,
        lambda: starts.append(StandInController(["d0"], transfer=transfer, circuits=True, host=RECEIVER_IP)),
    )
    (controller,) = starts
    config = loopback_config(tmp_path, requests, controller.port, fabric_kind="ocs", transfer=transfer)
    config["controller"]["host"] = RECEIVER_IP
    for instance in config["instances"]:
        sending = instance["role"] == "prefill"
        instance["namespace"] = pair.sender if sending else pair.receiver
        instance["host_ip"] = SENDER_IP if sending else RECEIVER_IP
        instance["gpu_ips"] = [instance["host_ip"]]
    config["gateway"].update(namespace=pair.receiver, host_ip=RECEIVER_IP)
    agents = AgentsUnderTest(config)
    try:
        agents.wait_for("ready", 3)
        agents.command({"agent": "p0", "type": "connect", "decode": "d0"})
        agents.wait_for("connected", 1)
        agents.start()
        agents.wait_for("exit", 1)
        assert agents.finish() == 0
    finally:
        agents.close()
        controller.close()
    assert agents.of("error") == []
    exposed_s = []
    moved = {record["id"]: record for record in agents.records("transfer")}
    for prefill in agents.records("prefill"):
        last_byte_s = moved[prefill["id"]]["last_byte_s"]
        exposed_s.append(last_byte_s - prefill["end_actual_s"])
    # Pull exposes head and tail, 121.42 ms; layer-wise what is left of one segment, 0.32 ms, and the network.
    print(f"{transfer}: exposed {[round(each * 1e3, 2) for each in exposed_s]} ms")
    if transfer == "pull":
        assert median(exposed_s[1:]) == pytest.approx(0.12142, rel=0.03)
    else:
        assert median(exposed_s) < 0.006
    last_part = "all" if transfer == "pull" else "tail"
    done_s = {name: body["at_s"] for name, body in controller.events("transfer-done") if body["part"] == last_part}
    held_s = [done_s[name] - record["last_byte_s"] for name, record in moved.items()]
    # A delayed ACK would hold the circuit for another 40 ms.
    assert median(held_s) < 0.005
    assert [record["retransmits"] for record in agents.records("sender")] == [0] * 5
