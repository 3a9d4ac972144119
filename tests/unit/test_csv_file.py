"""The one CSV reader: what a table is in every way that programs write it, and what is refused with its line."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inputs import csv_file
from inputs.csv_file import CsvFile, header, number, table
from inputs.text_file import TextError


@pytest.fixture
def written(tmp_path: Path):
    def written(content: str | bytes) -> Path:
        path = tmp_path / "t.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


@pytest.fixture
def refusal(written):
    def refusal(content: str | bytes) -> str:
        with pytest.raises(TextError) as error:
            list(table(written(content), ["a", "b"]))
        said = str(error.value)
        assert "\n" not in said
        return said.partition("t.csv")[2]

    return refusal


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12).map(str.strip)
# Python's own writer puts \r in no quotes where lines end in \n
CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=12)


@st.composite
def tables(draw):
    names = draw(st.lists(NAMES.filter(bool), min_size=2, max_size=5, unique_by=str.casefold))
    names = [name for name in names if not name.startswith("\ufeff")] or ["a"]
    if len(names) == 1:
        names.append("b" if names[0].casefold() != "b" else "c")
    row = st.lists(CELLS, min_size=len(names), max_size=len(names)).filter(lambda cells: any(c.strip() for c in cells))
    return names, draw(st.lists(row, max_size=6))


def as_csv(names, rows, *, quoting, line_end) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=quoting, lineterminator=line_end)
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()


@settings(max_examples=300, deadline=None)
@given(
    tables(),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([b"", b"\xef\xbb\xbf", b"\n\n"]),
    st.booleans(),
)
def test_what_a_program_writes_is_read_back_as_it_was(tmp_path_factory, made, quoting, line_end, begin, last_end):
    names, rows = made
    if names[0].casefold().startswith("sep="):
        return
    text = as_csv(names, rows, quoting=quoting, line_end=line_end)
    path = tmp_path_factory.getbasetemp() / "round.csv"
    path.write_bytes(begin + (text if last_end else text.removesuffix(line_end)).encode())
    file = CsvFile(path, spaces=True)
    assert file.names == names
    assert [cells for _, cells in file] == rows


@settings(max_examples=200, deadline=None)
@given(tables().filter(lambda made: made[1]), st.integers(0, 5), st.sampled_from([-1, 1, 2]))
def test_a_row_of_more_or_fewer_cells_is_refused_with_its_line(tmp_path_factory, made, which, change):
    names, rows = made
    which %= len(rows)
    if len(rows[which]) + change < 2 or names[0].casefold().startswith("sep="):
        return
    rows[which] = rows[which] + ["x"] * change if change > 0 else ["x", *rows[which][1:change]]
    begins = 1 + as_csv(names, rows[:which], quoting=csv.QUOTE_ALL, line_end="\n").count("\n")
    path = tmp_path_factory.getbasetemp() / "cells.csv"
    path.write_bytes(as_csv(names, rows, quoting=csv.QUOTE_ALL, line_end="\n").encode())
    with pytest.raises(TextError, match=rf":{begins}: \d+ cells where the header has {len(names)}"):
        list(CsvFile(path))


def test_columns_are_found_by_name_whatever_their_order_case_and_company(written):
    path = written("x, B ,a\n1,2,3\n\n \n4,5,6\n")
    assert list(table(path, ["a", "b"], ["c"])) == [(2, ["3", "2", ""]), (5, ["6", "5", ""])]


@pytest.mark.parametrize("twice", ["a,b,a", "a,b,A", "a,b, a ", 'a,b,"a"', "a,b,c,C", "Straße,a,b,STRASSE"])
def test_a_column_named_twice_is_refused_whatever_its_case_and_spaces(refusal, twice):
    assert "is named twice (columns " in refusal(f"{twice}\n" + "1," * twice.count(",") + "1\n")


def test_columns_without_a_name_are_no_column_named_twice(written):
    assert list(table(written(",a,b,\n0,1,2,\n"), ["a", "b"])) == [(2, ["1", "2"])]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", ":1: no column a, b; the format has a, b, the file has no header"),
        ("\n \n", "no column a, b"),
        ("a,c\n1,2\n", ":1: no column b; the format has a, b, the header is 'a,c'"),
        ("a;b\n1,5;2\n", "the header is 'a;b': it is separated by semicolons; write it with commas, and numbers with"),
        ("a\tb\n1\t2\n", "it is separated by tabs"),
        ("a|b\n1|2\n", "it is separated by vertical bars"),
        ("sep=;\na;b\n", ":1: a line for Excel (sep=) and no header; remove it"),
        ("sep=,\na,b\n", ":1: a line for Excel (sep=) and no header; remove it"),
        ("a,b\r1,2\r3,4\r", r"line ends of \r alone; write it with \n"),
        ("a,b\n1,2\r3,4\r", r":2: not a CSV row (it has line ends of \r alone; write it with \n"),
        ("\ufeff\u200ba,b\n1,2\n", r"no column a; the format has a, b, the header is '\u200ba,b'"),
        ("a,b\n1,1,250\n", ":2: 3 cells where the header has 2; a number is written without a comma in it (1250"),
        ("a,b\n1\n", ":2: 1 cells where the header has 2; is the row cut?"),
        ('a,b\n1,2\n"1,2\n3,4\n', ":3: not a CSV row (a quote is opened in it and never closed)"),
        ('a,b\n"1"2,3\n', ":2: not a CSV row (',' expected after '\"': a quote inside a quoted field is written twice"),
        ("a,b\n1,\0\n", ":2: a zero byte"),
        ("a," * csv_file.MAX_COLUMNS + "b\n", f"{csv_file.MAX_COLUMNS + 1} columns"),
    ],
)
def test_what_is_no_table_is_refused_with_its_cause_and_remedy(refusal, content, says):
    assert says in refusal(content)


def test_a_field_may_be_as_long_as_a_row(written):
    long = "word " * 200_000
    assert list(table(written(f'a,b,prompt\n1,2,"{long}"\n3,4,x\n'), ["a", "b"])) == [(2, ["1", "2"]), (3, ["3", "4"])]


def test_a_row_over_several_lines_is_one_row_and_has_its_first_line(written):
    path = written('a,b,prompt\n1,2,"over\n\ntwo, lines"\n3,4,x\n5,6\n')
    rows = table(path, ["a", "b"])
    assert [next(rows), next(rows)] == [(2, ["1", "2"]), (5, ["3", "4"])]
    with pytest.raises(TextError, match=r"t\.csv:6: 2 cells"):
        next(rows)


def test_a_quote_that_is_never_closed_does_not_fill_the_memory(refusal, monkeypatch):
    monkeypatch.setattr(csv_file, "MAX_ROW_CHARS", 1_000)
    said = refusal('a,b\n1,2\n1,"' + "3,4\n" * 1_000)
    assert said.startswith(":3: a row of over 1,000 characters; is a quote opened in it that is never closed?")


def test_names_of_a_header_are_those_that_the_reader_finds():
    assert header('\n "a", b,"c,d"\n1,2,3') == ["a", "b", "c,d"]
    assert header('"a" b\n') == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12), (" 12.0 ", 12), ("1e3", 1000), ("-.5", -0.5), ("+7.", 7), ("1_000", None), ("1,000", None),
        ("", None),
        ("nan", None), ("inf", None), ("0x10", None), ("١٢", None), ("1 000", None), ("12 ms", None), ("9" * 30, None),
    ],
)  # fmt: skip
def test_a_number_is_what_json_and_c_call_one(text, value):
    assert number(text) == value
