"""The report shows what a run measured of itself, what does not scale, and what its packets prove."""

from __future__ import annotations

from results.report.fidelity_view import fidelity_view

DOCUMENT = {
    "measures": [
        {"name": "arrival lag p99", "unit": "ms", "emulated": 31.0, "real": 15.5, "limit": 10.0, "limit_real": 5.0,
         "severity": "invalid", "exceeded": True},
        {"name": "TCP timeouts (RTO)", "unit": "", "emulated": None, "real": None, "limit": None, "exceeded": False},
    ],
    "unscaled": [
        {"name": "one segment (MTU)", "unit": "bytes", "emulated": 1448, "real": 14_480_000.0, "against": "a transfer",
         "against_emulated": 540_500.0, "ratio": 0.002679},
    ],
    "audit": {
        "packets": 897, "violations": [], "reconfigurations": 14, "lost_by_the_capture": {"d0-gpu0": 2},
        "dark_ms": {"min": 25.01, "p50": 25.27},
    },
}  # fmt: skip


def test_measures_show_both_units_and_what_exceeds_its_threshold():
    view = fidelity_view("ocs", DOCUMENT)
    assert view.measures == [
        ["arrival lag p99", "31 ms", "10 ms", "15.5 ms", "5 ms", "invalid"],
        ["TCP timeouts (RTO)", "-", "-", "-", "-", ""],
    ]


def test_what_does_not_scale_is_shown_with_its_ratio():
    row = ["one segment (MTU)", "1.45 kB", "14.5 MB real", "a transfer", "540 kB", "0.0027"]
    assert fidelity_view("ocs", DOCUMENT).unscaled == [row]


def test_the_audit_is_one_sentence():
    assert fidelity_view("ocs", DOCUMENT).audit == (
        "897 packets were read, 0 violations; 14 reconfigurations, dark for min 25.01 ms, p50 25.27 ms; the captures "
        "lost 2 packets"
    )


def test_a_simulation_has_nothing_to_show():
    assert fidelity_view("ocs", {"verdict": "valid"}) is None
