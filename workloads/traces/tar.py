"""The files of a tar, one after the other as they stand in the stream, with nothing of it held.

Python's reader takes a damaged header in the middle for the end, and so a tar that was cut for one that is whole; and
it reads names and maps of any length that a header claims. This one refuses them.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, Any, Final, NoReturn

from inputs.packed import BadContent

#: Of the records that extend a header: a long name, times to the nanosecond.
_MAX_EXTENSION_BYTES: Final = 2**20
_EXTENSIONS: Final = frozenset(
    (
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    )
)


class _End(Exception):
    """The block of zeros that every tar ends with; no other end is one."""


class _Header(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Header:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise _End from None
        except tarfile.HeaderError as error:
            raise _damaged(error) from error

    def _proc_member(self, archive: tarfile.TarFile) -> _Header:
        """Called with each header, before what belongs to it is read: the entry that tarfile's source names."""
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._proc_gnusparse_10()
        if self.type in _EXTENSIONS and self.size > _MAX_EXTENSION_BYTES:
            raise BadContent(f"a tar with a name of {self.size:,} bytes; make the archive again")
        return super()._proc_member(archive)  # type: ignore[misc]

    def _proc_gnusparse_10(self, *_: Any) -> NoReturn:
        raise BadContent("a tar with sparse files; make the archive again, without --sparse")


def members(file: IO[bytes], most_bytes: int) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each regular file; of a file of more than `most_bytes`, one byte more than that. Raises
    BadContent."""
    archive = None
    try:
        archive = tarfile.open(fileobj=file, mode="r|", tarinfo=_Header)  # noqa: SIM115 - it owns nothing
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # it keeps them for those who ask again
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name, content.read(most_bytes + 1)
    except _End:
        rest = file if archive is None else archive.fileobj
        while rest is not None and (piece := rest.read(2**16)):
            if piece.strip(b"\0"):
                raise BadContent("goes on behind the end of the tar (two joined?); give one of them") from None
        return
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise _damaged(error) from error
    raise _damaged("a header that is none, or no end")


def _damaged(error: object) -> BadContent:
    return BadContent(f"not a tar of sessions, or one that was damaged or cut ({error}); is the file complete?")
