"""`fit` writes no timing that says nothing of the rows it came from: errors beyond a bound, times in another unit."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import app
from inputs.text_file import TextError
from workloads.prefill import TIMINGS, PrefillTiming
from workloads.prefill_fit import fit, misfit
from workloads.prefill_samples import Sample, read_samples, unit_doubt

TIMING = PrefillTiming(5, 0.1, 3e-7, 9.0)
GRID = [(new, cached) for new in (16, 256, 1_024, 4_096, 16_384) for cached in (0, 8_192, 65_536)]
BAD_INPUT = 2


def samples(timing=TIMING, ms=1.0) -> list[Sample]:
    return [Sample(new, cached, ms * 1e3 * timing.duration_s(new, cached)) for new, cached in GRID]


def fitted(tmp_path: Path, text: str, *options: str):
    (tmp_path / "p.csv").write_text(text)
    done = CliRunner().invoke(app, ["fit", str(tmp_path / "p.csv"), "--tp", "4", *options])
    assert "Traceback" not in done.output
    assert (done.exit_code == 0) == (tmp_path / "p.yaml").exists()
    return done


def csv_of(rows, unit="ms", begin="") -> str:
    return f"{begin}new,cached,{unit}\n" + "".join(f"{s.new_tokens},{s.cached_tokens},{s.ms!r}\n" for s in rows)


def test_rows_that_no_model_fits_are_not_written(tmp_path):
    rows = [Sample(n, 0, ms) for n, ms in ((512, 800), (1_024, 100), (2_048, 900), (4_096, 60), (8_192, 700))]
    done = fitted(tmp_path, csv_of(rows))
    assert done.exit_code == BAD_INPUT
    assert "off at the median, over 10%; " in done.output
    assert "; nothing is written; repair the rows, or write it anyway with --force" in done.output
    forced = fitted(tmp_path, csv_of(rows), "--force")
    assert forced.exit_code == 0
    assert "warning: the model is" in forced.output


def test_a_tenth_of_the_rows_may_not_be_far_off(tmp_path):
    rows = samples()
    rows += [Sample(2_048, i, 3 * 1e3 * TIMING.duration_s(2_048, i)) for i in range(2)]
    done = fitted(tmp_path, csv_of(rows))
    assert "off at the 95th percentile, over 50%" in done.output
    assert done.exit_code == BAD_INPUT


@pytest.mark.parametrize("factor", [1 / 1000, 1 / 12, 12, 1000])
def test_one_row_may_not_be_ten_times_off(tmp_path, factor):
    rows = 4 * samples()
    rows.append(Sample(4_096, 7, factor * 1e3 * TIMING.duration_s(4_096, 7)))
    done = fitted(tmp_path, csv_of(rows))
    assert done.exit_code == BAD_INPUT
    assert "over 10 times off in a row" in done.output or factor < 1  # which draws the whole model down
    assert "the row farthest from the others has new 4096, cached 7 and " in done.output


def test_measurements_that_scatter_by_a_fifth_are_written(tmp_path):
    rows = [Sample(s.new_tokens, s.cached_tokens, s.ms * (1.2 if i % 7 == 0 else 1)) for i, s in enumerate(samples())]
    assert misfit(fit(rows), rows) is None
    assert fitted(tmp_path, csv_of(rows)).exit_code == 0


@pytest.mark.parametrize(("ms", "unit"), [(1e-3, "s"), (1e6, "us")])
def test_times_in_another_unit_are_not_taken_for_milliseconds(tmp_path, ms, unit):
    done = fitted(tmp_path, csv_of(samples(ms=ms)))
    assert done.exit_code == BAD_INPUT
    assert f"are the times in {unit}? Name their column {unit}; nothing is written" in done.output
    assert fitted(tmp_path, csv_of(samples(ms=ms)), "--force").exit_code == 0


@pytest.mark.parametrize(("ms", "unit"), [(1, "ms"), (1e-3, "s"), (1e3, "us"), (1e-3, " S ")])
def test_the_column_says_the_unit_of_the_times(tmp_path, ms, unit):
    done = fitted(tmp_path, csv_of(samples(ms=ms), unit))
    assert done.exit_code == 0, done.output
    assert "T_ms = max(9, 5 + 0.1 n" in done.output


def test_times_in_two_units_are_refused(tmp_path):
    done = fitted(tmp_path, "new,cached,ms,s\n512,0,60,0.06\n")
    assert done.exit_code == BAD_INPUT
    assert "p.csv:1: the times stand in the columns ms and s; keep one" in done.output


@pytest.mark.parametrize("name", sorted(TIMINGS))
def test_the_named_sets_are_in_milliseconds(name):
    assert unit_doubt(samples(TIMINGS[name])) is None


@pytest.mark.parametrize("begin", ["\ufeff", "\n", "\ufeff\ufeff"])
def test_a_mark_and_a_blank_line_are_no_part_of_the_header(tmp_path, begin):
    assert fitted(tmp_path, csv_of(samples(), begin=begin)).exit_code == 0


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("4096,0,1,250", "p.csv:3: 4 cells where the header has 3; a number is written without a comma in it"),
        ("512,0,60,5", "p.csv:3: 4 cells"),
        ("512,0", "p.csv:3: 2 cells where the header has 3; is the row cut?"),
        ('512,0,"1,250"', "p.csv:3: ms is '1,250'; it must be a finite number, such as 1250 or 100.5"),
        ('512,0,"100,5"', "p.csv:3: ms is '100,5'"),
        ("1_024,0,100", "p.csv:3: new is '1_024'"),
        ("١٢,0,100", "p.csv:3: new is"),
        ("512,0,1e400", "p.csv:3: ms is '1e400'"),
        ("512,0,60 ms", "p.csv:3: ms is '60 ms'"),
        ("1e300,0,60", "p.csv:3: new is '1e300'"),
    ],
)
def test_a_number_with_a_comma_or_a_sign_in_it_is_not_cut(tmp_path, row, says):
    done = fitted(tmp_path, f"new,cached,ms\n512,0,60\n{row}\n" + "1024,0,100\n2048,0,200\n4096,0,400\n")
    assert done.exit_code == BAD_INPUT
    assert says in done.output


def test_a_missing_column_shows_the_header_with_its_invisible_characters(tmp_path):
    (tmp_path / "p.csv").write_text("new\u200b,cached,ms\n512,0,60\n")
    with pytest.raises(TextError, match=r"no column new; .* the header is 'new\\\\?u200b,cached,ms'"):
        read_samples(tmp_path / "p.csv")
