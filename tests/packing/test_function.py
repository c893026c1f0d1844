"""The packing function: the plain one, its compiled twin, and what must hold of both for any lengths."""

import hashlib
import json
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conceptloader.config.packing import OVERFLOWS, Packing
from conceptloader.errors import ConfigError
from conceptloader.kernels.packing import make_room, pack_pieces
from tests.packing.plain import Part, pack, pieces_of
from tests.raises import raises

# Running trainings depend on every one of these. If a test of them fails, packing has changed: add a version instead.
GOLDEN = json.loads(Path(__file__).with_name("golden_v1.json").read_text())


def documents_of(lengths):
    starts = [0, *accumulate(lengths)]
    return [(k, start, end) for k, (start, end) in enumerate(pairwise(starts)) if start < end]


def blocks_of(lengths, packing):
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


def compiled(pieces, bins, packing):
    room = make_room(len(pieces), packing.seq_len, packing.bins)
    for k, piece in enumerate(pieces):
        room.pieces[k] = (-1, -1, *piece)
    parts = pack_pieces(room, len(pieces), bins, OVERFLOWS.index(packing.overflow))
    return [Part(*row) for row in room.packed[:parts].tolist()]


SIZES = st.integers(1, 40)


@st.composite
def cases(draw):
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
def test_each_token_once_in_order_and_no_pack_too_full(case):
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
    assert (seen == 1).all()


def test_what_cannot_be_packed_is_said():
    with raises(ConfigError, "packing.bins", "1", "2 or more"):
        Packing(seq_len=8, bins=1)
    with raises(ConfigError, "packing.bins", "64 with seq_len 4194304, blocks of 264241152 tokens"):
        Packing(seq_len=1 << 22, bins=64)


def drawn(name, size, count):
    """Lengths from a generator that any language has: a multiplicative congruence."""
    state, found = 12345, []
    for _ in range(count):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        share = (state >> 8) / (1 << 23)
        lengths = {"uniform": share * 2 * size, "halves": size / 2 + 1, "skewed": size * share**6 * 9}
        found.append(int(lengths[name]))
    return found


def digest(lengths, packing):
    found = hashlib.sha256()
    for count, pieces in blocks_of(lengths, packing):
        found.update(np.array(pack(pieces, count, packing), "<i8").tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("case", GOLDEN["digests"])
def test_golden_digests(case):
    lengths, overflow = case.split(", ")
    packing = Packing(seq_len=128, bins=16, overflow=overflow)
    assert digest(drawn(lengths, 128, 300), packing) == GOLDEN["digests"][case]


def test_golden_parts():
    packing = Packing(seq_len=8, bins=4)
    found = [pack(pieces, count, packing) for count, pieces in blocks_of(GOLDEN["lengths"], packing)]
    assert [[list(part) for part in parts] for parts in found] == GOLDEN["parts"]
