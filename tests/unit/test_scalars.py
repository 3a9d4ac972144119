"""One reading of bare words: YAML 1.2's, and refused where a person could mean two things."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from inputs.scalars import UnclearScalar, number, scalar, whole_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10", 10), ("-7", -7), ("+7", 7), ("0", 0), ("-0", 0), ("0o10", 8), ("0x1F", 31),
        ("1e-4", 1e-4), ("1e5", 1e5), ("1E+3", 1e3), ("1.5e3", 1500.0), (".5", 0.5), ("-.5", -0.5), ("5.", 5.0),
        ("05.5", 5.5),
        ("true", True), ("FALSE", False), ("null", None), ("~", None), ("", None),
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("y", "y"), ("none", "none"), ("nan", "nan"),
        ("2024-13-45", "2024-13-45"), ("2024-01-01", "2024-01-01"), ("1,250", "1,250"), ("50%", "50%"), ("a_1", "a_1"),
        ("my:Class", "my:Class"), ("=", "="), ("10s", "10s"), ("0bad", "0bad"), ("1.2.3", "1.2.3"), ("tRUE", "tRUE"),
        ("\u0661\u0660", "\u0661\u0660"),
    ],
)  # fmt: skip
def test_a_bare_word_is_what_yaml_1_2_says(text, value):
    found = scalar(text)
    assert (type(found), found) == (type(value), value)


def test_infinities_and_nan_are_floats_that_a_schema_may_refuse():
    assert (scalar(".inf"), scalar("+.Inf"), scalar("-.INF")) == (math.inf, math.inf, -math.inf)
    assert math.isnan(scalar(".nan"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("010", "write 10, 0o10 for octal, or '010' in quotes for text"),
        ("050", "write 50, 0o50 for octal"),
        ("08", "write 8, or '08' in quotes"),
        ("-010", "write -10, or"),
        ("00", "write 0, or"),
        ("1:30", "write 90, or '1:30' in quotes for text"),
        ("1:30:00.5", "write 5400.5"),
        ("-1:30", "write -90"),
        ("1_000", "write 1000, or '1_000'"),
        ("1_000.5", "write 1000.5"),
        ("0b101", "write 5, or"),
        ("-0x1F", "write -31"),
        ("0x_", "'0x_' in quotes for text"),
        ("0X1F", "write 31"),
        ("1e999", "larger than any number"),
        ("1e-999", "smaller than any number"),
        ("9" * 5000, "a number of 5000 characters"),
    ],
)
def test_a_number_to_some_is_refused_with_both_ways_out(text, says):
    with pytest.raises(UnclearScalar) as refused:
        scalar(text)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 200


WORDS = st.one_of(
    st.text(alphabet="0123456789", min_size=1, max_size=8),
    st.text(alphabet="0123456789_.:+-eExXoObB", min_size=1, max_size=10),
    st.from_regex(r"[-+]?[0-9_]{1,4}(:[0-5]?[0-9]){0,2}(\.[0-9_]{0,3})?([eE][-+]?[0-9]{1,3})?", fullmatch=True),
    st.text(max_size=8),
)


@settings(max_examples=1000, deadline=None)
@given(WORDS)
def test_no_word_is_one_number_here_and_another_to_a_reader_of_yaml_1_1(text):
    try:
        found = scalar(text)
    except UnclearScalar:
        return
    try:
        other = yaml.SafeLoader.construct_object(
            loader := yaml.SafeLoader(""),
            yaml.ScalarNode(loader.resolve(yaml.ScalarNode, text, (True, False)), text),
        )
    except (ValueError, AttributeError, yaml.YAMLError):
        assert isinstance(found, str)
        return
    numbers = [isinstance(each, int | float) and not isinstance(each, bool) for each in (found, other)]
    if all(numbers):
        assert found == other or (math.isnan(found) and math.isnan(other))
    elif numbers[1]:
        raise AssertionError(f"{text!r} is {other!r} to YAML 1.1 and {found!r} here")
    elif numbers[0]:  # what only YAML 1.2 takes for a number has one meaning to a person too
        assert float(text.replace("0o", "")) == found or text.startswith("0o")


def test_options_that_are_numbers_are_read_like_files():
    assert (whole_number("7"), number("2.5"), number("3")) == (7, 2.5, 3)
    for text in ("010", "1_000", "1.0", "true", "", "x"):
        with pytest.raises(UnclearScalar):
            whole_number(text)
    for text in ("010", "1_0.5", "nan", ".inf", "1:30", "no"):
        with pytest.raises(UnclearScalar):
            number(text)
