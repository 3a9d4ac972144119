"""The terminal's table: a row per fabric, no number cut, a sentence on each circuit fabric against the first eps."""

from __future__ import annotations

import io

import pytest

from outputs.terminal import Terminal
from results.records.summary import RequestCounts, RunSummary, Summary, TtftStatistics
from results.report.table import comparisons, print_summary, remarks, summary_table, summary_text


def run(name="eps-2to1-ecmp", fabric="eps", mean=1.0, **changes):
    values = {
        "name": name,
        "fabric": fabric,
        "seed": 1,
        "substrate": "emulation",
        "requests": RequestCounts(offered=300, completed=300, failed=0, unfinished=0),
        "ttft_s": TtftStatistics(n=300, mean=mean, p50=0.5, p90=2.0, p95=3.0),
        "ttft_exposed_share": 0.25,
        "hidden_share": 0.125,
        "slo_attainment": 0.75,
        "verdict": "valid",
    }
    return RunSummary(**(values | changes))


def summary(*runs):
    return Summary(runs=list(runs)).as_json()


def test_a_row_holds_counts_times_shares_and_the_verdict():
    lines = summary_text(summary(run())).splitlines()
    assert lines[0].split("  ")[0] == "fabric"
    cells = [cell.strip() for cell in lines[1].split("  ") if cell.strip()]
    expected = [
        "eps-2to1-ecmp",
        "300",
        "300",
        "0 (0)",
        "1.000",
        "0.500",
        "2.000",
        "3.000",
        "25.0 %",
        "12.5 %",
        "75.0 %",
    ]
    assert cells == [*expected, "valid"]


@pytest.mark.parametrize(("mean", "said"), [(0.85, "15.0 % below"), (1.2, "20.0 % above"), (1.0, "equal to")])
def test_a_circuit_fabric_is_said_to_be_below_or_above_the_first_eps_fabric(mean, said):
    sentences = comparisons(summary(run(), run("eps-1to1", mean=0.1), run("ocs-25ms", "ocs", mean=mean)))
    assert len(sentences) == 1
    assert said in sentences[0]
    assert "eps-2to1-ecmp's 1.000 s" in sentences[0]
    assert "n = 300 and 300" in sentences[0]


def test_fabrics_are_compared_within_a_seed():
    runs = [run(), run(seed=2, mean=2.0), run("ocs", "ocs", mean=0.5), run("ocs", "ocs", seed=2, mean=1.5)]
    assert ["50.0 % below" in comparisons(summary(*runs))[0], "25.0 % below" in comparisons(summary(*runs))[1]] == [
        True,
        True,
    ]
    assert "ocs (seed 2)" in summary_text(summary(*runs))


def test_without_an_eps_fabric_there_is_nothing_to_compare_with():
    assert comparisons(summary(run("ocs", "ocs"), run("ideal", "none"))) == []


def test_an_undefined_mean_is_a_dash_and_its_reason_and_is_not_compared():
    nothing = TtftStatistics(
        n=0, null_reasons={key: "none of 9 completed" for key in ("mean", "p50", "p90", "p95", "p99")}
    )
    failed = run("ocs", "ocs", ttft_s=nothing, ttft_exposed_share=None)
    assert comparisons(summary(run(), failed)) == [
        "ocs: mean TTFT cannot be compared with eps-2to1-ecmp: ocs: none of 9 completed"
    ]
    assert remarks(summary(failed)) == ["ocs: mean, p50, p90, p95 undefined: none of 9 completed"]
    assert "0.000" not in summary_text(summary(failed))
    assert "nan" not in summary_text(summary(failed)).lower()


def test_a_comparison_with_a_run_that_is_not_valid_says_so():
    text = summary_text(summary(run(verdict="invalid", reasons=["a link is 9 % off its rate"]), run("ocs", "ocs")))
    assert "not to be relied on: eps-2to1-ecmp not valid" in text
    assert "eps-2to1-ecmp: invalid: a link is 9 % off its rate" in text


def test_means_that_leave_requests_out_say_so():
    lost = RequestCounts(offered=300, completed=290, failed=6, unfinished=4)
    assert "the means leave out 10 and 0 requests" in comparisons(summary(run(), run("ocs", "ocs", requests=lost)))[0]


@pytest.mark.parametrize("width", [72, 80, 100, 120, 200])
def test_no_width_of_a_terminal_cuts_a_number(width):
    console = Terminal(width=width, force_terminal=True, color_system=None, file=io.StringIO())
    console.print(summary_table(summary(run(), run("ocs-25ms-no-reuse", "ocs", mean=1.234))))
    text = console.file.getvalue()
    assert "…" not in text
    for cell in ("ocs-25ms-no-reuse", "300", "0 (0)", "1.234", "0.500", "25.0 %", "12.5 %", "75.0 %", "valid"):
        assert cell in text


def test_where_output_is_no_terminal_a_row_stays_one_line_without_escapes():
    file = io.StringIO()
    print_summary(summary(run()), file=file)
    assert file.getvalue() == summary_text(summary(run()))
    assert "\x1b" not in file.getvalue()


@pytest.mark.parametrize("changes", [{"name": "eps[red]"}, {"notes": ["eps[red]"]}])
def test_brackets_are_not_taken_for_markup(changes):
    console = Terminal(width=200, force_terminal=True, color_system=None, file=io.StringIO())
    console.print(summary_table(summary(run(**changes))))
    assert "eps[red]" in console.file.getvalue()


PARTS = {"queue_s": 0.178, "prefill_s": 0.361, "circuit_wait_s": 0.0024, "transfer_exposed_s": 0.0245}
PARTS |= {"control_s": 0.0001, "return_s": 0.0003}


def test_the_parts_of_ttft_stand_side_by_side_with_what_the_circuits_did():
    policies = [
        run("last-chunk", "ocs", mean=0.5663, ttft_parts_s=PARTS, switches=135, reuses=199),
        run("none", "ocs", mean=1.18, ttft_parts_s=PARTS | {"circuit_wait_s": 0.6194}, switches=238, reuses=58),
    ]
    lines = summary_text(summary(*policies)).splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("mean ms of"))
    waits = [line.split() for line in lines[header + 1 : header + 3]]
    assert waits[0] == ["last-chunk", "178.0", "361.0", "2.4", "24.5", "0.1", "0.3", "566.3", "135", "199"]
    assert waits[1][3] == "619.4"
    end = lines[header].index("circuit wait") + len("circuit wait")
    assert [line[:end].split()[-1] for line in lines[header + 1 : header + 3]] == ["2.4", "619.4"]


def test_a_run_that_knows_no_parts_has_no_row_of_them():
    assert "mean ms of" not in summary_text(summary(run()))
    known = run("none", "none", ttft_parts_s=PARTS)
    lines = summary_text(summary(run(), known)).splitlines()
    assert sum(line.startswith("eps-2to1-ecmp ") for line in lines) == 1
    assert lines[-1].split()[-2:] == ["-", "-"]


@pytest.mark.parametrize("width", [72, 80, 100, 200])
def test_no_width_of_a_terminal_cuts_a_part(width):
    console = Terminal(width=width, force_terminal=True, color_system=None, file=io.StringIO())
    runs = [run("last-chunk-no-reuse", "ocs", mean=0.5663, ttft_parts_s=PARTS, switches=135, reuses=199)]
    console.print(summary_table(summary(*runs)))
    text = console.file.getvalue()
    assert "…" not in text
    for cell in ("178.0", "361.0", "2.4", "24.5", "0.1", "0.3", "566.3"):
        assert cell in text
    assert ("reuses" in text) == (width != 80)  # stacked at 72, where there is room for everything again
