"""KV frames and JSON lines, cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.agents.wire import (
    HEADER_BYTES,
    FrameHeader,
    FrameReader,
    KvPart,
    LineSplitter,
    WireError,
    encode_line,
)

headers = st.builds(
    FrameHeader,
    index=st.integers(0, 2**32 - 1),
    rank=st.integers(0, 2**16 - 1),
    part=st.sampled_from(KvPart),
    size_bytes=st.integers(HEADER_BYTES, 5000),
    head_moves=st.booleans(),
)


def stream_of(frames: list[FrameHeader]) -> bytes:
    return b"".join(frame.pack() + bytes(frame.size_bytes - HEADER_BYTES) for frame in frames)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(st.lists(headers, max_size=6), st.lists(st.integers(0, 10**6), max_size=12))
def test_frames_are_found_however_the_stream_is_cut(frames: list[FrameHeader], cuts: list[int]) -> None:
    reader = FrameReader()
    events = [event for piece in pieces_of(stream_of(frames), cuts) for event in reader.feed(memoryview(piece))]
    assert [(event.header, event.ended) for event in events] == [(f, e) for f in frames for e in (False, True)]
    assert reader.between_frames


def test_a_header_is_24_bytes_in_network_order() -> None:
    header = FrameHeader(index=0x01020304, rank=2, part=KvPart.TAIL, size_bytes=9011, head_moves=True)
    assert header.pack() == b"HGKV" + bytes.fromhex("0102030400020006000000000000233300000000")


def test_a_frame_that_is_its_header_only_begins_and_ends_at_once() -> None:
    header = FrameHeader(0, 0, KvPart.ALL, HEADER_BYTES, False)
    assert [event.ended for event in FrameReader().feed(memoryview(header.pack()))] == [False, True]


def test_a_frame_ends_with_its_last_byte_and_not_before() -> None:
    header = FrameHeader(7, 0, KvPart.ALL, 100, False)
    reader = FrameReader()
    data = stream_of([header])
    assert [event.ended for event in reader.feed(memoryview(data[:99]))] == [False]
    assert not reader.between_frames
    assert reader.position == "99 bytes into a frame of 100 of request 7"
    assert [event.ended for event in reader.feed(memoryview(data[99:]))] == [True]


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, b"HTTP", r"starts with b'HTTP'"),
        (10, b"\0\0", r"flags 0x0"),
        (10, b"\0\x09", r"flags 0x9"),
        (12, (23).to_bytes(8, "big"), r"says 23 bytes"),
        (12, (2**40 + 1).to_bytes(8, "big"), r"says 1099511627777 bytes"),
        (20, b"\0\0\0\1", r"reserved 0x1"),
    ],
)
def test_a_malformed_header_is_refused_with_its_value(position: int, value: bytes, message: str) -> None:
    raw = bytearray(FrameHeader(1, 0, KvPart.ALL, 100, False).pack())
    raw[position : position + len(value)] = value
    with pytest.raises(WireError, match=message):
        list(FrameReader().feed(memoryview(raw)))


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text()), max_size=5), st.lists(st.integers(0, 10**6)))
def test_lines_are_found_however_the_stream_is_cut(messages: list[dict[str, object]], cuts: list[int]) -> None:
    splitter = LineSplitter()
    data = b"".join(encode_line(message) for message in messages)
    assert [found for piece in pieces_of(data, cuts) for found in splitter.feed(piece)] == messages


@pytest.mark.parametrize("line", [b"{\n", b"[1]\n", b"\xff\n", b"x" * (1 << 20) + b"x"])
def test_what_is_no_json_object_on_a_line_is_refused(line: bytes) -> None:
    with pytest.raises(WireError):
        LineSplitter().feed(line)


def test_a_number_that_json_does_not_have_is_not_sent() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_line({"at_s": float("nan")})
