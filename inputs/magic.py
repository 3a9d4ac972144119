"""What a file is that is no text, by its first bytes, and what makes text of it."""

from __future__ import annotations

from typing import Final

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
#: First bytes -> (what the file is, what to do). The formats that traces and tables are published or exported in.
_FOREIGN: Final[tuple[tuple[bytes, str, str], ...]] = (
    (b"BZh", "compressed with bzip2", "unpack it first: bzip2 -dk FILE"),
    (b"\xfd7zXZ\x00", "compressed with xz", "unpack it first: xz -dk FILE"),
    (b"\x5d\x00\x00", "compressed with lzma", "unpack it first: xz -dk --format=lzma FILE"),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "unpack it first: lz4 -d FILE OTHER"),
    (b"\x02\x21\x4c\x18", "compressed with lz4", "unpack it first: lz4 -d FILE OTHER"),
    (b"\xff\x06\x00\x00sNaPpY", "compressed with snappy", "unpack it first: snzip -dk FILE"),
    (b"\x1f\x9d", "compressed with compress", "unpack it first: gzip -dc FILE > OTHER"),
    (b"\x1f\xa0", "compressed with compress", "unpack it first: gzip -dc FILE > OTHER"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first: 7z x FILE"),
    (b"Rar!\x1a\x07", "a rar archive", "unpack it first: unrar x FILE"),
    (b"PAR1", "a Parquet file", "write it as CSV first: pandas.read_parquet(FILE).to_csv(OTHER, index=False)"),
    (b"ARROW1", "an Arrow file", "write it as CSV first: pandas.read_feather(FILE).to_csv(OTHER, index=False)"),
    (b"ORC", "an ORC file", "write it as CSV first: pandas.read_orc(FILE).to_csv(OTHER, index=False)"),
    (b"Obj\x01", "an Avro file", "write it as JSON lines or CSV first"),
    (b"SQLite format 3\x00", "an SQLite database", "write the table as CSV first: sqlite3 -csv -header FILE"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "write the table as CSV first"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old spreadsheet (xls)", "save it as CSV UTF-8 first"),
    (b"%PDF-", "a PDF", "give the data behind it"),
    (b"version https://git-lfs", "a Git LFS pointer and not the file", "fetch the file first: git lfs pull"),
)
_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_SPREADSHEET: Final = (b"[Content_Types].xml", b"xl/", b"application/vnd.oasis.opendocument.spreadsheet")
_PAGE: Final = (b"<!doctype html", b"<html")


def foreign(start: bytes) -> str | None:
    """What a file with these first bytes is and what to do, None where it may be text. `start`: some hundred bytes."""
    for magic, what, remedy in _FOREIGN:
        if start.startswith(magic) and (magic != b"BZh" or start[4:10] in (b"1AY&SY", b"\x17rE8P\x90")):
            # text may begin with these letters; a file of text has no zero byte
            if magic in (b"ORC", b"PAR1") and b"\0" not in start:
                continue
            return f"{what}; {remedy}"
    if start.startswith(_ZIP):
        if any(name in start for name in _SPREADSHEET):
            return "a spreadsheet (xlsx, ods); save it as CSV UTF-8 first"
        return "a zip archive; unpack it first: unzip FILE"
    if start.lstrip()[:14].lower().startswith(_PAGE):
        return "a web page and not the file; download the file itself (its raw address)"
    return None


def is_tar(start: bytes) -> bool:
    return start[257:262] == b"ustar"


def is_zstd(start: bytes) -> bool:
    """Also where a skippable frame comes first, as pzstd writes it."""
    return start[:4] == ZSTD or is_skippable(start)


def is_skippable(start: bytes) -> bool:
    """A frame of zstd and lz4 that holds no content: 0x184D2A50 to 0x184D2A5F, little endian."""
    return start[1:4] == b"\x2a\x4d\x18" and start[:1] != b"" and 0x50 <= start[0] <= 0x5F
