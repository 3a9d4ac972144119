"""Files as text: what is opened at all, in which encoding, and what is said of the rest."""

from __future__ import annotations

import bz2
import contextlib
import io
import lzma
import os
import signal
import socket
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inputs import regular_file, text_file
from inputs.regular_file import no_file
from inputs.text_file import TextError, head, lines


@pytest.fixture
def file(tmp_path: Path):
    def file(content: bytes) -> Path:
        path = tmp_path / "t"
        path.write_bytes(content)
        return path

    return file


@pytest.fixture(autouse=True)
def no_hang():
    def late(*_):
        raise AssertionError("reading took over 20 s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)


def refusal(path: Path) -> str:
    with pytest.raises(TextError) as error:
        list(lines(path))
    said = str(error.value)
    assert said.startswith(f"{path}:")
    assert "\n" not in said
    return said.removeprefix(str(path))


TEXT = st.characters(codec="utf-8", exclude_characters="\n\0\ufeff")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text(TEXT, max_size=20), min_size=1, max_size=8),
    st.sampled_from([b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf"]),
)  # fmt: skip
def test_lines_of_utf_8_are_given_as_they_are_whatever_the_mark(tmp_path_factory, texts, mark):
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(mark + "\n".join(texts).encode())
    whole = "\n".join(texts)
    assert "".join(text for _, text in lines(path)) == whole
    count = max(len(io.StringIO(whole, newline="\n").readlines()), bool(mark))  # a mark alone is a line
    assert [line for line, _ in lines(path)] == list(range(1, count + 1))


ROWS = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,655,52\n"


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"),
        ("utf-32", "UTF-32"), ("utf-32-le", "UTF-32LE"), ("utf-32-be", "UTF-32BE"),
    ],
)  # fmt: skip
def test_utf_16_and_32_are_named_with_and_without_their_mark(file, encoding, name):
    assert refusal(file(ROWS.encode(encoding))) == (
        f":1: not UTF-8 but {name}; convert it: iconv -f {name} -t UTF-8 FILE > OTHER"
    )


@pytest.mark.parametrize(("text", "encoding"), [("Müller", "latin-1"), ("Müller", "cp1252"), ("请求", "gb18030")])
def test_another_8_bit_encoding_is_named_with_line_byte_and_remedy(file, text, encoding):
    data = text.encode(encoding)
    said = refusal(file(b"ok\nok\n" + data + b"\nok\n"))
    assert said.startswith(f":3: not UTF-8 (byte 0x{next(byte for byte in data if byte > 127):02x}")
    assert "iconv -f" in said


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=40), st.sampled_from(["latin-1", "cp1252", "utf-16", "utf-32", "gb18030", "cp932"]))
def test_text_of_any_encoding_is_read_or_refused(tmp_path_factory, text, encoding):
    path = tmp_path_factory.getbasetemp() / "encoded"
    path.write_bytes(text.encode(encoding, "ignore"))
    with contextlib.suppress(TextError):
        list(lines(path))


def test_a_file_that_ends_within_a_character_is_said_to_be_cut(file):
    assert refusal(file("ok\n請".encode()[:-1])) == ":2: ends in the middle of a character; is the file complete?"


def test_a_zero_byte_is_refused_with_its_line(file):
    assert refusal(file(b"ok\nx\0y\n")).startswith(":2: a zero byte, which no text has")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (bz2.compress(b"x" * 100), "compressed with bzip2; unpack it first: bzip2 -dk FILE"),
        (bz2.compress(b""), "compressed with bzip2"),
        (lzma.compress(b"x" * 100), "compressed with xz; unpack it first: xz -dk FILE"),
        (lzma.compress(b"x", format=lzma.FORMAT_ALONE), "compressed with lzma"),
        (b"\x04\x22\x4d\x18" + b"x" * 20, "compressed with lz4"),
        (b"\x1f\x9d\x90xyz", "compressed with compress"),
        (b"7z\xbc\xaf\x27\x1cxx", "a 7z archive"),
        (b"PAR1\x15\x04\x15\0", "a Parquet file; write it as CSV first"),
        (b"ARROW1\0\0", "an Arrow file"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old spreadsheet (xls); save it as CSV UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer and not the file"),
        (b"\n<!DOCTYPE html><html>", "a web page and not the file"),
        (b"a".ljust(257, b"\0") + b"ustar".ljust(255, b"\0"), "a tar archive; unpack it first"),
    ],
)
def test_a_file_that_is_no_text_is_named_by_its_first_bytes(file, content, says):
    assert says in refusal(file(content))


def test_archives_and_spreadsheets_are_told_apart(file):
    for name, says in (
        ("a.csv", ":1: a zip archive; unpack it first: unzip FILE"),
        ("[Content_Types].xml", "a spreadsheet"),
    ):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(name, "x")
        assert says in refusal(file(buffer.getvalue()))


@pytest.mark.parametrize("text", ["BZh,b\n1,2\n", "PAR1,x\n", "ORC,x\n", "id,<html>\n", "PK,x\n"])
def test_text_that_begins_like_another_format_is_text(file, text):
    assert "".join(line for _, line in lines(file(text.encode()))) == text


def test_a_line_without_end_does_not_fill_the_memory(file, monkeypatch):
    monkeypatch.setattr(text_file, "MAX_LINE_BYTES", 1_000)
    assert [len(text) for _, text in lines(file(b"x" * 999 + b"\n"))] == [1_000]
    assert ":2: a line of over 1,000 bytes is no row" in refusal(file(b"ok\n" + b"x" * 1_001))
    assert r"line ends of \r alone" in refusal(file(b"x\r" * 1_001))


def test_pipes_sockets_devices_and_directories_are_refused_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "socket"))
        for name, says in (("pipe", "a pipe cannot be read; give a file"), ("socket", "a device or a socket")):
            assert says in refusal(tmp_path / name)
            assert says in str(no_file(tmp_path / name))
    assert "a directory; give a file" in refusal(tmp_path)
    assert "a device or a socket cannot be read; give a file" in refusal(Path("/dev/zero"))
    assert "no such file" in refusal(tmp_path / "nothing")
    assert "no file can have this name" in str(no_file("a\0b"))


def test_a_pipe_of_this_process_is_refused_by_its_number():
    read, write = os.pipe()
    os.write(write, b"x\n")
    os.close(write)
    try:
        assert "a pipe cannot be read; give a file" in refusal(Path(f"/dev/fd/{read}"))
    finally:
        os.close(read)


def test_a_pipe_that_takes_a_files_place_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(regular_file, "_look", lambda path: None)
    assert "a pipe cannot be read" in refusal(tmp_path / "pipe")


def test_what_the_system_refuses_is_refused_with_its_words(file, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    path = file(b"x")
    monkeypatch.setattr(os, "open", refuse)
    assert refusal(path) == ": cannot be read (Permission denied)"


def test_the_head_of_a_file_is_its_first_bytes(file):
    assert head(file(b"abc" * 100), 5) == b"abcab"
    assert head(file(b""), 5) == b""
