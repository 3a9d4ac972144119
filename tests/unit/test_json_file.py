"""One reader of JSON: the value, or one line with the place for whatever else a file holds."""

from __future__ import annotations

import pytest

from inputs.errors import InputError
from inputs.json_file import MOST_DEPTH, JsonError, parse, read, read_mapping


def refused(tmp_path, content):
    path = tmp_path / "mine.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as error:
        read_mapping(path)
    said = str(error.value)
    assert said.startswith(f"{path}:")
    assert said.isprintable()
    return said.removeprefix(str(path))


def test_a_value_is_read_as_json_says(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"a": [1, 2.5, null, true, "\\u00e9\\ud83d\\ude00", 1e3]}')
    assert read(path) == {"a": [1, 2.5, None, True, "é\N{GRINNING FACE}", 1000.0]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1,\n"b" 2}', ":2: not JSON (Expecting ':' delimiter at column 5)"),
        ("", ":1: not JSON"),
        ("[1]", ": expected keys and values, found [1]"),
        ('{"a": NaN}', ": NaN is no JSON number"),
        ('{"a": -Infinity}', ": -Infinity is no JSON number"),
        ('{"a": 1e999}', ": '1e999': larger than any number"),
        ('{"a": ' + "9" * 5000 + "}", ": a number of 5000 digits"),
        ('{"a": 1, "b": 2, "a": 3}', ": key 'a' is given twice; keep one"),
        ('{"a": "\\ud800"}', ": half of a surrogate pair"),
        ('{"\\udc00": 1}', ": half of a surrogate pair"),
        ('{"a": ' + "[" * 200_000, "nested more than 64 deep"),
        ('{"a": ' + "[" * MOST_DEPTH + "]" * MOST_DEPTH + "}", "nested more than 64 deep"),
        (b'{"a": "\xff"}', ": not UTF-8: byte 0xff in line 1"),
        ('{"a": "\x00"}', ":1: not JSON (Invalid control character"),
    ],
)
def test_what_is_not_read_is_one_line_with_the_place(tmp_path, text, says):
    assert says in refused(tmp_path, text)


def test_a_line_of_a_log_names_its_line():
    with pytest.raises(JsonError, match=r"^events\.jsonl:7: not JSON"):
        parse("{", "events.jsonl", first_line=7)
