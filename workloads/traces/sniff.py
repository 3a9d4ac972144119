"""What the first bytes of a trace tell about its format: the columns of a table, or the keys of the first object."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_KEY: Final = re.compile(rb'"([A-Za-z_]\w{0,40})"\s*:')


@lru_cache(maxsize=2)  # every format asks, and a megabyte without a line end may hold a quarter of a million commas
def csv_columns(head: bytes) -> frozenset[str]:
    """The column names of a CSV header, in lower case; empty for JSON."""
    first = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0]
    if first.lstrip()[:1] in (b"{", b"["):
        return frozenset()
    return frozenset(name.strip().strip('"').lower() for name in first.decode("utf-8", "replace").split(","))


@lru_cache(maxsize=2)
def json_keys(head: bytes) -> frozenset[str]:
    """The keys of the first object (all that is seen of it, where it is longer than the head); empty for tables."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith(b"{"):
        return frozenset()
    first = text.partition(b"\n")[0]
    # An object over several lines ends its first one early.
    whole = first if first.rstrip().endswith(b"}") else text
    return frozenset(key.decode() for key in _KEY.findall(whole))


def is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"
