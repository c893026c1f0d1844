"""The packing function: the plain one, its compiled twin, and what must hold of both for any lengths."""

import hashlib
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conceptloader.config.packing import OVERFLOWS, Packing, Part, Piece, pack, pieces_of
from conceptloader.errors import ConfigError, FormatError
from conceptloader.kernels.packing import make_room, pack_pieces
from tests.raises import raises

# Running trainings depend on every one of these. If a test of them fails, packing has changed: add a version instead.
GOLDEN = {
    ("uniform", "split"): "8012243dd5b52c8c0e63933d597b9260a9300ea43e5f748ec4799461b2168dfd",
    ("uniform", "crop"): "53db11b017255f3bdf7bbb4b12790fe2787e6e0c1cca1fdb7246817079cc8491",
    ("halves", "split"): "b8b3a2d80dd2a29a891343e87418a3edf79ebd70aa5571eb2b5006b00d89174e",
    ("halves", "crop"): "945acf0ac7f7c393a3e3ae262088d55a75ecbc68870d8df0611b80cc0126f902",
    ("skewed", "split"): "e241634946abc5d5683fbf2f9a40f12bfc563edb9dc6a35a4c4bd732b8a9c510",
    ("skewed", "crop"): "d5b26005d467a59f63365846bdadda4481451c6d8d526de8e6118c5d92fb9a4d",
}
GOLDEN_LENGTHS = [3, 0, 8, 9, 1, 20, 5, 5, 5, 6, 2, 7, 4, 0, 30, 1, 1]
GOLDEN_PARTS = [
    [
        [0, 0, 3, 8, 11, 2],
        [1, 0, 11, 8, 20, 3],
        [2, 0, 21, 8, 41, 5],
        [3, 0, 0, 3, 3, 0],
        [3, 3, 19, 1, 20, 3],
        [3, 4, 20, 1, 21, 4],
    ],
    [[0, 0, 29, 8, 41, 5], [1, 0, 41, 5, 46, 6], [2, 0, 46, 5, 51, 7], [3, 0, 37, 4, 41, 5]],
    [[0, 0, 64, 7, 71, 11], [1, 0, 56, 6, 62, 9], [2, 0, 51, 5, 56, 8], [3, 0, 71, 4, 75, 12], [1, 6, 62, 2, 64, 10]],
    [[0, 0, 75, 8, 105, 14], [1, 0, 83, 8, 105, 14], [2, 0, 91, 8, 105, 14]],
    [[0, 0, 99, 6, 105, 14], [0, 6, 105, 1, 106, 15], [0, 7, 106, 1, 107, 16]],
]


def documents_of(lengths: list[int]) -> list[tuple[int, int, int]]:
    starts = [0, *accumulate(lengths)]
    return [(k, start, end) for k, (start, end) in enumerate(pairwise(starts)) if start < end]


def blocks_of(lengths: list[int], packing: Packing) -> list[tuple[int, list[Piece]]]:
    """(packs, pieces) of every block."""
    tokens, documents = sum(lengths), documents_of(lengths)
    packs, found = packing.packs(tokens), []
    for number in range(-(-tokens // packing.block_tokens)):
        first = number * packing.block_tokens
        last = min(tokens, first + packing.block_tokens)
        pieces = list(pieces_of([d for d in documents if d[1] < last and first < d[2]], first, last, packing))
        found.append((min(packing.bins, packs - number * packing.bins), pieces))
    assert sum(bins for bins, _ in found) == packs
    return found


def compiled(pieces: list[Piece], bins: int, packing: Packing) -> list[Part] | None:
    room = make_room(len(pieces), packing.seq_len, packing.bins)
    for k, piece in enumerate(pieces):
        room.pieces[k] = (-1, -1, piece.start, piece.tokens, piece.end, piece.document)
    count = pack_pieces(room, len(pieces), bins, OVERFLOWS.index(packing.overflow))
    return None if count < 0 else [Part(*row) for row in room.packed[:count].tolist()]


SIZES = st.integers(1, 40)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    """Lengths around what is special: 0, 1, half of S and one more, S, S + 1, many S."""
    size, bins = draw(SIZES), draw(st.integers(2, 9))
    special = [0, 1, size // 2, size // 2 + 1, size - 1, size, size + 1, 2 * size - 1, 100 * size]
    length = st.one_of(st.sampled_from([n for n in special if n >= 0]), st.integers(0, 3 * size))
    return size, bins, draw(st.lists(length, max_size=60))


@settings(deadline=None, max_examples=150)
@given(cases())
@example((4, 2, [400]))
@example((10, 3, [6] * 50))
@example((1, 2, [0, 1, 2, 100, 1]))
@example((8, 64, [1] * 1000))
def test_each_token_once_in_order_and_no_pack_too_full(case: tuple[int, int, list[int]]) -> None:
    size, bins, lengths = case
    packing = Packing(seq_len=size, bins=bins)
    seen = np.zeros(sum(lengths), np.int64)
    holder = [number for number, start, end in documents_of(lengths) for _ in range(start, end)]
    for count, pieces in blocks_of(lengths, packing):
        parts = pack(pieces, count, packing)
        assert compiled(pieces, count, packing) == parts
        room = [size] * count
        for part in parts:
            assert part.place == size - room[part.bin]
            assert 0 < part.tokens <= room[part.bin]
            assert {part.document} == set(holder[part.start : part.start + part.tokens])
            assert part.end == 1 + max(k for k, d in enumerate(holder) if d == part.document)
            room[part.bin] -= part.tokens
            seen[part.start : part.start + part.tokens] += 1
        whole = {(part.start, part.tokens) for part in parts}
        for piece in pieces:  # split only if no pack had room for it
            if (piece.start, piece.tokens) not in whole:
                longer = [p for p in pieces if (-p.tokens, p.start) < (-piece.tokens, piece.start)]
                kept = [p for p in parts if Piece(p.start, p.tokens, p.end, p.document) in longer]
                assert all(size - sum(p.tokens for p in kept if p.bin == b) < piece.tokens for b in range(count))
    assert (seen == 1).all()


def test_what_cannot_be_packed_is_said() -> None:
    with raises(ConfigError, "packing.bins", "1", "2 or more"):
        Packing(seq_len=8, bins=1)
    with raises(ConfigError, "packing.bins", "64 with seq_len 4194304, blocks of 264241152 tokens"):
        Packing(seq_len=1 << 22, bins=64)


def drawn(name: str, size: int, count: int) -> list[int]:
    """Lengths from a generator that any language has: a multiplicative congruence."""
    state, found = 12345, []
    for _ in range(count):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        share = (state >> 8) / (1 << 23)
        lengths = {"uniform": share * 2 * size, "halves": size / 2 + 1, "skewed": size * share**6 * 9}
        found.append(int(lengths[name]))
    return found


def digest(lengths: list[int], packing: Packing) -> str:
    found = hashlib.sha256()
    for count, pieces in blocks_of(lengths, packing):
        found.update(np.array(pack(pieces, count, packing), "<i8").tobytes())
    return found.hexdigest()


@pytest.mark.parametrize(("lengths", "overflow"), GOLDEN)
def test_golden_digests(lengths: str, overflow: str) -> None:
    packing = Packing(seq_len=128, bins=16, overflow=overflow)
    assert digest(drawn(lengths, 128, 300), packing) == GOLDEN[lengths, overflow]


def test_golden_parts() -> None:
    packing = Packing(seq_len=8, bins=4)
    found = [pack(pieces, count, packing) for count, pieces in blocks_of(GOLDEN_LENGTHS, packing)]
    assert [[list(part) for part in parts] for parts in found] == GOLDEN_PARTS


def test_a_document_table_that_grew_meanwhile_is_an_error_not_an_endless_loop() -> None:
    packing, pieces = Packing(seq_len=8, bins=4), [Piece(0, 8, 8, 0), Piece(8, 8, 16, 1)]
    assert compiled(pieces, 1, packing) is None
    with raises(FormatError, found="more tokens in the document table than when it was opened"):
        pack(pieces, 1, packing)
