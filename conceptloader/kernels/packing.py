"""Kernels: documents become pieces, and pieces packs (docs/packing.md; tests/packing/plain.py has it in Python)."""

from typing import Any

import numpy as np

from conceptloader.kernels.kernel import Array, inlined, inner, kernel
from conceptloader.kernels.records import LONG_DOCUMENT, PIECE, REFUSE, SPLIT, Call, Room
from conceptloader.kernels.system import GROW, OK, Code, wrong


@inlined
def add_document(call: Call, start: int, end: int, document: int) -> Code:
    """Tokens [start, end) are a document of the block at hand."""
    state, found = call.state[0], call.room.packed
    if state.packed == len(found):
        state.track = -1
        return GROW
    found[state.packed].start = start
    found[state.packed].end = end
    found[state.packed].document = document
    state.packed += 1
    return OK


@inner
def cut_documents(call: Call, first: int, last: int, overflow: int) -> Code:
    """The pieces that begin in tokens [first, last), of the documents that were found."""
    room, state, size = call.room, call.state[0], call.arrays[0].seq_len
    state.pieces = 0
    for k in range(state.packed):
        found = room.packed[k]
        if overflow == REFUSE and found.end - found.start > size:
            return wrong(call, LONG_DOCUMENT, found.document, found.end - found.start, size)
        at = found.start + max(0, -(-(first - found.start) // size)) * size
        while at < min(found.end, last):
            if at == found.start or overflow == SPLIT:
                if state.pieces == len(room.pieces):
                    state.track = -1
                    return GROW
                piece = room.pieces[state.pieces]
                piece.start = at
                piece.tokens = min(size, found.end - at)
                piece.end = found.end
                piece.document = found.document
                state.pieces += 1
            at += size
    return OK


@inner
def sort_pieces(room: Room, count: int) -> None:
    """`order`: the first `count` pieces, the longest first, equal ones as they come; a counting sort."""
    tally, size = room.tally, len(room.tally) - 1
    for i in range(len(tally)):
        tally[i] = 0
    for k in range(count):
        tally[size - room.pieces[k].tokens + 1] += 1
    for i in range(1, size):
        tally[i] += tally[i - 1]
    for k in range(count):
        slot = size - room.pieces[k].tokens
        room.order[tally[slot]] = k
        tally[slot] += 1


@inner
def put(room: Room, rooms: Array, at: int, piece: Any, part: Any) -> None:
    """Part of a piece, which has its start and its tokens, into the pack whose room is rooms[at].

    rooms: room left * packs + number of the pack, for each pack of the block, ascending.
    """
    packs, size, key = len(rooms), len(room.tally) - 1, rooms[at]
    part.bin = key % packs
    part.place = size - key // packs
    part.end = piece.end
    part.document = piece.document
    key -= part.tokens * packs
    while at > 0 and rooms[at - 1] > key:
        rooms[at] = rooms[at - 1]
        at -= 1
    rooms[at] = key


@kernel
def pack_pieces(room: Room, count: int, packs: int, overflow: int) -> Any:
    """Pack the first `count` pieces.

    Returns: how many parts there are; -1 - k for piece k that is refused, or that finds no room at all, which cannot be
    where the packs were counted for its block.
    """
    rooms, size = room.rooms[:packs], len(room.tally) - 1
    sort_pieces(room, count)
    for b in range(packs):
        rooms[b] = size * packs + b
    left = parts = 0
    for k in range(count):
        piece = room.pieces[room.order[k]]
        low, high = 0, packs
        while low < high:
            middle = (low + high) // 2
            if rooms[middle] < piece.tokens * packs:
                low = middle + 1
            else:
                high = middle
        if low < packs:
            part = room.packed[parts]
            part.start = piece.start
            part.tokens = piece.tokens
            put(room, rooms, low, piece, part)
            parts += 1
        elif overflow == REFUSE:
            return -1 - room.order[k]
        else:
            room.order[left] = room.order[k]
            left += 1
    for k in range(left):
        piece = room.pieces[room.order[k]]
        start, stop = piece.start, piece.start + piece.tokens
        while start < stop:
            part = room.packed[parts]
            part.start = start
            part.tokens = min(stop - start, rooms[packs - 1] // packs)
            if part.tokens == 0:
                return -1 - room.order[k]
            start = start + part.tokens if overflow == SPLIT else stop
            put(room, rooms, packs - 1, piece, part)
            parts += 1
    return parts


def make_room(pieces: int, seq_len: int, bins: int) -> Room:
    """What packing so many pieces works with."""
    return Room(
        pieces=np.empty(pieces, PIECE),
        packed=np.empty(pieces + bins, PIECE),
        order=np.empty(pieces, np.int64),
        tally=np.empty(seq_len + 1, np.int64),
        rooms=np.empty(bins, np.int64),
    )
