"""Packing without kernels: by docs/packing.md, slowly."""

from typing import NamedTuple


class Piece(NamedTuple):
    """Tokens [start, start + tokens) of a document that ends at token `end`."""

    start: int
    tokens: int
    end: int
    document: int


class Part(NamedTuple):
    """Tokens [start, start + tokens) of a document that ends at `end`, at `place` of pack `bin` of its block."""

    bin: int
    place: int
    start: int
    tokens: int
    end: int
    document: int


def pieces_of(documents, first, last, packing):
    """What begins in tokens [first, last), of documents (number, start, end): pieces of seq_len tokens, and rests."""
    for number, start, end in documents:
        for at in range(start, min(end, last), packing.seq_len if packing.overflow == "split" else max(1, end - start)):
            if at >= first:
                yield Piece(at, min(packing.seq_len, end - at), end, number)


def pack(pieces, bins, packing):
    """Best fit, the longest piece first; what fits nowhere whole comes last, into any room that is left.

    The parts of a pack follow each other in the order in which they are returned.
    """
    room = [packing.seq_len] * bins
    found = []
    left = []

    def put(b, piece, start, tokens):
        found.append(Part(b, packing.seq_len - room[b], start, tokens, piece.end, piece.document))
        room[b] -= tokens

    for piece in sorted(pieces, key=lambda piece: (-piece.tokens, piece.start)):
        fitting = [b for b in range(bins) if room[b] >= piece.tokens]
        if fitting:
            put(min(fitting, key=lambda b: (room[b], b)), piece, piece.start, piece.tokens)
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


def parts_of(packs, number):
    """What a pack of a dataset holds, in order; of one without shards that are never read."""
    packing, (block, b) = packs.packing, divmod(number, packs.packing.bins)
    first = packs.start + block * packing.block_tokens
    last = min(first + packing.block_tokens, packs.stop)
    holding = packs.dataset.documents_in(first, last)
    ranges = [(n, *packs.dataset.document_range(n)) for n in holding.ids.tolist()]
    count = min(packing.bins, len(packs) - block * packing.bins)
    return [part for part in pack(pieces_of(ranges, first, last, packing), count, packing) if part.bin == b]
