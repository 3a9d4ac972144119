"""The prefix cache of a trace: which leading blocks of a prompt an earlier prompt had. It never evicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PrefixCache:
    """The block ids that were seen. Ids are opaque; all their bits count.

    Public traces number their blocks densely from 0, 62 million of them in a gigabyte, which no set of Python holds
    in little memory: small integers are bits of a bitmap that grows with the number of ids seen, others go to a set.
    """

    def __init__(self) -> None:
        self._bits = bytearray()
        self._others: set[int | str] = set()
        self._count = 0

    def leading_hits(self, ids: Sequence[int | str]) -> int:
        """How many ids at the start were seen before: a block behind a miss is no hit."""
        bits, size, others = self._bits, 8 * len(self._bits), self._others
        for hits, block in enumerate(ids):
            if isinstance(block, int) and 0 <= block < size and bits[block >> 3] >> (block & 7) & 1:
                continue
            if not others or block not in others:
                return hits
        return len(ids)

    def add(self, ids: Iterable[int | str]) -> None:
        bits, others = self._bits, self._others
        for block in ids:
            # At most 8 bytes of bitmap per id given, beyond the first 8 KiB.
            self._count += 1
            if isinstance(block, int) and 0 <= block < 64 * (self._count + 1024):
                byte = block >> 3
                if byte >= len(bits):
                    bits.extend(bytes(byte + 1 - len(bits) + len(bits) // 8))
                bits[byte] |= 1 << (block & 7)
            else:
                others.add(block)


class SessionNames:
    """Names of sessions that were seen. Where they are numbers from 0 on, as in the larger corpora, each is a bit."""

    def __init__(self) -> None:
        self._names = PrefixCache()
        self.count = 0

    def add(self, name: str) -> bool:
        """Whether the name is new."""
        number = name.isascii() and name.isdigit() and len(name) < 19 and (name == "0" or name[0] != "0")
        ids: list[int | str] = [int(name) if number else name]
        if self._names.leading_hits(ids):
            return False
        self._names.add(ids)
        self.count += 1
        return True
