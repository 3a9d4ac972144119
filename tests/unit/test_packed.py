"""gzip and zstd in every shape that their tools write, and what is said of files that are cut, damaged or bombs."""

from __future__ import annotations

import gzip
import shutil
import struct
import subprocess
import tracemalloc
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from inputs import packed
from inputs.magic import GZIP
from inputs.text_file import At, TextError, head, lines, open_bytes, refusing

CONTENT = b"".join(b"row %d\n" % number for number in range(3_000))


def skippable(content: bytes = b"abcd", number: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + number, len(content)) + content


def zstd(data: bytes, **options) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def unpacked(path: Path) -> bytes:
    return "".join(text for _, text in lines(path)).encode()


def refusal(path: Path) -> str:
    with pytest.raises(TextError) as error:
        list(lines(path))
    return str(error.value).removeprefix(str(path))


@pytest.fixture
def file(tmp_path: Path):
    def file(content: bytes) -> Path:
        path = tmp_path / "t"
        path.write_bytes(content)
        return path

    return file


@st.composite
def shapes(draw):
    """Content cut into frames, with frames that hold nothing before, between and behind them."""
    cuts = sorted(draw(st.lists(st.integers(0, len(CONTENT)), max_size=4)))
    parts = [CONTENT[a:b] for a, b in zip([0, *cuts], [*cuts, len(CONTENT)], strict=True)]
    if draw(st.booleans()):
        return b"".join(gzip.compress(part) for part in parts) + b"\0" * draw(st.sampled_from([0, 1, 512]))
    options = {"write_checksum": draw(st.booleans()), "write_content_size": draw(st.booleans())}
    frames = [zstd(part, **options) for part in parts]
    for place in draw(st.lists(st.integers(0, len(frames)), max_size=3)):
        frames.insert(place, skippable(b"x" * draw(st.sampled_from([0, 4, 5_000])), draw(st.integers(0, 15))))
    return b"".join(frames)


@settings(max_examples=200, deadline=None)
@given(shapes())
def test_frames_and_members_are_read_one_after_the_other(tmp_path_factory, shape):
    path = tmp_path_factory.getbasetemp() / "shape"
    path.write_bytes(shape)
    assert unpacked(path) == CONTENT


@settings(max_examples=200, deadline=None)
@given(shapes(), st.floats(0, 1, exclude_max=True))
def test_a_cut_file_is_refused_or_ends_where_a_frame_does(tmp_path_factory, shape, where):
    path = tmp_path_factory.getbasetemp() / "cut"
    path.write_bytes(shape[: int(where * len(shape))])
    try:
        found = unpacked(path)
    except TextError as error:
        said = str(error)
    else:
        assert CONTENT.startswith(found)
        return
    assert "is the file complete?" in said or "not UTF-8" in said or "zero byte" in said or "bytes behind" in said


def test_a_cut_member_and_a_cut_frame_are_refused_in_the_line_where_they_end(file):
    for data in (gzip.compress(CONTENT), zstd(CONTENT)):
        said = refusal(file(data[:-6]))
        assert said.endswith("the compressed data end in the middle; is the file complete?")
        assert data[:2] != GZIP or int(said.split(":")[1]) > 2_000
    assert "is the file complete" in refusal(file(skippable()[:-1]))
    assert "is the file complete" in refusal(file(zstd(b"x\n") + skippable(b"x" * 5_000)[:-1]))
    assert "is the file complete" in refusal(file(zstd(b"x\n") + zstd(b"y\n")[:3]))


def test_damage_is_found_by_the_checksums(file):
    for data in (gzip.compress(CONTENT), zstd(CONTENT, write_checksum=True)):
        # of the checksum itself: the content is whole
        place = -6 if data[:2] == b"\x1f\x8b" else -2
        damaged = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 or None :]
        assert "the compressed data are damaged" in refusal(file(damaged))


def test_bytes_behind_the_data_are_named(file):
    said = refusal(file(gzip.compress(b"a\nb\n") + b"\r\n"))
    assert said.startswith(r":3: bytes behind the compressed data (b'\r\n')")
    assert "gzip -dc FILE > OTHER" in said
    assert "bytes behind the compressed data (b'junk')" in refusal(file(zstd(b"a\n") + b"junk"))
    assert "compressed with lz4" in refusal(file(skippable() + b"\x04\x22\x4d\x18" + b"x" * 20))


def test_a_window_beyond_that_of_zstd_is_named_with_its_option(file):
    for log in (28, 31):
        parameters = zstandard.ZstdCompressionParameters(
            window_log=log, enable_ldm=True, write_content_size=False, strategy=1, hash_log=10, chain_log=10
        )
        compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        said = refusal(file(compressor.compress(b"row\n") + compressor.flush()))
        assert f"a window of {2**log // 2**20} MiB (zstd --long={log}); unpack it with zstd -d --long={log} it" in said


def test_a_dictionary_is_named(file):
    dictionary = zstandard.train_dictionary(4_096, [b"row %d of a trace with many rows\n" % i for i in range(20_000)])
    said = refusal(file(zstd(b"row 5 of a trace\n", dict_data=dictionary)))
    assert f"compressed with the dictionary {dictionary.dict_id()}; unpack it first" in said


def test_what_is_compressed_twice_is_named(file):
    for data in (gzip.compress(gzip.compress(b"x")), zstd(gzip.compress(b"x")), gzip.compress(zstd(b"x"))):
        assert "compressed twice" in refusal(file(data))


@pytest.mark.parametrize("options", [[], ["--long=27"], ["--rsyncable"], ["--ultra", "-22"]])
def test_what_the_zstd_command_writes_is_read(tmp_path, options):
    if shutil.which("zstd") is None:
        pytest.skip("the command zstd is not on this machine")
    (tmp_path / "plain").write_bytes(CONTENT)
    subprocess.run(["zstd", "-q", *options, "plain", "-o", "packed"], cwd=tmp_path, check=True)
    assert unpacked(tmp_path / "packed") == CONTENT


def test_what_pzstd_writes_is_read(tmp_path):
    if shutil.which("pzstd") is None:
        pytest.skip("the command pzstd is not on this machine")
    (tmp_path / "plain").write_bytes(CONTENT)
    subprocess.run(["pzstd", "-q", "-p", "2", "plain", "-o", "packed"], cwd=tmp_path, check=True)
    assert (tmp_path / "packed").read_bytes()[1:4] == b"\x2a\x4d\x18"
    assert unpacked(tmp_path / "packed") == CONTENT


def read_all(path: Path) -> None:
    with refusing(At(path)), open_bytes(path) as content:
        while content.read(2**16):
            pass


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_a_bomb_is_refused_in_little_memory(file, compress):
    """512 MiB of lines in a file of a megabyte (gzip) or of less (zstd)."""
    bomb = compress((b"0" * 1_023 + b"\n") * 2**19)
    path = file(bomb)
    assert len(bomb) < 2**21
    tracemalloc.start()
    try:
        with pytest.raises(TextError, match=r"unpacks to over 256 MiB \(at most 200 times its size, or 256 MiB\)"):
            read_all(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 40 * 2**20


def test_content_within_the_ratio_or_within_the_free_part_is_read(file, monkeypatch):
    monkeypatch.setattr(packed, "FREE_BYTES", 10_000)
    assert len(unpacked(file(gzip.compress(b"row\n" * 2_500)))) == 10_000
    assert "unpacks to over" in refusal(file(gzip.compress(b"row\n" * 2_501)))
    data = zlib.compress(CONTENT)
    assert len(CONTENT) > 10_000 > len(data)
    assert unpacked(file(gzip.compress(CONTENT))) == CONTENT  # three times its size


def test_the_head_is_what_comes_before_the_damage(file):
    assert head(file(gzip.compress(b"a\nb\n") + b"junk")) == b"a\nb\n"
