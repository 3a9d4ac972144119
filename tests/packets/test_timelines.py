"""The worked timelines over real packets, within 3 %: every part real but the GPUs (Ryu, Open vSwitch, TCP, agents).

Each case is repeated on an otherwise idle cluster and judged by its median; the pure core gives the same figures to the
printed digits in tests/unit/test_reservations_vectors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest

from emulation.doctor.preflight import choose_datapath
from emulation.linux.ledger import RunLedger
from emulation.plan.fabric_plan import FabricPlan
from emulation.run.fabric_run import FabricResult, FabricRun
from experiments.schema.spec import load
from workloads.request import Request

DEMO = Path(__file__).resolve().parents[2] / "experiments" / "demo.yaml"
TAU_S = 0.025
PREFILL_MS, HEAD_AND_TAIL_MS = 190.8682, 121.4236
REPEATS, SPACING_S = 5, 0.7
TOLERANCE = 0.03
ATTEMPTS, TTFT_ATTEMPTS = 3, 5
LINK_OFF = "of its rate; 3 % is allowed"


def turns(repeats: int, spacing_s: float, offsets_ms: Sequence[float] = (0.0,)) -> tuple[Request, ...]:
    """The worked turn (1,100 new tokens on 65,600 cached), at each offset of each repetition."""
    return tuple(
        Request(
            f"r{number}-{repeat:02d}",
            "agentic",
            "",
            0.3 + repeat * spacing_s + offset_ms / 1e3,
            1100,
            65_600,
            True,
            1.0,
        )
        for repeat in range(repeats)
        for number, offset_ms in enumerate(offsets_ms, 1)
    )


def without_noise(measure: Callable[[], FabricResult]) -> FabricResult:
    """Measure, up to three times where the probes before the clock say that the machine cannot carry its links now."""
    for _ in range(ATTEMPTS):
        result = measure()
        if not (result.failure and LINK_OFF in result.failure):
            return result
    pytest.skip(f"this machine cannot carry its links now: {result.failure}")


def run(ledger: RunLedger, logs: Path, requests: Sequence[Request], fabric: int, *overrides: str) -> FabricResult:
    experiment = load(DEMO, overrides)
    plan = FabricPlan(experiment, experiment.fabrics[fabric], 1, tuple(requests))

    def measure() -> FabricResult:
        return FabricRun(
            plan, ledger, choose_datapath(), report=lambda step: None, progress=lambda *state: None, keep_logs=logs
        ).run()

    result = without_noise(measure)
    assert result.failure is None
    assert set(result.frames.requests["status"]) == {"completed"}, result.frames.requests
    assert not result.frames.inconsistencies
    return result


def measure(ledger: RunLedger, logs: Path, requests: Sequence[Request], *overrides: str) -> FabricResult:
    """The demo's circuit fabric with these changes; how it ends is for the test to judge."""
    experiment = load(DEMO, overrides)
    plan = FabricPlan(experiment, experiment.fabrics[1], 1, tuple(requests))

    def once() -> FabricResult:
        return FabricRun(
            plan, ledger, choose_datapath(), report=lambda step: None, progress=lambda *state: None, keep_logs=logs
        ).run()

    return without_noise(once)


def check(
    measure: Callable[[], FabricResult],
    expected_ms: Mapping[str, float],
    also: Callable[[FabricResult], None] | None = None,
    switched: Collection[str] = (),
) -> None:
    """The median TTFT of r1 (and r2) is as expected; a busy machine gets more tries, a wrong one fails all.

    switched: requests that wait for their reconfiguration: what it took beyond tau, by the controller's record, is
    added to what is expected of them. How much that may be is for test_dark_time to judge.

    Skipped only where in every try others took the processors (CPU full, or stolen by the hypervisor).
    """
    said, taken = [], []
    for _ in range(TTFT_ATTEMPTS):
        result = measure()
        if also:
            also(result)
        requests = result.frames.requests
        found_ms = {
            which: float(requests.loc[requests["id"].str.startswith(which), "ttft_s"].median() * 1e3)
            for which in expected_ms
        }
        beyond_ms = {which: beyond_tau_ms(result, which) if which in switched else 0.0 for which in expected_ms}
        if all(
            abs(found_ms[which] / (expected + beyond_ms[which]) - 1) <= TOLERANCE
            for which, expected in expected_ms.items()
        ):
            return
        taken.append(any(reason.startswith("CPU") for reason in result.fidelity["reasons"]))
        verdict, reasons = result.fidelity["verdict"], result.fidelity["reasons"]
        said.append(f"measured {found_ms} ms, {beyond_ms} ms beyond tau ({verdict}: {reasons})")
    if all(taken):
        pytest.skip(f"others took the processors in each of {TTFT_ATTEMPTS} tries: {'; '.join(said)}")
    raise AssertionError(f"expected {expected_ms} ms within {TOLERANCE:.0%}: " + "; ".join(said))


def beyond_tau_ms(result: FabricResult, which: str) -> float:
    """Median of what the reconfigurations of r1 (or r2) took beyond the delay; 0 where none was needed."""
    windows = result.frames.circuits
    switches = windows[windows["request"].str.startswith(which) & windows["needs_switch"]]
    beyond_s = (switches["live_at_s"] - switches["dark_at_s"] - TAU_S).dropna()
    return float(beyond_s.median() * 1e3) if len(beyond_s) else 0.0


def circuits(prefills: int, decodes: int, transfer: str) -> list[str]:
    return [
        f"cluster.prefill_instances={prefills}",
        f"cluster.decode_instances={decodes}",
        f"transfer={transfer}",
        "fabrics.1.decode_choice=least-loaded",
    ]


@pytest.mark.parametrize(("transfer", "expected_ms"), [("layerwise", 190.893), ("pull", 312.292)])
def test_v1_a_standing_circuit(ledger: RunLedger, tmp_path: Path, transfer: str, expected_ms: float) -> None:
    def without_a_switch(result: FabricResult) -> None:
        assert not result.frames.circuits["needs_switch"].any()

    options = circuits(1, 1, transfer)
    check(lambda: run(ledger, tmp_path, turns(REPEATS, SPACING_S), 1, *options), {"r1": expected_ms}, without_a_switch)


@pytest.mark.parametrize(("transfer", "expected_ms"), [("layerwise", 190.893), ("pull", 312.292)])
def test_v2_another_circuit_stands_and_its_reconfiguration_is_hidden(
    ledger: RunLedger, tmp_path: Path, transfer: str, expected_ms: float
) -> None:
    def every_turn_switches(result: FabricResult) -> None:
        windows = result.frames.circuits
        assert windows.loc[windows["part"] != "tail", "needs_switch"].all()
        assert ((windows["live_at_s"] - windows["dark_at_s"]).dropna() >= TAU_S).all()

    options = circuits(1, 2, transfer)
    check(
        lambda: run(ledger, tmp_path, turns(REPEATS, SPACING_S), 1, *options), {"r1": expected_ms}, every_turn_switches
    )


@pytest.mark.parametrize(("transfer", "r1_ms", "r2_ms"), [("layerwise", 190.893, 307.317), ("pull", 312.292, 428.716)])
def test_v3_two_requests_for_one_decode_take_turns(
    ledger: RunLedger, tmp_path: Path, transfer: str, r1_ms: float, r2_ms: float
) -> None:
    requests, options = turns(REPEATS, SPACING_S, (0.0, 30.0)), circuits(2, 1, transfer)
    check(lambda: run(ledger, tmp_path, requests, 1, *options), {"r1": r1_ms, "r2": r2_ms}, switched={"r2"})


@pytest.mark.parametrize(
    ("link_gbps", "transfer", "expected_ms"),
    [(200, "layerwise", 242.847), (200, "pull", 433.716), (133.3333, "pull", 555.139)],
)
def test_a_lone_transfer_on_a_slower_packet_fabric(
    ledger: RunLedger, tmp_path: Path, link_gbps: float, transfer: str, expected_ms: float
) -> None:
    slower = [f"cluster.link_gbps={link_gbps}", f"transfer={transfer}"]
    check(lambda: run(ledger, tmp_path, turns(REPEATS, SPACING_S), 0, *slower), {"r1": expected_ms})


def test_a_546_kb_transfer_on_a_live_circuit_takes_bytes_over_goodput(ledger: RunLedger, tmp_path: Path) -> None:
    ratios = []
    for _ in range(ATTEMPTS):
        result = run(ledger, tmp_path, turns(30, 0.45), 1, *circuits(1, 1, "pull"))
        assert set(result.frames.transfers["emulated_bytes"]) == {546_406}
        requests: pd.DataFrame = result.frames.requests
        ratios.append((requests["last_byte_s"] - requests["prefill_end_s"]).median() * 1e3 / HEAD_AND_TAIL_MS)
        print(f"546 KB over a live circuit, median of {len(requests)}: {ratios[-1]:.4f} of bytes / goodput")
        if 0.97 <= ratios[-1] <= 1.02:
            return
    raise AssertionError(f"medians of 30: {ratios} of bytes / goodput, expected 0.97 to 1.02")


def test_without_a_network_limit_ttft_is_the_prefill(ledger: RunLedger, tmp_path: Path) -> None:
    ceiling = "fabrics=[{name: ceiling, kind: none}]"
    check(lambda: run(ledger, tmp_path, turns(REPEATS, SPACING_S), 0, ceiling, "transfer=pull"), {"r1": PREFILL_MS})
