"""Tables on narrow terminals: every name and figure is whole at any width from 40 columns on."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.doctor.preflight import Capability, doctor_table
from outputs.sheet import Column, Sheet
from outputs.terminal import Terminal
from paper.report import Line, side_by_side
from paper.rows import Found, read_rows
from results.report.table import summary_table
from simulation.validation import residual_table
from sweeps.axes import Axis
from sweeps.grid import Outcome
from sweeps.intervals import Estimate
from sweeps.table import grid_table

LONG = "ocs-25ms-no-reuse-of-any-circuit-at-all"


def lines(sheet: object, width: int) -> list[str]:
    terminal = Terminal(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    terminal.print(sheet)
    return terminal.file.getvalue().splitlines()


def check(sheet: object, width: int, *whole: str) -> None:
    found = lines(sheet, width)
    assert max(map(len, found)) <= width
    for text in whole:
        assert any(text in line for line in found), text


figure = st.text("0123456789.±", min_size=1, max_size=14)


@given(st.integers(40, 130), st.lists(st.tuples(*[figure] * 6), min_size=1, max_size=3))
def test_no_width_breaks_a_name_or_a_figure(width: int, figures: list[tuple[str, ...]]) -> None:
    columns = [Column("fabric", "name"), *(Column(f"figure\nnumber {each}") for each in range(6))]
    rows = [(f"fabric-{number}-of-a-name", *each) for number, each in enumerate(figures)]
    check(Sheet(columns, rows), width, *(cell for row in rows for cell in row))


@given(st.integers(1, 40))
def test_no_width_is_too_narrow_to_be_printed_at(width: int) -> None:
    rows = [("heading",), (LONG, "1.234", "words that may be broken")]
    assert lines(Sheet([Column("fabric", "name"), Column("mean s"), Column("why", "words")], rows), width)


def test_a_table_that_fits_is_one_table_and_one_that_does_not_is_two_with_the_names_in_both() -> None:
    columns = [Column("fabric", "name"), *(Column(f"figure {each}") for each in range(6))]
    sheet = Sheet(columns, [("x", *"123456")])
    assert sum("fabric" in line for line in lines(sheet, 100)) == 1
    assert sum("fabric" in line for line in lines(sheet, 60)) == 2


def test_stacked_a_row_is_its_name_and_each_figure_beside_its_header() -> None:
    sheet = Sheet(
        [Column("fabric", "name"), Column("mean\ns"), Column("p95 s")], [("256 GPUs",), (LONG, ("1", "2"), "3")]
    )
    assert lines(sheet, 40) == ["256 GPUs", LONG, "  mean s  1", "          2", "  p95 s   3"]


@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_the_table_of_a_run(width: int) -> None:
    ttft = {"n": 300, "mean": 1.234, "p50": 0.5, "p90": 2.0, "p95": 3.0}
    counts = {"offered": 300, "completed": 299, "failed": 1, "unfinished": 0}
    run = {"name": LONG, "fabric": "ocs", "seed": 1, "substrate": "emulation", "verdict": "degraded"}
    run |= {"requests": counts, "ttft_s": ttft, "ttft_exposed_share": 0.25, "slo_attainment": 0.75}
    check(summary_table({"schema": 1, "runs": [run]}), width, LONG, "1.234", "299", "25.0 %", "degraded")


@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_the_table_of_a_grid(width: int) -> None:
    summary = {
        "ttft_s": {"mean": 1.234, "p50": 0.5, "p99": None},
        "ttft_exposed_share": 0.25,
        "hidden_share": None,
        "slo_attainment": 1.0,
        "requests": {"unfinished": 0, "failed": 0},
        "verdict": "valid",
    }
    key = "workload.window_s"
    found = grid_table([Axis(key, ("5",))], [Outcome(((key, "5"),), LONG, 1, summary, {})])
    check(found, width, LONG, "1.234", "25.0 %", "100.0 %", "valid")


@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_the_table_of_the_paper(width: int) -> None:
    [row] = [row for row in read_rows() if row.measure is not None][:1]
    line = Line(row, Found({"": Estimate(1.234, 0.5, 5)}), "partly")
    check(side_by_side([line]), width, row.figure, row.published.text, line.found.text(row.places), "partly")


@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_the_table_of_this_machine(width: int) -> None:
    cap = Capability(
        "congestion control cubic", "missing", "not in this kernel", "is what KV uses", "modprobe it", False
    )
    check(doctor_table([cap]), width, "congestion control cubic", "missing (optional)")


@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_the_table_of_residuals(width: int) -> None:
    ttft = {"n": 20, "mean_measured_s": 1.2345, "mean_predicted_s": 1.2, "mean_ratio": 1.029, "slower_share": 0.5}
    ttft |= {f"{key}_absolute_share": 0.0123 for key in ("median", "p95", "max")}
    parts = ("queue_s", "prefill_s", "circuit_wait_s", "transfer_exposed_s", "control_s", "return_s")
    run = {"name": LONG, "seed": 1, "ttft": ttft, "parts": {part: {"mean_s": 0.001} for part in parts}}
    found = residual_table({"runs": [run | {"same_decisions_share": 0.9}]})
    check(found, width, LONG, "1.2345", "1.029", "1.23 %", "queue +1.00 ms")
