"""What the first bytes of a trace tell about its format: the columns of a table, or the keys of the first object."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Final

from inputs import csv_file
from inputs.magic import is_tar
from inputs.text_file import without_mark

__all__ = ["csv_columns", "is_tar", "json_keys"]

#: A whole string, where an object or a list begins and ends, or a string that goes on behind the head.
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]|"', re.DOTALL)
_COLON: Final = re.compile(rb"\s*:")


@lru_cache(maxsize=2)  # every format asks, and a megabyte without a line end may hold a quarter of a million commas
def csv_columns(head: bytes) -> frozenset[str]:
    """The column names of a CSV header, in lower case; empty for JSON."""
    text = without_mark(head).lstrip()
    if text[:1] in (b"{", b"["):
        return frozenset()
    return frozenset(name.casefold() for name in csv_file.header(text.decode("utf-8", "replace")))


@lru_cache(maxsize=2)
def json_keys(head: bytes) -> frozenset[str]:
    """The keys of the first object itself, none of those nested in it (all that is seen of it, where it is longer than
    the head); empty for tables."""
    text = without_mark(head).lstrip()
    if not text.startswith(b"{"):
        return frozenset()
    keys, depth = [], 0
    for token in _TOKEN.finditer(text):
        found = token[0]
        if found in b"{[":
            depth += 1
        elif found in b"}]":
            depth -= 1
        elif found == b'"':
            break
        elif depth == 1 and _COLON.match(text, token.end()):
            keys.append(found)
        if not depth:
            break
    return frozenset(_key(key) for key in keys)


def _key(string: bytes) -> str:
    try:
        return str(json.loads(string))
    except ValueError:  # which the format's reader says with its line
        return ""
