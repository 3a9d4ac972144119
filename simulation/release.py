"""When the KV of one transfer and rank exists, as a few straight pieces instead of one step for each layer.

Layers finish one by one, so what exists is a staircase. The pieces follow its lower edge: nothing until the first
layer ends, then one layer behind at the rate at which the layers of each chunk finish, and the last layer at the
prefill's end.

For a sender of constant rate R the end is that of the staircase. It is the latest, over all moments, of that moment
plus what did not exist then at R; on a straight line that is latest at one of its ends, and there the line touches the
edge. A sender whose rate changes within a chunk is late by less than one layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from workloads.serving import KvStream


class Piece(NamedTuple):
    """From `start_s` to `end_s`, `level_bytes` + `bytes_per_s` * (t - start_s) exist."""

    start_s: float
    level_bytes: float
    bytes_per_s: float
    end_s: float

    def at(self, now_s: float) -> float:
        """Bytes that exist at `now_s`, a moment of this piece."""
        return self.level_bytes + self.bytes_per_s * (now_s - self.start_s) if self.bytes_per_s else self.level_bytes


def release_pieces(stream: KvStream) -> tuple[Piece, ...]:
    """The pieces of a stream, contiguous from -inf to inf; the last one holds `stream.total_bytes`."""
    total, end_s = float(stream.total_bytes), stream.end_s
    if stream.mode == "pull":
        return Piece(-math.inf, 0.0, 0.0, end_s), Piece(end_s, total, 0.0, math.inf)
    plan, layers = stream.plan, stream.plan.layers
    level = float(stream.head_bytes)
    first_s = stream.start_s + plan.layer_end_s(0, 0)
    pieces = [Piece(-math.inf, 0.0, 0.0, stream.start_s), Piece(stream.start_s, level, 0.0, first_s)]
    since_s, exist = first_s, level
    for chunk in plan.chunks:
        chunk_end_s = stream.start_s + chunk.end_s
        # asked of the stream itself: where layers forget, a chunk's share of the tail is not its share of the tokens
        chunk_bytes = stream.bytes_at(chunk_end_s) - exist
        exist += chunk_bytes
        if chunk_end_s > since_s:
            behind = exist - chunk_bytes / layers
            pieces.append(Piece(since_s, level, (behind - level) / (chunk_end_s - since_s), chunk_end_s))
            since_s, level = chunk_end_s, behind
    pieces[-1] = pieces[-1]._replace(end_s=end_s)
    pieces.append(Piece(end_s, total, 0.0, math.inf))
    return tuple(pieces)


def finish_s(pieces: Sequence[Piece], first_bytes: float, end_bytes: float, live_s: float, bytes_per_s: float) -> float:
    """When bytes [first_bytes, end_bytes) of a stream have crossed a link that is live, and ours alone, from `live_s`.

    The latest, over every moment at which some of it did not exist, of that moment plus what was left then at the
    full rate.
    """
    done_s = live_s + (end_bytes - first_bytes) / bytes_per_s
    for piece in pieces:
        exist = max(piece.at(piece.end_s), first_bytes)
        if exist >= end_bytes or piece.end_s == math.inf:
            break
        done_s = max(done_s, max(piece.end_s, live_s) + (end_bytes - exist) / bytes_per_s)
    return done_s


def first_byte_s(pieces: Sequence[Piece], first_bytes: float, live_s: float) -> float:
    """When the first byte after `first_bytes` can leave: it exists, and the link is live."""
    for piece in pieces:
        if piece.level_bytes > first_bytes or piece.bytes_per_s > 0:
            return max(live_s, piece.start_s)
    return live_s
