"""Packing without kernels: by docs/packing.md, slowly."""

from collections.abc import Iterable
from typing import NamedTuple

from conceptloader.config.packing import Packing, Packs, Piece


class Part(NamedTuple):
    """Tokens [start, start + tokens) of a document that ends at `end`, at `place` of pack `bin` of its block."""

    bin: int
    place: int
    start: int
    tokens: int
    end: int
    document: int


def pack(pieces: Iterable[Piece], bins: int, packing: Packing) -> list[Part] | None:
    """Best fit, the longest piece first; what fits nowhere whole comes last, into any room that is left.

    The parts of a pack follow each other in the order in which they are returned. None where a piece is refused.
    """
    room = [packing.seq_len] * bins
    found: list[Part] = []
    left: list[Piece] = []

    def put(b: int, piece: Piece, start: int, tokens: int) -> None:
        found.append(Part(b, packing.seq_len - room[b], start, tokens, piece.end, piece.document))
        room[b] -= tokens

    for piece in sorted(pieces, key=lambda piece: (-piece.tokens, piece.start)):
        fitting = [b for b in range(bins) if room[b] >= piece.tokens]
        if fitting:
            put(min(fitting, key=lambda b: (room[b], b)), piece, piece.start, piece.tokens)
        elif packing.overflow == "refuse":
            return None
        else:
            left.append(piece)
    for piece in left:
        start, stop = piece.start, piece.start + piece.tokens
        while start < stop:
            b = max(range(bins), key=lambda b: (room[b], b))
            taken = min(stop - start, room[b])
            put(b, piece, start, taken)
            start = start + taken if packing.overflow == "split" else stop
    return found


def parts_of(packs: Packs, number: int) -> list[Part]:
    """What a pack of a dataset holds, in order."""
    block, b = divmod(number, packs.packing.bins)
    count, pieces = packs.block(block)
    return [part for part in pack(pieces, count, packs.packing) or () if part.bin == b]
