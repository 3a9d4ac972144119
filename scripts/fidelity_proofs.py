"""The figures that docs/measurements/fidelity.md claims, measured anew here (root; leave the machine alone meanwhile).

    sudo .venv/bin/python scripts/fidelity_proofs.py quiet      [--runs 10] [--window-s 15]
    sudo .venv/bin/python scripts/fidelity_proofs.py invariance [--window-s 110] [--congestion-control cubic bbr]
    sudo .venv/bin/python scripts/fidelity_proofs.py audit      [--reconfigurations 200]
    sudo .venv/bin/python scripts/fidelity_proofs.py overhead   [--rounds 5] [--window-s 20]

quiet       the demo for 20 s, ten times: every fabric valid each time; then at 10, 30, 100 times its rate scale
            until it is not: a run that is still valid must have the TTFT of the others (tolerances of invariance),
            and one that is not must say that it is too much
invariance  the demo's packets and circuits at rate_scale 0.5e-4, 1e-4, 2e-4 and time_dilation 1, 2, 4: TTFT in real
            units against that at 1e-4 and 1, median within 2 %, p95 within 5 %, for each congestion control; of 330
            requests (55 s) one rank is 2 % at the p95, so the window is longer than the demo's
audit       circuits that switch for every request, at tau = 10, 25, 50 ms, and 1 ms at dilation 10, captured: nothing
            delivered in the dark, no dark time under tau; median at most tau + 5 ms, p95 at most tau + 15 ms (real)
overhead    the same arrivals without measurements, with them, and with the packet audit too, in turn: medians of TTFT
            within 1 %

Every proof prints a table as it goes; `outcome` is `holds`, `does not hold`, `the verdict says so` (more
was asked of the machine than at the reference, the run says that it was too much, and blames nobody else) or `not
measured`: the run, or what it is compared with, was not valid, so it shows nothing. Exit status 1 where a row does not
hold or was not measured. --output FILE keeps the figures as JSON. The arrivals are those of experiments/demo.yaml,
whatever the scale.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

import numpy as np  # noqa: E402

from emulation.doctor.preflight import choose_datapath  # noqa: E402
from emulation.linux.ledger import LeftBehind, RunLedger  # noqa: E402
from emulation.plan.fabric_plan import FabricPlan  # noqa: E402
from emulation.run.fabric_run import FabricResult, FabricRun  # noqa: E402
from experiments.schema.spec import load  # noqa: E402
from process.interrupts import Interrupted, interruptible  # noqa: E402

DEMO = ROOT / "experiments" / "demo.yaml"
#: Of the demo's fabrics, by their place in the file.
PACKETS, CIRCUITS, NO_REUSE = 0, 1, 2
MEDIAN_TOLERANCE, P95_TOLERANCE, OVERHEAD_TOLERANCE = 0.02, 0.05, 0.01
#: Of the demo's rate scale, where the machine is asked for more until the verdict says that it is too much.
RATE_FACTORS = (10, 30, 100)
MEDIAN_EXCESS_MS, P95_EXCESS_MS = 5.0, 15.0
Row = dict[str, Any]
#: How reasons name what is not the run's, where a verdict tells nothing of the scale, and what is too high where it
#: does (emulation/verdict/thresholds.py, paths.py).
OTHERS = ("other programs", "hypervisor", "other machines on this host")
SCALE = ("time_dilation", "rate_scale")


def measure(fabric: int, *overrides: str, pcap: bool = False, observe: bool = True) -> FabricResult:
    """One fabric of the demo, built, run and removed."""
    experiment = load(DEMO, overrides)
    seed = experiment.seeds[0]
    plan = FabricPlan(experiment, experiment.fabrics[fabric], seed, tuple(experiment.requests(seed)))
    name = f"proof-{os.getpid()}-{time.monotonic_ns()}"
    with RunLedger.open(name) as ledger, tempfile.TemporaryDirectory(prefix="heliograph-") as logs:
        result = FabricRun(
            plan,
            ledger,
            choose_datapath(),
            report=lambda step: None,
            progress=lambda *state: None,
            keep_logs=Path(logs),
            pcap=pcap,
            observe=observe,
        ).run()
    if result.interrupted is not None:
        raise result.interrupted
    return result


def window(seconds: float, warmup_s: float = 5.0) -> list[str]:
    return [f"workload.window_s={seconds:g}", f"workload.warmup_s={warmup_s:g}"]


def ttft_s(result: FabricResult, percent: float) -> float:
    """Over the measured requests that completed."""
    requests = result.frames.requests
    measured = requests[~requests["id"].str.startswith("warmup-")]["ttft_s"].dropna()
    if measured.empty:
        return math.nan
    return float(np.percentile(measured, percent))


def verdict(result: FabricResult) -> Row:
    return {"verdict": result.fidelity["verdict"], "reasons": result.fidelity["reasons"]}


def judged(row: Row, held: bool, *, harder: bool = False) -> Row:
    """The row with its outcome, by its verdict. harder: more is asked of the machine than the reference asked, so the
    verdict may say that it is too much."""
    if row["verdict"] == "valid":
        outcome = "holds" if held else "does not hold"
    elif harder and blames(row, SCALE) and not blames(row, OTHERS):
        outcome = "the verdict says so"
    else:
        outcome = "not measured"
    return row | {"outcome": outcome, "holds": outcome in ("holds", "the verdict says so")}


def blames(row: Row, causes: Sequence[str]) -> bool:
    """Whether a reason names one of these."""
    return any(cause in reason for reason in row["reasons"] for cause in causes)


def quiet(options: argparse.Namespace) -> Iterator[Row]:
    kept_up = dict.fromkeys((PACKETS, CIRCUITS, NO_REUSE), True)
    seen_s: dict[int, list[tuple[float, float]]] = {fabric: [] for fabric in kept_up}
    for number in range(options.runs):
        for fabric in (PACKETS, CIRCUITS, NO_REUSE):
            result = measure(fabric, *window(options.window_s))
            row: Row = {"run": number + 1, "fabric": fabric} | verdict(result)
            row = judged(row, held=True)
            if not (row["holds"] or blames(row, OTHERS)):
                row["outcome"] = "does not hold"  # that a quiet machine keeps up is what is claimed
            kept_up[fabric] &= row["holds"]
            seen_s[fabric].append((ttft_s(result, 50), ttft_s(result, 95)))
            yield row
    for fabric, percentiles_s in seen_s.items():
        yield from _until_too_much(options, fabric, np.median(percentiles_s, axis=0), kept_up[fabric])


def _until_too_much(options: argparse.Namespace, fabric: int, reference_s: Any, kept_up: bool) -> Iterator[Row]:
    """More and more bytes in the same time; a verdict that is valid at the last factor too says nothing, and does not
    hold. reference_s: p50 and p95 of TTFT at the demo's own rate scale."""
    for factor in RATE_FACTORS:
        result = measure(fabric, *window(options.window_s), f"scale.rate_scale={factor * 1e-4:g}")
        row: Row = {"run": f"x{factor} rate scale", "fabric": fabric}
        row, within = _against(row, (ttft_s(result, 50), ttft_s(result, 95)), reference_s)
        row = judged(row | verdict(result), within and factor != RATE_FACTORS[-1], harder=kept_up)
        yield row
        if row["verdict"] != "valid":
            return


def _against(row: Row, found_s: Sequence[float], reference_s: Sequence[float]) -> tuple[Row, bool]:
    """The row with median and p95 of TTFT and their ratios, and whether both are within the tolerances."""
    ratios = [one / other for one, other in zip(found_s, reference_s, strict=True)]
    within = abs(ratios[0] - 1) <= MEDIAN_TOLERANCE and abs(ratios[1] - 1) <= P95_TOLERANCE
    row = row | {"p50_s": found_s[0], "p95_s": found_s[1], "p50_ratio": ratios[0], "p95_ratio": ratios[1]}
    return row, within


def invariance(options: argparse.Namespace) -> Iterator[Row]:
    scales = [(1e-4, 1), (0.5e-4, 1), (2e-4, 1), (1e-4, 2), (1e-4, 4)]
    for control in options.congestion_control:
        for fabric in options.fabrics:
            reference: tuple[float, float] | None = None
            reference_rate = scales[0][0] / scales[0][1]
            for rate_scale, dilation in scales:
                result = measure(
                    fabric,
                    *window(options.window_s),
                    f"scale.rate_scale={rate_scale:g}",
                    f"scale.time_dilation={dilation}",
                    f"fabrics.{fabric}.congestion_control={control}",
                )
                found = ttft_s(result, 50), ttft_s(result, 95)
                reference = reference or found
                row: Row = {"fabric": fabric, "congestion_control": control}
                row |= {"rate_scale": rate_scale, "dilation": dilation}
                row, within = _against(row, found, reference)
                row = judged(row | verdict(result), within, harder=rate_scale / dilation > reference_rate)
                yield row
                if found is reference and not row["holds"]:
                    break  # nothing to compare the others with


def audit(options: argparse.Namespace) -> Iterator[Row]:
    for tau_ms, dilation in ((10, 1), (25, 1), (50, 1), (1, 10)):
        result = measure(
            NO_REUSE,
            # the demo's 4 prefill instances ask for six circuits a second or so
            *window(options.reconfigurations / 5.5, warmup_s=2.0),
            f"fabrics.{NO_REUSE}.reconfiguration_ms={tau_ms}",
            f"scale.time_dilation={dilation}",
            pcap=True,
        )
        found = result.fidelity.get("audit") or {"violations": ["no packet was captured"], "reconfigurations": 0}
        row: Row = {"tau_ms": tau_ms, "dilation": dilation, "reconfigurations": found["reconfigurations"]}
        row |= {"violations": len(found["violations"]), "first": (found["violations"] or [""])[0]}
        row |= {"lost_by_the_capture": sum(found.get("lost_by_the_capture", {}).values())}
        row |= {key: found.get(key) for key in ("dark_ms", "first_packet_ms")}
        row["excess_p50_ms"] = {step: values["p50"] for step, values in (found.get("excess_ms") or {}).items()}
        seen = row["first_packet_ms"] or {"p50": float("inf"), "p95": float("inf"), "min": 0.0}
        holds = not row["violations"] and row["reconfigurations"] >= options.reconfigurations
        holds &= seen["min"] >= tau_ms and (row["dark_ms"] or {"min": 0.0})["min"] >= tau_ms
        holds &= seen["p50"] <= tau_ms + MEDIAN_EXCESS_MS and seen["p95"] <= tau_ms + P95_EXCESS_MS
        yield row | verdict(result) | {"outcome": "holds" if holds else "does not hold", "holds": holds}


def overhead(options: argparse.Namespace) -> Iterator[Row]:
    ways: dict[str, dict[str, bool]] = {
        "nothing measured": {"observe": False},
        "measured": {},
        "measured and audited": {"pcap": True},
    }
    for fabric in (PACKETS, CIRCUITS):
        medians_s: dict[str, list[float]] = {way: [] for way in ways}
        not_valid: dict[str, list[str]] = {way: [] for way in ways}
        for number in range(options.rounds):
            # in turn, and not always in the same order: a machine that warms up favours nobody
            for way in list(ways)[:: 1 if number % 2 else -1]:
                result = measure(fabric, *window(options.window_s), **ways[way])
                medians_s[way].append(ttft_s(result, 50))
                if result.fidelity["verdict"] != "valid":
                    not_valid[way].append("; ".join(result.fidelity["reasons"]))
        base_s = float(np.median(medians_s["nothing measured"]))
        for way, found_s in medians_s.items():
            change = float(np.median(found_s)) / base_s - 1
            row: Row = {"fabric": fabric, "way": way, "p50_s": float(np.median(found_s)), "change": change}
            row |= {"spread": (max(found_s) - min(found_s)) / base_s}
            reasons = not_valid[way] or not_valid["nothing measured"]
            row |= {"verdict": "not valid" if reasons else "valid", "reasons": reasons}
            yield judged(row, abs(change) <= OVERHEAD_TOLERANCE)


PROOFS = {proof.__name__: proof for proof in (quiet, invariance, audit, overhead)}


def main(arguments: Sequence[str]) -> int:
    """Run one proof; 0 where all of it holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("proof", choices=list(PROOFS))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window-s", type=float, default=None)
    parser.add_argument("--reconfigurations", type=int, default=200)
    parser.add_argument("--congestion-control", nargs="+", default=["cubic"])
    parser.add_argument("--fabrics", type=int, nargs="+", choices=[PACKETS, CIRCUITS], default=[PACKETS, CIRCUITS])
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args(arguments)
    if options.window_s is None:
        options.window_s = {"quiet": 15.0, "invariance": 110.0}.get(options.proof, 20.0)
    rows = []
    try:
        with interruptible():
            for row in PROOFS[options.proof](options):
                rows.append(row)
                print(", ".join(f"{key} {_shown(value)}" for key, value in row.items()), flush=True)
    except Interrupted as error:
        print(f"{error}: everything that was built is removed", file=sys.stderr)
        return error.status
    except LeftBehind as error:
        print("\n".join(str(each) for each in (error.during, error) if each is not None), file=sys.stderr)
        return 1
    finally:
        if options.output is not None:
            options.output.write_text(json.dumps(rows, indent=2) + "\n")
    failed = sum(not row["holds"] for row in rows)
    unmeasured = sum(row["outcome"] == "not measured" for row in rows)
    note = f"; {unmeasured} not measured" if unmeasured else ""
    print(f"{options.proof}: {len(rows) - failed} of {len(rows)} rows hold{note}")
    return 1 if failed else 0


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} {_shown(each)}" for key, each in value.items()) + "}"
    return str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
