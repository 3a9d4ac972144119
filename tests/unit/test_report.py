"""The report: one file, no network, everything a reader needs to judge the run; and the picture beside it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from results.metrics.metrics import summarise
from results.records.artifacts import ArtifactError, RunDirectory, provenance
from results.records.schema import CIRCUITS, REQUESTS, TTFT_PARTS
from results.report import figures
from results.report.report import write_picture, write_report

HOSTILE = "</script><b>x"
PORT = {"dark_s": 1.25, "live_moving_s": 10.5, "live_idle_s": 11.75}


def request(number, status="completed", **changes):
    row = {"id": f"a-{number:03}", "tenant": "a", "arrival_s": float(number), "new_tokens": 100, "cached_tokens": 900}
    row |= {"status": status, "migrated": True}
    if status == "completed":
        ttft_s = 1.0 + number
        row |= {"ttft_s": ttft_s, "prefill_s": 0.7 * ttft_s, "transfer_exposed_s": 0.2 * ttft_s, "queue_s": 0.0}
        row |= {
            "circuit_wait_s": 0.1 * ttft_s,
            "control_s": 0.0,
            "return_s": 0.0,
            "prefill_end_s": 1.0,
            "last_byte_s": 2.0,
        }
    return row | changes


def window(
    number, prefill="p0", decode="d0", dark_at_s: float | None = 1.0, live_at_s=1.025, released_at_s=2.0, **changes
):
    row = {"window": number, "request": f"a-{number:03}", "prefill": prefill, "decode": decode, "state": "released"}
    row |= {"dark_at_s": dark_at_s, "live_at_s": live_at_s, "released_at_s": released_at_s}
    return row | {"needs_switch": dark_at_s is not None} | changes


@pytest.fixture
def run_dir(tmp_path):
    run = RunDirectory.create("demo", artifact_dir=tmp_path / "run")
    summaries = []
    rows = [*(request(i) for i in range(12)), request(12, status="failed", reason=HOSTILE)]
    for name, kind in (("eps-2to1", "eps"), ("ocs-25ms", "ocs")):
        frame = REQUESTS.frame(rows)
        circuits = CIRCUITS.frame([window(1, request=HOSTILE), window(2, dark_at_s=None)] if kind == "ocs" else [])
        run.write_table(name, 1, "requests", frame)
        run.write_table(name, 1, "circuits", circuits)
        summaries.append(
            summarise(
                frame,
                circuits,
                name=name,
                fabric=kind,
                seed=1,
                substrate="emulation",
                prefill_duration_s=lambda new, cached: 1.0,
                ttft_multiple=5,
                verdict="degraded" if kind == "eps" else "valid",
                reasons=[f"a core was full {HOSTILE}"] if kind == "eps" else [],
                accounting={"ports": {HOSTILE: PORT}} if kind == "ocs" else None,
            )
        )
    run.write_summary(summaries)
    run.write_config("name: demo\nslo: {ttft_multiple: 5}\n")
    run.write_provenance(provenance(argv=["./heliograph", "demo"], seeds=[1], datapath="netdev"))
    return run.path


class Page(HTMLParser):
    """Tags with their attributes, and the text outside scripts."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self._script = [], "", False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._script = tag in ("script", "style")

    def handle_endtag(self, tag):
        self._script = False

    def handle_data(self, data):
        if not self._script:
            self.text += data


def test_the_report_loads_nothing_from_anywhere(run_dir):
    path = write_report(run_dir)
    assert path == run_dir / "report.html"
    page = Page(path.read_text())
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img")
        assert not attributes.keys() & {"src", "href"}
    assert path.stat().st_size > 1_000_000  # plotly.js is inside


def test_the_report_shows_the_table_the_verdict_and_its_reasons_the_provenance_and_the_definitions(run_dir):
    text = " ".join(Page(write_report(run_dir).read_text()).text.split())
    assert "eps-2to1: degraded: a core was full" in text
    assert "ocs-25ms: mean TTFT 6.500 s is equal to eps-2to1's 6.500 s" in text
    assert "git_revision" in text
    assert "./heliograph demo" in text
    assert "at most 5 times the tenant's median prefill time" in text
    assert "p90 undefined: n = 12 is too small" in text
    for heading in ("Results", "Verdict", "TTFT by fabric", "Where the time goes", "Circuits over time"):
        assert heading in text


def test_names_from_a_trace_cannot_break_the_page(run_dir):
    html = write_report(run_dir).read_text()
    assert HOSTILE not in html
    assert "a core was full &lt;/script&gt;" in html


def test_the_report_shows_what_the_ports_did(run_dir):
    text = write_report(run_dir).read_text()
    row = re.search(r"<h3>Circuit ports.*?</table>", text, re.DOTALL)[0]
    assert re.findall(r"<td>([^<]*)</td>", row) == [
        "ocs-25ms",
        "1.25",
        "10.50",
        "11.75",
        "&lt;/script&gt;&lt;b&gt;x",
        "23.50",
    ]


def test_a_run_without_circuits_has_no_circuit_section(run_dir):
    (run_dir / "ocs-25ms" / "seed1" / "circuits.csv").unlink()
    assert "Circuits over time" not in Page(write_report(run_dir).read_text()).text


def test_a_report_needs_only_the_artifacts_and_says_which_is_missing(run_dir):
    (run_dir / "provenance.json").unlink()
    (run_dir / "config.yaml").unlink()
    assert "recorded no provenance" in write_report(run_dir).read_text()
    (run_dir / "eps-2to1" / "seed1" / "requests.csv").unlink()
    with pytest.raises(ArtifactError, match=r"eps-2to1/seed1/requests.csv is missing"):
        write_report(run_dir)


def test_a_report_of_a_run_where_everything_failed_is_still_written(run_dir):
    run = RunDirectory.open(run_dir)
    frame = REQUESTS.frame([request(i, status="failed") for i in range(3)])
    run.write_table("eps-2to1", 1, "requests", frame)
    old = run.summary().runs
    new = summarise(
        frame,
        name="eps-2to1",
        fabric="eps",
        seed=1,
        substrate="emulation",
        prefill_duration_s=lambda new, cached: 1.0,
        ttft_multiple=5,
        verdict="invalid",
    )
    run.write_summary([new, old[1]])
    assert "none of 3 measured requests completed" in write_report(run_dir).read_text()
    assert write_picture(run_dir, run_dir / "x.png").stat().st_size > 10_000


def test_the_cdf_ends_below_one_where_requests_failed():
    frame = REQUESTS.frame([request(1), request(0), request(2, status="failed"), request(9, id="warmup-1")])
    times_s, shares = figures.ttft_steps(frame)
    assert times_s.tolist() == [1.0, 2.0]
    assert shares.tolist() == pytest.approx([1 / 3, 2 / 3])


def test_the_stacked_parts_reach_the_mean_ttft(run_dir):
    runs = RunDirectory.open(run_dir).summary().runs
    bars = figures.mean_parts(runs).data
    assert len(bars) == len(TTFT_PARTS)
    assert sum(bar.x[0] for bar in bars) == pytest.approx(runs[0].ttft_s.mean)


def test_a_window_is_dark_then_live_on_both_of_its_ports():
    states = figures.circuit_states(CIRCUITS.frame([window(1)]))
    assert sorted(zip(states["port"], states["state"], states["begin_s"], states["end_s"], strict=True)) == [
        ("d0", "dark", 1.0, 1.025),
        ("d0", "live after a switch", 1.025, 2.0),
        ("p0", "dark", 1.0, 1.025),
        ("p0", "live after a switch", 1.025, 2.0),
    ]


def test_a_reused_circuit_is_told_from_a_switched_one_and_an_open_window_lasts_to_the_end():
    states = figures.circuit_states(
        CIRCUITS.frame([window(1, dark_at_s=None, released_at_s=None), window(2, released_at_s=7.0)])
    )
    reused = states[(states["window"] == 1) & (states["port"] == "p0")]
    assert reused["state"].tolist() == ["live on a standing circuit"]
    assert reused["end_s"].tolist() == [7.0]


def test_a_window_that_was_refused_takes_no_time():
    refused = window(1, dark_at_s=None, live_at_s=None, released_at_s=None, state="refused")
    assert len(figures.circuit_states(CIRCUITS.frame([refused]))) == 0


def test_the_circuit_figure_opens_on_the_busiest_stretch():
    times_s = CIRCUITS.frame([window(i, dark_at_s=t) for i, t in enumerate([0.0, 10.0, 20.0, 21.0, 22.0, 40.0])])[
        "dark_at_s"
    ]
    assert figures.busiest_stretch(times_s, 4.0) == 20.0
    assert figures.busiest_stretch(times_s[:0], 4.0) == 0.0


def test_ports_are_ordered_prefill_first_and_by_number():
    pairs = [("p10", "d2"), ("p2", "d11"), ("p1", "d1"), ("p9", "d9")]
    frame = CIRCUITS.frame([window(i, *pair) for i, pair in enumerate(pairs)])
    axis = figures.circuits_over_time(frame).layout.yaxis
    assert list(axis.categoryarray)[::-1] == ["p1", "p2", "p9", "p10", "d1", "d2", "d9", "d11"]


def test_the_picture_is_a_png_of_a_size_fit_for_a_readme(run_dir, tmp_path):
    path = write_picture(run_dir, tmp_path / "picture.png")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = (int(value) for value in np.frombuffer(content[16:24], dtype=">u4"))
    assert (width, height) == (1800, 660)


def test_numbers_in_the_page_are_not_nan(run_dir):
    page = Page(write_report(run_dir).read_text())
    assert not re.search(r"\bnan\b|\bNone\b", page.text)
