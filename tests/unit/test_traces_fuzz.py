"""A trace file is accepted or refused with its path: whatever the bytes, no other exception and no hang.

1,000 files in all: 14 samples (a file of every format) mutated 50 times each, arbitrary bytes and arbitrary text 50
times for each compression.
"""

import re
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_samples import COMPRESSIONS, SAMPLES

from workloads.traces.formats import SOURCES, open_trace
from workloads.traces.trace import TraceError

SECONDS = 20
fuzzed = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def no_hang():
    def late(*_):
        raise AssertionError(f"a reader took over {SECONDS} s in all for 50 small files")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(10 * SECONDS)
    yield
    signal.alarm(0)


def accepted_or_refused(path, content, source="auto"):
    path.write_bytes(content)
    refusal = ""
    try:
        reading = open_trace(path, source)
        rows = list(reading)
    except TraceError as error:
        refusal = str(error)
    if refusal:
        # With a line, but where no line is to blame: an empty trace, one of dropped rows.
        place = re.escape(str(path)) + r"(\([^)]*\))?(:\d+: |: the trace has no rows|: all \d+ rows are dropped)"
        assert re.match(place, refusal), refusal
        return
    assert rows
    for row in rows:
        assert row.new_tokens >= 1
        assert row.cached_tokens >= 0
        assert row.time_s >= 0
    report = reading.report()
    assert report.rows_read == report.rows_kept + sum(report.dropped.values())
    assert report.lines()


PIECES = [
    *(b"", b"\n", b"\r", b'"', b",", b"{", b"]", b"\xff\xfe", b"\x00", b"\xe2\x80\xa8"),
    *(b"-1", b"0", b"nan", b"NaN", b"1e999", b"null", b"true", b'{"a":1}', b"2023-02-30 00:00:00"),
    *(b"9" * 5000, b"[" * 5000, b"18446744073709551616"),
]


@st.composite
def mutations(draw):
    """Up to four edits: at a place, drop some bytes and put others in."""
    return [
        (draw(st.floats(0, 1)), draw(st.integers(0, 40)), draw(st.sampled_from(PIECES) | st.binary(max_size=8)))
        for _ in range(draw(st.integers(1, 4)))
    ]


def mutated(data, edits):
    for where, drop, put in edits:
        at = int(where * len(data))
        data = data[:at] + put + data[at + drop :]
    return data


GOOD = {name: make() for name, (_, _, make) in SAMPLES.items()}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_damaged_file_is_accepted_or_refused(tmp_path, name):
    source = SAMPLES[name][0]

    @fuzzed
    @given(mutations(), st.booleans(), st.sampled_from(sorted(COMPRESSIONS)), st.integers(0, 3))
    def check(edits, auto, compression, damage_after):
        # A quarter of the files are damaged after they were compressed.
        data = COMPRESSIONS[compression](GOOD[name] if damage_after == 0 else mutated(GOOD[name], edits))
        data = mutated(data, edits) if damage_after == 0 else data
        accepted_or_refused(tmp_path / "t", data, "auto" if auto else source)

    check()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(
    "strategy", [st.binary(max_size=2_000), st.text(st.characters(codec="utf-8"), max_size=1_000).map(str.encode)]
)
def test_an_arbitrary_file_is_accepted_or_refused(tmp_path, compression, strategy):
    @fuzzed
    @given(strategy, st.sampled_from(SOURCES))
    def check(data, source):
        accepted_or_refused(tmp_path / "t", COMPRESSIONS[compression](data), source)

    check()
