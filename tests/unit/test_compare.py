"""Comparing two runs: same arrivals or refused, each metric in both, differences the right way round."""

from __future__ import annotations

import pytest

from outputs.terminal import Terminal
from results.metrics.metrics import summarise
from results.records.artifacts import ArtifactError, RunDirectory
from results.records.schema import REQUESTS
from results.report.compare import DifferentArrivals, compare, differences


def write_run(
    path, *, ttft_s=1.0, number=20, names=("eps-2to1",), arrival_offset_s=0.0, seed=1, verdict="valid", reasons=()
):
    run = RunDirectory.create("demo", artifact_dir=path)
    rows = [
        {"id": f"a-{i:03}", "tenant": "a", "arrival_s": i + arrival_offset_s, "new_tokens": 100, "cached_tokens": 900}
        | {"status": "completed", "ttft_s": ttft_s, "prefill_s": 0.75 * ttft_s, "transfer_exposed_s": 0.25 * ttft_s}
        | {"queue_s": 0.0, "circuit_wait_s": 0.0, "control_s": 0.0, "return_s": 0.0, "migrated": False}
        for i in range(number)
    ]
    summaries = []
    for name in names:
        frame = REQUESTS.frame(rows)
        run.write_table(name, seed, "requests", frame)
        summaries.append(
            summarise(
                frame,
                name=name,
                fabric="eps",
                seed=seed,
                substrate="emulation",
                prefill_duration_s=lambda new, cached: 1.0,
                ttft_multiple=5,
                verdict=verdict,
                reasons=reasons,
            )
        )
    run.write_summary(summaries)
    return path


def printed(renderable, width=160):
    console = Terminal(width=width)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_a_difference_is_b_minus_a(tmp_path):
    found = differences(write_run(tmp_path / "a", ttft_s=2.0), write_run(tmp_path / "b", ttft_s=1.5))
    by_metric = {difference.metric: difference for difference in found}
    mean = by_metric["TTFT mean"]
    assert (mean.a, mean.b, mean.change) == (2.0, 1.5, -0.5)
    assert by_metric["completed"].change == 0
    assert by_metric["exposed share"].a == pytest.approx(0.25)


def test_a_figure_that_one_run_could_not_tell_has_no_difference(tmp_path):
    found = differences(write_run(tmp_path / "a"), write_run(tmp_path / "b"))
    p99 = next(difference for difference in found if difference.metric == "TTFT p99")
    assert (p99.a, p99.b, p99.change) == (None, None, None)


def test_the_table_shows_both_values_and_the_difference_with_its_unit(tmp_path):
    text = printed(compare(write_run(tmp_path / "a", ttft_s=2.0), write_run(tmp_path / "b", ttft_s=1.5)))
    line = next(line for line in text.splitlines() if "TTFT mean" in line)
    assert line.split()[-8:] == ["2.000", "s", "1.500", "s", "-0.500", "s", "-25.0", "%"]
    share = next(line for line in text.splitlines() if "exposed share" in line)
    assert share.split()[-6:] == ["25.0", "%", "25.0", "%", "+0.0", "pp"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"number": 19}, "A was offered 20 requests, B 19"),
        ({"arrival_offset_s": 0.001}, "20 of 20 requests, the first being A's id a-000, tenant a, arrival_s 0.0"),
    ],
)
def test_runs_whose_arrivals_differ_are_refused_and_told_apart(tmp_path, changes, said):
    with pytest.raises(DifferentArrivals, match=said):
        compare(write_run(tmp_path / "a"), write_run(tmp_path / "b", **changes))


def test_runs_whose_arrivals_differ_are_compared_when_asked_and_the_table_says_so(tmp_path):
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", number=19)
    assert "The arrivals were not compared" in printed(compare(a, b, allow_different_arrivals=True))
    assert "The arrivals were not compared" not in printed(compare(a, a))


def test_only_fabrics_of_both_runs_are_compared_and_the_others_named(tmp_path):
    a = write_run(tmp_path / "a", names=("eps-2to1", "eps-1to1"))
    b = write_run(tmp_path / "b", names=("eps-2to1", "eps-3to1"))
    assert {difference.name for difference in differences(a, b)} == {"eps-2to1"}
    text = printed(compare(a, b))
    assert "only in A: eps-1to1 seed 1" in text
    assert "only in B: eps-3to1 seed 1" in text


def test_runs_with_nothing_in_common_are_refused(tmp_path):
    a, b = write_run(tmp_path / "a", names=("x",)), write_run(tmp_path / "b", names=("y",))
    with pytest.raises(ArtifactError, match=r"nothing to compare: .*a has x seed 1, .*b has y seed 1"):
        differences(a, b)


def test_the_verdict_of_a_doubtful_run_stands_under_the_table(tmp_path):
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", verdict="invalid", reasons=["arrivals lagged"])
    assert "B eps-2to1: invalid: arrivals lagged" in printed(compare(a, b))


def test_a_run_without_its_requests_cannot_be_compared(tmp_path):
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    (b / "eps-2to1" / "seed1" / "requests.csv").unlink()
    with pytest.raises(ArtifactError, match=r"requests.csv is missing"):
        compare(a, b)


def test_the_parts_of_ttft_are_compared_in_milliseconds(tmp_path):
    a, b = write_run(tmp_path / "a", ttft_s=2.0), write_run(tmp_path / "b", ttft_s=1.5)
    found = {difference.metric: difference for difference in differences(a, b)}
    assert found["mean transfer exposed"].change == pytest.approx(-0.125)
    line = next(line for line in printed(compare(a, b)).splitlines() if "mean transfer exposed" in line)
    assert line.split()[-8:] == ["500.0", "ms", "375.0", "ms", "-125.0", "ms", "-25.0", "%"]


def test_several_runs_are_each_compared_with_the_first(tmp_path):
    times = {"a": 2.0, "b": 1.5, "c": 3.0}
    directories = [write_run(tmp_path / name, ttft_s=ttft_s) for name, ttft_s in times.items()]
    lines = printed(compare(*directories)).splitlines()
    assert lines[2].startswith(f"C = {tmp_path / 'c'}")
    mean = next(line for line in lines if "TTFT mean" in line)
    assert mean.split()[-14:] == [
        *["2.000", "s", "1.500", "s", "3.000", "s", "-0.500", "s", "-25.0", "%", "+1.000", "s", "+50.0", "%"]
    ]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_width_of_a_terminal_cuts_a_number(tmp_path, width):
    directories = [write_run(tmp_path / name, ttft_s=ttft_s) for name, ttft_s in zip("abc", (2, 1.5, 3), strict=True)]
    text = printed(compare(*directories), width=width)
    assert "…" not in text
    for cell in ("2.000 s", "1.500 s", "3.000 s", "-0.500 s", "+50.0 %", "-125.0 ms"):
        assert cell in text


def test_what_only_some_of_several_runs_have_is_named(tmp_path):
    a = write_run(tmp_path / "a", names=("x", "y"))
    b, c = write_run(tmp_path / "b", names=("x", "y")), write_run(tmp_path / "c", names=("x",))
    text = printed(compare(a, b, c))
    assert "only in A: y seed 1" in text
    assert "only in B: y seed 1" in text
    d = write_run(tmp_path / "d", names=("y",))
    with pytest.raises(ArtifactError, match="no fabric and seed is in all of"):
        compare(a, c, d)


def test_a_row_that_no_run_can_fill_is_left_out(tmp_path):
    text = printed(compare(write_run(tmp_path / "a"), write_run(tmp_path / "b")))
    assert "TTFT p99" not in text
    assert "switches" not in text
