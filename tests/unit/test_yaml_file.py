"""One reader of YAML: data with its lines, and one line with the place for whatever else a file holds."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inputs.errors import InputError, printable, shown
from inputs.yaml_file import MOST_BYTES, YamlError, dump, parse, read


def refused(tmp_path: Path, content: str | bytes) -> str:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as error:
        read(path)
    said = str(error.value)
    assert said.startswith(f"{path}:")
    assert said.isprintable()
    return said.removeprefix(str(path))


def test_data_and_the_line_of_each_value(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("\ufeffa: 1\nb:\n  - x\n  - {c: 0.5, 7: }\n", encoding="utf-8")
    found = read(path)
    assert found.data == {"a": 1, "b": ["x", {"c": 0.5, "7": None}]}
    assert found.lines == {(): 1, ("a",): 1, ("b",): 2, ("b", 0): 3, ("b", 1): 4, ("b", 1, "c"): 4, ("b", 1, "7"): 4}
    assert found.place(("b", 1, "d")) == f"{path}:4"


def test_quotes_make_text_and_bare_words_are_read_as_yaml_1_2():
    assert parse("['010', \"1:30\", yes, 0o10, 1e-4, 2024-13-45, null]", "x") == [
        "010", "1:30", "yes", 8, 1e-4, "2024-13-45", None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: {c: 010}\n", ":2: b.c: 010: a leading zero makes it octal to some; write 10, 0o10 for octal"),
        ("a: 1\na: 2\n", ":2: a: given twice, first in line 1; keep one"),
        ("a: &x [1]\nb: *x\n", ":1: a: an anchor (&x)"),
        ("b: *x\n", ":1: b: an alias (*x)"),
        ("b: {<<: {a: 1}}\n", ":1: b: a merge key"),
        ("a: !!int abc\n", ":1: a: a tag ('tag:yaml.org,2002:int')"),
        ("a: !mine 1\n", ":1: a: a tag"),
        ("a: !!python/object:os.system {}\n", ":1: a: a tag"),
        ("a: [1\n", ":2: not YAML"),
        ("a: 1\n---\nb: 2\n", ":2: a second document"),
        ("{[1]: 2}\n", ":1: a key that is a list or a mapping"),
        ("a: '\x00'\n", ":1: not YAML (character U+0000"),
        ("a: 1\nb: \x1b[31m\n", ":2: not YAML (character U+001B"),
        ('a: "\\ud800"\n', ":1: a: half of a surrogate pair"),
        ('a: "\\U00110000"\n', ": not YAML"),
        ("a: " + "9" * 5000, ":1: a: '" + "9" * 56 + "...: a number of 5000 characters"),
        ("a: 0x_\n", ":1: a: 0x_: a number to some readers"),
        ("a: " + "[" * 100_000, "nested more than 64 deep"),
        ("- " * 500, "nested more than 64 deep"),
        ("a: [" + "1," * 60_000 + "]", "more than 50000 values"),
        ("a: 1\n" + "#" * MOST_BYTES, "larger than 1 MiB"),
        (b"a: \xff\n", ": not UTF-8: byte 0xff in line 1; save the file as UTF-8"),
        ("a: 1".encode("utf-16"), ": not UTF-8: byte 0xff in line 1"),
        ("x" * 3000 + ": 1\n" + "x" * 3000 + ": 1\n", "not YAML"),
    ],
)
def test_what_is_not_read_is_one_line_with_the_place(tmp_path, text, says):
    assert says in refused(tmp_path, text)


def test_a_kilobyte_of_aliases_costs_nothing(tmp_path):
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1},' * 9}]\n" for i in range(1, 12))
    assert ":1: a0: an anchor (&a0)" in refused(tmp_path, bomb)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        for path, says in [
            (tmp_path, "a directory; give a file"),
            (tmp_path / "pipe", "a pipe cannot be read; give a file"),
            (tmp_path / "socket", "a device or a socket cannot be read"),
            (Path("/dev/zero"), "a device or a socket cannot be read"),
            (tmp_path / "none.yaml", "no such file"),
            (tmp_path / ("x" * 5000), "File name too long"),
            (tmp_path / "a\0b", "no file can have this name"),
            (tmp_path / "pipe" / "x", "Not a directory"),
        ]:
            with pytest.raises(InputError, match=says) as error:
                read(path)
            assert str(error.value).isprintable()


def test_a_file_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    path.write_text("a: 1\n")

    def refuse(*_, **__):  # root may read everything
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match="cannot be read \\(Permission denied\\)"):
        read(path)


def test_a_line_that_is_said_holds_no_control_character():
    assert printable("a\nb\x1b[31m\u202e\udcff") == "a\\nb\\x1b[31m\\u202e\\xff"
    assert shown("x" * 100) == "'" + "x" * 56 + "..."
    assert shown(10**5000) == "(too long to print)"


PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=10),
        st.sampled_from(["1e5", "010", "0o7", "1:30", "yes", "2024-01-01", "1_000", "~", "0x1F", "<<", "=", "-"]),
    ),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text("abc010:_-e", max_size=4), below, max_size=3),
    max_leaves=6,
)


@settings(max_examples=500, deadline=None)
@given(PLAIN)
@example("\x85")
@example("a\u2028b\u2029")
def test_what_is_dumped_reads_back_as_it_was_here_and_to_readers_of_yaml_1_1(value):
    text = dump({"value": value})
    assert parse(text, "x") == {"value": value}
    assert yaml.safe_load(text) == {"value": value}


def test_a_value_that_is_shared_is_dumped_twice_and_not_as_an_alias():
    shared = ["x"]
    assert parse(dump({"a": shared, "b": shared}), "x") == {"a": ["x"], "b": ["x"]}


def test_a_text_from_the_command_line_names_where_it_came_from():
    with pytest.raises(YamlError, match=r"^--set a\.b=010: a\.b: 010: a leading zero"):
        parse("010", "--set a.b=010", ("a", "b"))
    with pytest.raises(YamlError) as error:
        parse("[1", "--set a=[1", ("a",))
    assert error.value.problem.startswith("not YAML (")
