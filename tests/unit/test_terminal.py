"""What is printed: no text of a user's is markup, and none of its characters acts on the terminal."""

from __future__ import annotations

import contextlib
import io
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from outputs.page import pages
from outputs.sheet import Column, Sheet
from outputs.terminal import Terminal, printable_lines, say

ACTS = ("Cc", "Cf", "Cs", "Zl", "Zp")
#: What rich itself says to a terminal: colours, and the ends of lines.
OURS = re.compile(r"\x1b\[[0-9;]*m|\n")
nasty = st.text(st.sampled_from("ab[/]:\\\x00\x07\b\t\n\r\x1b\x7f\x9b\xa0é\u200e\u202e\u2028\u2066\udce9\U000e0041"))


def printed(renderable: object, **options: object) -> str:
    terminal = Terminal(file=io.StringIO(), force_terminal=True, **{"width": 60, "color_system": None, **options})
    terminal.print(renderable)
    return terminal.file.getvalue()


def harmful(text: str) -> list[str]:
    return [each for each in OURS.sub("", text) if unicodedata.category(each) in ACTS]


@given(nasty)
def test_a_line_has_no_character_that_acts_on_a_terminal(text: str) -> None:
    for err in (False, True):
        with contextlib.redirect_stdout(out := io.StringIO()), contextlib.redirect_stderr(out):
            say(text, err=err)
        assert harmful(out.getvalue()) == []


@given(nasty, st.sampled_from([20, 40, 60, 200]))
def test_a_table_has_none_wherever_the_text_is(text: str, width: int) -> None:
    columns = [Column("fabric", "name"), Column("mean s"), Column("why", "words")]
    sheet = Sheet(columns, [(text, text, text), (text,), (Text(text), (text, text), "")], title=text)
    for colours in (None, "truecolor"):
        assert harmful(printed(sheet, width=width, color_system=colours)) == []


@given(nasty)
def test_a_text_or_a_string_that_is_printed_has_none(text: str) -> None:
    assert harmful(printed(text) + printed(Text(text, style="bold"), color_system="truecolor")) == []


@given(nasty)
def test_a_page_has_none_and_no_markup(text: str) -> None:
    page = pages(Path()).from_string("{{ text }}").render(text=f"<b>{text}")
    assert harmful(page) == []
    assert page.startswith("&lt;b&gt;")
    page.encode()


@pytest.mark.parametrize("text", ["OUT/sw[test]/results.csv", "a[/b]x", "[red]x[/]", ":smile:", "r[@click=x]"])
def test_brackets_and_colons_are_no_markup(text: str) -> None:
    terminal = Terminal(file=io.StringIO(), force_terminal=True, width=200, color_system="truecolor")
    terminal.say(f"results: {text}")
    terminal.print(Sheet([Column("book", "name"), Column("USD")], [(text, "1")], title=text))
    assert OURS.sub("", terminal.file.getvalue()).count(text) == 3


def test_a_long_path_is_one_line_on_a_narrow_terminal() -> None:
    terminal = Terminal(file=io.StringIO(), force_terminal=True, width=20, color_system=None)
    terminal.say("results: " + "directory/" * 10)
    assert terminal.file.getvalue().count("\n") == 1


@given(nasty)
def test_escapes_say_what_they_stand_for_and_are_not_escaped_again(text: str) -> None:
    assert printable_lines(printable_lines(text)) == printable_lines(text)
    assert printable_lines("a\x1b[31m\u202e\udce9") == "a\\x1b[31m\\u202e\\xe9"
