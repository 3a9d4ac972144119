"""Packet fabrics against closed forms, as ratios to a lone transfer of the same run: shares, order, conservation."""

import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from test_link_rates import Fabric

from emulation.agents.kernel import tcp_counters
from emulation.agents.ranks import Ranks
from emulation.linux.netns import socket_in
from emulation.network.dscp import tos
from emulation.network.links import lost_packets
from emulation.probe.link import goodputs
from experiments.schema.spec import load

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
TRIES = 3
ATTEMPTS = 2
#: Many times what any transfer here takes.
HANG_S = 60.0
LINK_OFF = "of its rate; 3 % is allowed"


class Transfer:
    """One TCP transfer at a level of the priority queues; `seconds` from its first byte sent to its last received."""

    _port = 7300

    def __init__(self, fabric: Fabric, source: str, destination: str, size: int) -> None:
        Transfer._port += 1
        self.size = size
        namespaces = fabric.testbed.namespace(source), fabric.testbed.namespace(destination)
        with socket_in(namespaces[1]) as listener:
            listener.bind((fabric.ips[destination], Transfer._port))
            listener.listen(1)
            self.sender = socket_in(namespaces[0])
            self.sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            self.sender.connect(listener.getsockname())
            self.receiver, _ = listener.accept()
        for end in (self.sender, self.receiver):
            end.settimeout(10)
        self._threads = [threading.Thread(target=end, daemon=True) for end in (self._send, self._receive)]

    def mark(self, level: int) -> None:
        self.sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos(level))

    def start(self) -> None:
        self.started_s = time.monotonic()
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(HANG_S)

    def close(self) -> None:
        self.timeouts = tcp_counters(self.sender).rtos
        self.sender.close()
        self.receiver.close()

    def _send(self) -> None:
        self.sender.sendall(bytes(self.size))

    def _receive(self) -> None:
        left = self.size
        while left:
            if not (received := self.receiver.recv(65_536)):
                return  # the sender has given up: it says why
            left -= len(received)
        self.ended_s = time.monotonic()


def lone_s(fabric: Fabric, size: int) -> float:
    transfer = Transfer(fabric, "p0", "d0", size)
    transfer.mark(0)
    transfer.start()
    transfer.join()
    transfer.close()
    return transfer.ended_s - transfer.started_s


def medians(measure: Callable[[], tuple[float, ...]]) -> list[float]:
    return [statistics.median(values) for values in zip(*(measure() for _ in range(TRIES)), strict=True)]


@pytest.mark.parametrize(("first", "second"), [(1_800_000, 600_000), (600_000, 546_000)])
def test_of_two_transfers_the_shorter_runs_alone_and_the_longer_resumes_after_it(make_testbed, first, second):
    """Levels by the arbiter's own rule. Without priorities the shorter would take twice its time."""
    fabric = Fabric(make_testbed, pooled=True, queue="priority")
    timeouts = []

    def measure() -> tuple[float, float]:
        ranks: Ranks[str] = Ranks({})
        alone_s = lone_s(fabric, second)
        long, short = Transfer(fabric, "p0", "d0", first), Transfer(fabric, "p1", "d0", second)
        ranks.start("long", ["d0"], first)
        long.mark(ranks.rank()["long"])
        long.start()
        time.sleep(0.008)
        ranks.start("short", ["d0"], second)
        short.mark(ranks.rank()["short"])
        short.start()
        long.join()
        short.join()
        for each in (long, short):
            each.close()
        timeouts.append((long.timeouts or 0) + (short.timeouts or 0))
        both_s = max(long.ended_s, short.ended_s) - long.started_s
        return (short.ended_s - short.started_s) / alone_s, both_s / (alone_s * (first + second) / second)

    shorter, together = medians(measure)
    assert shorter < 1.25, "the shorter one has the link for itself"
    assert 0.85 < together < 1.15, "the link is never idle, and the longer one resumes"
    assert min(timeouts) == 0


def test_twelve_transfers_over_eight_uplinks_have_two_thirds_of_a_port_each(make_testbed):
    options = {"prefill_instances": 12, "decode_instances": 12, "instances_per_rack": 12, "uplinks": 8}
    fabric = Fabric(make_testbed, pooled=True, kv_goodput_bps=9e6, **options)
    alone_bps = goodputs([fabric.path("p0", "d0", 0)], transfer_bytes=1_250_000)[0].goodput_bps

    def measure() -> tuple[float, float]:
        paths = [fabric.path(f"p{number}", f"d{number}", 0) for number in range(12)]
        rates = [result.goodput_bps / alone_bps for result in goodputs(paths, transfer_bytes=1_250_000)]
        return min(rates), max(rates)

    assert medians(measure) == pytest.approx([2 / 3, 2 / 3], rel=0.1)


def test_each_of_five_on_an_uplink_has_a_fifth_of_what_one_alone_has(make_testbed):
    """Four ranks: of 32 NICs of a rack no two share a class, not even the first's and the fifth's."""
    options = {"prefill_instances": 5, "decode_instances": 5, "instances_per_rack": 5, "gpus_per_instance": 4}
    fabric = Fabric(make_testbed, window_bytes=64_000, **options)
    alone_bps = goodputs([fabric.path("p0", "d0", 1)], transfer_bytes=2_000_000)[0].goodput_bps

    def measure() -> tuple[float, float]:
        paths = [fabric.path(f"p{number}", f"d{number}", 1) for number in range(5)]
        rates = [result.goodput_bps / alone_bps for result in goodputs(paths, transfer_bytes=1_250_000)]
        return min(rates), max(rates)

    assert medians(measure) == pytest.approx([1 / 5, 1 / 5], rel=0.1)
    time.sleep(0.2)  # the last acknowledgements have gone
    rows = fabric.testbed.counters()
    kept = {router: lost_packets(rows, router) for router in ("kl0", "kl1", "ks0", "ks1")}
    assert kept == dict.fromkeys(kept, 0), "a router sends or drops what it takes in"
    dropped = {(row["node"], row["peer"]): row["drops"] for row in rows if row["drops"]}
    assert not dropped, "a queue holds what the window of a connection lets out"
    by_end = {(row["node"], row["peer"]): row for row in rows if row["role"] in ("uplink", "downlink")}
    for (node, peer), row in by_end.items():
        assert row["device_tx_packets"] == by_end[peer, node]["rx_packets"], f"{node} to {peer}"


def test_where_no_uplink_is_crossed_every_routing_gives_the_same_ttft(tmp_path: Path) -> None:
    """The control case: the paths are the same, so routing must not matter. Only runs that are valid say so."""
    file = EXPERIMENTS / "control.yaml"
    names, said = [fabric.name for fabric in load(file).fabrics], []
    for attempt in range(ATTEMPTS):
        directory = tmp_path / f"control{attempt}"
        overrides = ["--set", "workload.window_s=3", "--set", "workload.warmup_s=0"]
        command = [sys.executable, "cli.py", "run", str(file), *overrides, "--artifact-dir", str(directory)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        if LINK_OFF in done.stderr:
            said.append(done.stderr[-600:])
            continue
        assert (directory / "summary.json").is_file(), done.stderr + done.stdout
        tables = {name: directory / name / "seed1" for name in names}
        assert all(pd.read_csv(each / "transfers.csv")["uplink"].isna().all() for each in tables.values())
        runs = json.loads((directory / "summary.json").read_text())["runs"]
        if reasons := [
            f"{run['name']}: {reason}" for run in runs if run["verdict"] != "valid" for reason in run["reasons"]
        ]:
            said += reasons
            continue
        requests = {name: pd.read_csv(each / "requests.csv").set_index("id") for name, each in tables.items()}
        assert all((frame["status"] == "completed").all() for frame in requests.values())
        base = requests["ecmp"]["ttft_s"]
        ratios = {name: float((frame["ttft_s"] / base).median()) for name, frame in requests.items()}
        assert ratios == pytest.approx(dict.fromkeys(names, 1.0), rel=0.05)
        return
    pytest.skip(f"no valid run on this machine now: {' | '.join(said)}")
